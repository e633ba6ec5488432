"""Old output of jobs goes, and nothing else."""

import os

import pytest
from builders import job

from iodaemon.core.job import DiskId, JobState, Share, TierName
from iodaemon.daemon.retention import find_old_outputs
from iodaemon.errors import JournalError
from iodaemon.supervisor.ledger import Key

SHARE = Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=1)


def make(outputs, name, ended_s):
    outputs.mkdir(exist_ok=True)
    (outputs / name).write_text("words")
    os.utime(outputs / name, (ended_s, ended_s))


def found(outputs, records=()):
    by_id = {each.id: each for each in records}
    return find_old_outputs(outputs, 100.0, by_id.get)


def test_only_what_was_last_written_before_is_found(tmp_path):
    make(tmp_path, "1.1", 99.0)
    make(tmp_path, "1.2", 100.0)
    make(tmp_path, "2.1", 101.0)

    assert [Key(1, 1)] == found(tmp_path)


def test_a_report_goes_with_the_output_it_is_of(tmp_path):
    for name, ended_s in (("1.1", 99.0), ("1.1.report", 101.0), ("2.1.report", 99.0)):
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
