"""Old output of jobs goes, and nothing else."""

import os

from iodaemon.daemon.retention import find_old_outputs
from iodaemon.supervisor.ledger import Key


def make(outputs, name, ended_s):
    outputs.mkdir(exist_ok=True)
    (outputs / name).write_text("words")
    os.utime(outputs / name, (ended_s, ended_s))


def test_only_what_was_last_written_before_is_found(tmp_path):
    make(tmp_path, "1.1", 99.0)
    make(tmp_path, "1.2", 100.0)
    make(tmp_path, "2.1", 101.0)

    assert [Key(1, 1)] == find_old_outputs(tmp_path, 100.0)


def test_a_report_goes_with_the_output_it_is_of(tmp_path):
    for name, ended_s in (("1.1", 99.0), ("1.1.report", 101.0), ("2.1.report", 99.0)):
        make(tmp_path, name, ended_s)

    assert [Key(2, 1)] == find_old_outputs(tmp_path, 100.0)


def test_what_is_no_output_of_a_job_is_left_alone(tmp_path):
    for name in ("keep", "1.x", "1.1.1", "1.1.report.report", ".1.1", "01.1", "-1.1"):
        make(tmp_path, name, 1.0)

    assert [] == find_old_outputs(tmp_path, 100.0)
    assert [] == find_old_outputs(tmp_path / "none", 100.0)
