"""What the supervisor's files know: jobs that the journal does not, and output that may go."""

import contextlib
import errno
import os
import subprocess

import pytest
from builders import job

from iodaemon.core.job import DiskId, JobState, Share, TierName
from iodaemon.daemon.outputs import (
    find_old_outputs,
    find_running,
    find_strangers,
    highest_job,
)
from iodaemon.errors import JournalError
from iodaemon.supervisor.ledger import EXEC, Key, Record, open_ledger

HERE, ABOVE = os.getpid(), os.getppid()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], 0),
        (["1.1", "12.3", "9.1"], 12),
        (["1.1", "13.1.report"], 13),
        (["lost+found", "x.1", "7.y", "7", ".12.1"], 0),
        (["3.1", f"{2**62}.1", f"{10**30}.1"], 3),
    ],
)
def test_the_highest_id_is_that_of_an_output_of_a_job(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).write_text("it\n")
    (tmp_path / "99.1").touch()  # that of a start which was prepared and never written down

    assert expected == highest_job(tmp_path, [])


@pytest.fixture
def ledger(tmp_path):
    ledger = open_ledger(str(tmp_path / "ledger"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for key, pid in ((Key(4, 1), HERE), (Key(5, 2), ABOVE), (Key(6, 1), ended.pid)):
        os.write(ledger.fd, Record(EXEC, key, pid, values=(1, 1)).pack())
    yield ledger
    os.close(ledger.fd)


def test_whoever_runs_and_no_job_stands_for_is_a_stranger(tmp_path, ledger):
    waits = job(5, state=JobState.PENDING, attempt=1)  # it takes up its next attempt
    runs = job(4, state=JobState.RUNNING, attempt=1)

    running = find_running(tmp_path)
    (tmp_path / "2.1").touch()
    assert 5 == highest_job(tmp_path, running)
    assert 0 == highest_job(tmp_path / "none", find_running(tmp_path / "none"))
    assert [(Key(4, 1), HERE), (Key(5, 2), ABOVE)] == find_strangers(running, [])
    assert [(Key(4, 1), HERE)] == find_strangers(running, [waits])
    assert [] == find_strangers(running, [waits, runs])


# -- output that may go ----------------------------------------------------------------------------

SHARE = Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=1)


def make(outputs, name, ended_s):
    outputs.mkdir(exist_ok=True)
    (outputs / name).write_text("words")
    os.utime(outputs / name, (ended_s, ended_s))


def found(outputs, records=()):
    by_id = {each.id: each for each in records}
    return find_old_outputs(outputs, 100.0, by_id.get)


def test_a_report_goes_with_the_output_it_is_of(tmp_path):
    for name, ended_s in (
        ("1.1", 99.0),
        ("1.1.report", 101.0),
        ("2.1.report", 99.0),
        ("3.1", 100.0),
    ):
        make(tmp_path, name, ended_s)

    assert [Key(2, 1)] == found(tmp_path)


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({"state": JobState.FAILED, "at_s": 99.0}, False),
        ({"state": JobState.FAILED, "at_s": 100.0}, True),
        ({"state": JobState.FAILED, "at_s": 99.0, "shares": (SHARE,)}, True),
        ({"state": JobState.RUNNING, "at_s": 9.0}, True),
    ],
)
def test_output_stays_as_long_as_the_record_of_its_job_whatever_time_it_has(
    tmp_path, fields, is_kept
):
    make(tmp_path, "1.1", 1.0)

    assert ([] if is_kept else [Key(1, 1)]) == found(tmp_path, [job(1, **fields)])


class Damaged:
    """An entry whose inode the disk cannot read."""

    name = "3.1"

    def stat(self, *, follow_symlinks):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_that_cannot_be_looked_at_keeps_no_other_one(tmp_path, monkeypatch):
    for name in ("1.1", "4.1"):
        make(tmp_path, name, 1.0)
    entries = [*os.scandir(tmp_path), Damaged()]
    monkeypatch.setattr(os, "scandir", lambda _: contextlib.nullcontext(entries[::-1]))

    assert [Key(1, 1), Key(4, 1)] == found(tmp_path)


def test_while_records_cannot_be_read_all_output_stays(tmp_path):
    make(tmp_path, "1.1", 1.0)

    def fail(_):
        raise JournalError("it is away")

    assert [] == find_old_outputs(tmp_path, 100.0, fail)


def test_what_is_no_output_of_a_job_is_left_alone(tmp_path):
    for name in ("keep", "1.x", "1.1.1", "1.1.report.report", ".1.1", "01.1", "-1.1"):
        make(tmp_path, name, 1.0)

    assert [] == found(tmp_path)
    assert [] == found(tmp_path / "none")
