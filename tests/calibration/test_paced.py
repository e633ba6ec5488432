"""The paced reader: each byte once, at the rate asked for, and no more when told to stop."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.kernels import paced
from iodaemon.kernels.paced import BLOCK, File, Order, find_places, run, shuffled

KIB, MIB = 1 << 10, 1 << 20


@given(st.integers(0, 3000), st.integers(0, 1 << 63))
def test_a_shuffle_has_every_number_once(count, seed):
    assert list(range(count)) == sorted(shuffled(count, seed))


@given(
    st.integers(0, 1 << 40),
    st.integers(0, 200),
    st.sampled_from([4 * KIB, BLOCK, MIB]),
    st.none() | st.integers(1, 1 << 30),
)
def test_each_block_is_read_once_and_only_whole_ones(offset, blocks, block, seed):
    order = Order(offset=offset, length=blocks * block + block - 1, block=block, seed=seed)

    places = list(find_places(order))

    assert sorted(places) == [offset + number * block for number in range(blocks)]
    if seed is None:
        assert places == sorted(places)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of 4 MiB, while standard input has no further order."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(4 * MIB))
    silent, other_end = os.pipe()
    monkeypatch.setattr(paced, "_STANDARD_INPUT", silent)
    opened = File(str(path), writes=True)
    yield opened
    for descriptor in (opened.descriptor, silent, other_end):
        os.close(descriptor)


def test_it_reads_all_bytes_once_and_says_how(file):
    told = run(file, Order(offset=0, length=4 * MIB))

    assert (told.bytes, told.ios, told.asked_bytes_per_s) == (4 * MIB, 32, None)
    assert 0.0 < told.wait_s <= told.run_s
    assert file.cold in ("direct", "dropped")


@pytest.fixture
def halts_s(monkeypatch):
    """Time goes on only by waiting, and with each wait by the next of these."""
    now_s, halts_s = [100.0], []

    def wait(wait_s):
        now_s[0] += max(0.0, wait_s) + (halts_s.pop(0) if halts_s else 0.0)
        return False

    monkeypatch.setattr(paced, "is_over_after", wait)
    monkeypatch.setattr(paced, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return halts_s


@pytest.mark.parametrize("halts", [[], [0.0, 0.0, 0.5]], ids=["on time", "a delay is caught up"])
def test_it_moves_at_the_rate(file, halts_s, halts):
    halts_s += halts
    told = run(file, Order(offset=0, length=2 * MIB, rate=2e6))

    assert (told.bytes, told.run_s) == (2 * MIB, pytest.approx(2 * MIB / 2e6))


@pytest.mark.usefixtures("halts_s")
def test_it_ends_in_time_with_what_it_has(file):
    told = run(file, Order(offset=0, length=4 * MIB, rate=4e6, seconds=0.1))

    assert told.bytes == 4 * BLOCK


def test_it_writes_when_told_to(file, tmp_path):
    before = (tmp_path / "data").read_bytes()

    told = run(file, Order(offset=MIB, length=MIB, block=MIB, writes=True))

    os.fsync(file.descriptor)
    after = (tmp_path / "data").read_bytes()
    assert told.bytes == MIB
    assert (after[:MIB], after[2 * MIB :]) == (before[:MIB], before[2 * MIB :])
    assert after[MIB : 2 * MIB] != before[MIB : 2 * MIB]


def test_a_file_that_refuses_direct_reads_is_dropped_from_the_cache():
    refusing = File("/proc/self/mountinfo")

    assert refusing.cold == "dropped"
    os.close(refusing.descriptor)


@pytest.mark.node
def test_a_reader_whose_master_is_gone_ends_in_the_middle_of_a_step(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(os.urandom(MIB))
    with path.open("rb") as data:
        reader = subprocess.Popen(
            [sys.executable, "-m", "iodaemon.kernels.paced", str(data.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(data.fileno(),),
        )
        assert b"cold" in reader.stdout.readline()
        order = Order(offset=0, length=MIB, rate=1e3)
        reader.stdin.write(json.dumps(order._asdict()).encode() + b"\n")
        reader.stdin.close()

        assert reader.wait(10) == 0
        reader.stdout.close()
