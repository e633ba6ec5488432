"""Old job directories go, and nothing else."""

import logging
import os
import subprocess

import pytest

from iodaemon.backend.linux.protocol import STATUS_FILE
from iodaemon.daemon.retention import remove_old_directories


def make(jobs, name, ended_s=None):
    directory = jobs / name
    directory.mkdir(parents=True)
    (directory / "output").write_text("words")
    if ended_s is not None:
        status = directory / STATUS_FILE
        status.write_text("{}")
        os.utime(status, (ended_s, ended_s))
    return directory


def names(jobs):
    return sorted(os.listdir(jobs))


@pytest.fixture
def jobs(tmp_path):
    return tmp_path / "jobs"


def test_only_directories_of_jobs_that_ended_before_are_removed(jobs):
    make(jobs, "1.1", ended_s=99.0)
    make(jobs, "1.2", ended_s=100.0)
    make(jobs, "2.1", ended_s=101.0)
    make(jobs, "3.1")

    assert 1 == remove_old_directories(jobs, 100.0)
    assert ["1.2", "2.1", "3.1"] == names(jobs)


def test_what_is_no_job_directory_is_left_alone(jobs, tmp_path):
    make(jobs, "keep", ended_s=1.0)
    make(jobs, "1.x", ended_s=1.0)
    make(tmp_path, "4.1", ended_s=1.0)
    (jobs / "5.1").write_text("a file")
    (jobs / "6.1").symlink_to(tmp_path / "4.1")

    assert 0 == remove_old_directories(jobs, 100.0)
    assert ["1.x", "5.1", "6.1", "keep"] == names(jobs)
    assert (tmp_path / "4.1" / "output").exists()


def test_without_the_directory_there_is_nothing_to_remove(jobs):
    assert 0 == remove_old_directories(jobs, 100.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a file that cannot be removed")
def test_one_that_cannot_be_removed_is_said_and_does_not_stop_the_others(jobs, caplog):
    stubborn = make(jobs, "1.1", ended_s=1.0)
    make(jobs, "2.1", ended_s=1.0)
    if subprocess.run(["chattr", "+i", stubborn / "output"], check=False).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        with caplog.at_level(logging.WARNING):
            removed = remove_old_directories(jobs, 100.0)
    finally:
        subprocess.run(["chattr", "-i", stubborn / "output"], check=True)

    assert 1 == removed
    assert ["1.1"] == names(jobs)
    assert "event=retire_failed" in caplog.text
    assert "1.1" in caplog.text
