"""A job that the kernel kills for memory where no controller of ours says so."""

import contextlib
import os
import sys
import uuid
from pathlib import Path

import pytest

from iodaemon.node.outcome import OomKills, count_oom_kills

V1 = Path("/sys/fs/cgroup/memory")
VMSTAT = b"pgrotated 2056533\ndrop_pagecache 1\ndrop_slab 2\noom_kill 1\nnuma_pte_updates 0\n"
"""Of Linux 6.18, after a process was killed for the limit of a cgroup v1."""
BEFORE_4_13 = b"pgrotated 11\ndrop_pagecache 0\ndrop_slab 0\nnuma_pte_updates 0\n"
HOG = "bytearray(200 << 20)"


# -- the count -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (VMSTAT, 1),
        (VMSTAT.replace(b"oom_kill 1", b"oom_kill 12"), 12),
        (VMSTAT[: VMSTAT.index(b"kill 1") + 6], None),  # cut short
        (BEFORE_4_13, None),
        (b"oom_kill x\n", None),
        (b"", None),
    ],
)
def test_the_kernel_counts_them_for_the_whole_machine(tmp_path, text, count):
    path = tmp_path / "vmstat"
    path.write_bytes(text)

    assert count == count_oom_kills(str(path))
    assert count_oom_kills(str(tmp_path / "none")) is None


def looked(*readings, now):
    """A memory of these readings, of a kernel that counts ``now``."""
    counts = [count for _, count in readings] + [now]
    kills = OomKills(lambda: counts.pop(0))
    for at_s, _ in readings:
        kills.look(at_s)
    return kills


@pytest.mark.parametrize(
    ("readings", "now", "expected"),
    [
        ([(100.0, 0), (105.0, 0)], 2, 2),
        ([(60.0, 0), (85.0, 3), (100.0, 3)], 3, 0),  # long before
        ([(60.0, 0), (85.0, 3), (100.0, 3)], 4, 1),
        ([(60.0, 0), (85.0, 0), (100.0, 1)], 1, 1),  # killed, and gone some seconds later
        ([(100.0, None)], 1, 0),
        ([(100.0, 1)], None, 0),
        ([], 1, 0),
        ([(120.0, 0)], 1, 0),  # it ended before anybody looked
    ],
)
def test_those_are_counted_that_were_killed_shortly_before_its_end(readings, now, expected):
    assert expected == looked(*readings, now=now).count(106.0)


def test_what_was_read_just_now_is_not_read_again():
    reads = []
    kills = OomKills(lambda: reads.append(1) or 0)
    for at_s in (1.0, 2.0, 5.9, 6.0):
        kills.look(at_s)

    assert 2 == len(reads)


# -- on this machine -------------------------------------------------------------------------------


@pytest.fixture
def limited():
    """A cgroup v1 of 32 MiB that a script may enter."""
    directory = V1 / f"iod-test-{uuid.uuid4().hex[:8]}"
    if not os.access(V1, os.W_OK):
        pytest.skip("no writable cgroup v1 with a memory controller here")
    directory.mkdir()
    (directory / "memory.limit_in_bytes").write_text(str(32 << 20))
    yield directory
    with contextlib.suppress(OSError):
        directory.rmdir()


@pytest.mark.node
@pytest.mark.parametrize("means", ["signals"], indirect=True)
def test_a_job_that_is_killed_in_a_group_of_its_own_ends_as_out_of_memory(server, limited):
    """Or of which the last command is; one that is cancelled just then is cancelled."""
    enter = f"sleep 0.5; echo $$ > {limited}/cgroup.procs"
    for then in ("exec", ""):
        ended = server.end_of(server.script(f"{enter}; {then} {sys.executable} -c '{HOG}'"))

        assert ("OUT_OF_MEMORY", "OutOfMemory") == (ended["state"], ended["reason"]["code"])
        assert ended["reason"]["text"].startswith("probably killed because memory ran out: the")
    cancelled = server.script("trap '' TERM; while :; do sleep 0.1; done")
    server.await_state(cancelled, "RUNNING")
    server.client.cancel(cancelled, grace_s=0.1)

    assert "CANCELLED" == server.end_of(cancelled)["state"]
