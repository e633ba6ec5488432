"""What the supervisor's records know and the journal does not."""

import os
import subprocess

import pytest
from builders import job

from iodaemon.core.job import JobState
from iodaemon.daemon.stranger import find_strangers, highest_job
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

    assert expected == highest_job(tmp_path, tmp_path / "run")


def test_where_no_job_ever_ran_there_is_nothing(tmp_path):
    assert 0 == highest_job(tmp_path / "none", tmp_path)
    assert [] == find_strangers(tmp_path, [])


@pytest.fixture
def ledger(tmp_path):
    ledger = open_ledger(str(tmp_path / "ledger"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for key, pid in ((Key(4, 1), HERE), (Key(5, 2), ABOVE), (Key(6, 1), ended.pid)):
        os.write(ledger.fd, Record(EXEC, key, pid, values=(1, 1)).pack())
    yield ledger
    os.close(ledger.fd)


def test_what_runs_counts_as_well(tmp_path, ledger):
    (tmp_path / "2.1").touch()

    assert 5 == highest_job(tmp_path, tmp_path)


def test_whoever_runs_and_no_job_stands_for_is_a_stranger(tmp_path, ledger):
    waits = job(5, state=JobState.PENDING, attempt=1)  # it takes up its next attempt
    runs = job(4, state=JobState.RUNNING, attempt=1)

    assert [(Key(4, 1), HERE), (Key(5, 2), ABOVE)] == find_strangers(tmp_path, [])
    assert [(Key(4, 1), HERE)] == find_strangers(tmp_path, [waits])
    assert [] == find_strangers(tmp_path, [waits, runs])
