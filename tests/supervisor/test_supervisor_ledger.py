"""The ledger by itself, and a root side whose tmpfs is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from iodaemon.node.outcome import find_ends
from iodaemon.supervisor import ledger as records
from iodaemon.supervisor import protocol
from iodaemon.supervisor.attempts import ENDS, describe_ends
from iodaemon.supervisor.ledger import EXEC, EXIT, MAIN, USE, Key, Ledger, Record, open_ledger
from iodaemon.supervisor.scratch import write_in_time

pytestmark = pytest.mark.node


@pytest.fixture
def path():
    path = Path(f"/dev/shm/iod-test-ledger-{os.getpid()}")
    yield path
    for file in (path, path.with_name(path.name + ".old")):
        file.unlink(missing_ok=True)


def write_attempt(ledger: Ledger, job: int) -> Key:
    key = Key(job, 1)
    ledger.append(Record(EXEC, key, pid=job, values=(7, 0)))
    ledger.append(Record(EXIT, key, pid=job, values=(256, 0)))
    ledger.append(Record(USE, key, pid=job, flags=MAIN, values=(1, 2, 3, 4, 5, 6)))
    return key


def test_what_is_appended_is_read_by_everybody(path):
    ledger = open_ledger(str(path))
    key = write_attempt(ledger, 5)
    other = open_ledger(str(path))
    entry = other.entries[key]

    assert ledger.identity == other.identity
    assert (5, 7, 256, (1, 2, 3, 4, 5, 6), True) == (
        entry.pid, entry.ticks, entry.status, entry.use, entry.flags & MAIN,
    )  # fmt: skip
    os.close(ledger.fd)
    os.close(other.fd)


@pytest.mark.parametrize("cut", range(1, 64, 9))
def test_a_record_that_is_cut_or_damaged_is_skipped(path, cut):
    ledger = open_ledger(str(path))
    first, second = write_attempt(ledger, 1), write_attempt(ledger, 2)
    os.close(ledger.fd)
    data = bytearray(path.read_bytes())
    data[64 + cut] ^= 0xFF  # EXEC of the first
    path.write_bytes(data[: len(data) - cut])  # USE of the second
    ledger = open_ledger(str(path))
    third = write_attempt(ledger, 3)
    ledger.catch_up()

    assert (0, True, 256) == (
        ledger.entries[first].pid, ledger.entries[first].has_run, ledger.entries[first].status,
    )  # fmt: skip
    assert (True, False) == (ledger.entries[second].has_run, ledger.entries[second].flags & MAIN)
    assert ledger.entries[third].flags & MAIN
    os.close(ledger.fd)


def test_pages_of_forgotten_attempts_are_given_back(path):
    ledger = open_ledger(str(path))
    keys = [write_attempt(ledger, job) for job in range(1, 2001)]
    before = path.stat().st_blocks
    for key in keys[:-1]:
        ledger.forget(key)
    ledger.catch_up()
    again = open_ledger(str(path))

    assert path.stat().st_blocks * 512 < before * 512 - 300_000
    assert keys[-1:] == list(ledger.entries)
    assert again.entries[keys[-1]].flags & MAIN
    assert again.identity == ledger.identity
    os.close(ledger.fd)
    os.close(again.fd)


def test_records_of_another_form_are_skipped_and_its_identity_stays(path):
    path.write_bytes(b"\x01" * 64 * 100)
    ledger = open_ledger(str(path))
    for job in range(1, 301):
        ledger.forget(write_attempt(ledger, job))
    again = Ledger(ledger.fd)

    assert again.identity == ledger.identity
    os.close(ledger.fd)


def test_what_is_kept_tells_apart_who_ended_and_who_was_ended_by_the_shutdown(path, tmp_path):
    """It is found by the next boot's daemon, which runs the others again where they ask for it."""
    ledger = open_ledger(str(path))
    for job, status in enumerate((0, 3 << 8, 15, 9, 143 << 8, 11), start=1):
        ledger.append(Record(EXEC, Key(job, 1), pid=job, values=(7, 0)))
        ledger.append(Record(EXIT, Key(job, 1), pid=job, values=(status, 0)))
    ledger.append(Record(EXEC, Key(7, 1), pid=7, values=(7, 0)))
    write_in_time(str(tmp_path / ENDS), protocol.encode(describe_ends(ledger)))
    ends = find_ends(tmp_path / "output")

    assert {"1.1": (0, None), "2.1": (3, None), "6.1": (None, 11)} == {
        key: (end["exit"]["code"], end["exit"]["signal"]) for key, end in ends.items()
    }
    os.close(ledger.fd)


def test_one_of_another_boot_is_put_aside(path):
    ledger = open_ledger(str(path))
    write_attempt(ledger, 1)
    os.close(ledger.fd)
    data = bytearray(path.read_bytes())
    data[:64] = Record(records.OPEN, Key(0, 0), values=(9, 1, 2)).pack()
    path.write_bytes(data)
    ledger = open_ledger(str(path))

    assert ({}, True) == (ledger.entries, path.with_name(path.name + ".old").exists())
    os.close(ledger.fd)


def test_what_is_no_file_of_ones_own_is_refused(path):
    os.mkfifo(path)
    with pytest.raises(OSError, match="own"):
        open_ledger(str(path))


def test_a_full_tmpfs_keeps_no_end_from_being_known(make_root):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    tmpfs = Path(f"/dev/shm/iod-test-full-{os.getpid()}")
    tmpfs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmpfs)], check=True)
    try:
        root = make_root("cgroup", runtime=str(tmpfs / "run"))
        daemon = root.connect()
        daemon.run("1.1", *root.gate.wait_and("exit 5"))
        with (tmpfs / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        root.gate.open()

        assert 5 == daemon.await_state("1.1", "ended")["exit"]["code"]

        number = 2
        while True:  # until what was allocated ahead is used up
            report = daemon.run(f"{number}.1", "true")
            if report["state"] == "failed":
                break
            daemon.await_state(f"{number}.1", "ended")
            number += 1

        assert ("ledger_full", False) == (report["code"], report["is_lasting"])
        root.kill("iod-supervisor")
        assert 5 == root.outcome("1.1")["exit"]["code"]
        (tmpfs / "filler").unlink()
        daemon = root.connect()

        assert 0 == daemon.code_of("3000.1", "true")
        root.end()
    finally:
        subprocess.run(["umount", "-l", str(tmpfs)], check=True)
        tmpfs.rmdir()
