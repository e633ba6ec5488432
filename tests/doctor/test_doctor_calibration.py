"""What the examination says of calibrations: none, good, and what does not fit any more."""

import os

import pytest
from calibrating import calibration, leaf

from iodaemon.calibration.store import keep, kept_file
from iodaemon.daemon.calibrating import Measured
from iodaemon.doctor.calibration import examine_calibration, judge_calibration
from iodaemon.doctor.finding import Verdict
from iodaemon.node.devices import find_identity, leaf_devices

ROW = {"device": "sda", "measured_s": 1.79e9, "loaded_bytes_per_s": 5e7, "problem": ""}


def test_that_nothing_was_measured_is_a_lack_with_a_remedy():
    (finding,) = judge_calibration([])

    assert finding.verdict is Verdict.LACKING
    assert "iod calibrate" in finding.remedy


def test_a_disk_that_was_measured_is_named_with_what_it_carries():
    (finding,) = judge_calibration([ROW])

    assert finding.verdict is Verdict.OK
    assert finding.what == "calibration of sda"
    assert "50 MB/s" in finding.measured


def test_what_does_not_fit_is_a_lack():
    (finding,) = judge_calibration([{**ROW, "problem": "it moves 400 MB/s"}])

    assert finding.verdict is Verdict.LACKING
    assert "it moves 400 MB/s" in finding.measured
    assert finding.remedy


def test_the_daemon_that_runs_has_the_word(tmp_path):
    (finding,) = examine_calibration(tmp_path, {"calibration": [ROW]})
    (none,) = examine_calibration(tmp_path, {})

    assert finding.verdict is Verdict.OK
    assert none.verdict is Verdict.LACKING


@pytest.mark.parametrize(
    ("kernel", "verdict"),
    [(os.uname().release, Verdict.OK), ("2.6.32", Verdict.LACKING)],
    ids=["same", "other"],
)
def test_without_a_daemon_it_is_what_one_would_find(tmp_path, kernel, verdict):
    disk = leaf_devices()[0]
    made = calibration(leaf(disk.id, find_identity(disk.id)), kernel=kernel)
    keep(tmp_path, made)

    (finding,) = examine_calibration(tmp_path, None)

    assert finding.verdict is verdict
    assert finding.what == f"calibration of {disk.id}"


def test_a_disk_that_is_not_here_is_none_of_this_machines(tmp_path):
    keep(tmp_path, calibration(leaf(identity="serial of another machine")))

    (finding,) = examine_calibration(tmp_path, None)

    assert "no disk of this machine" in finding.measured


@pytest.mark.parametrize("what", ["none", "a link", "a directory", "of a newer iodaemon"])
def test_a_file_that_is_none_is_told_as_the_daemon_tells_it(tmp_path, what):
    match what:
        case "none":
            kept_file(tmp_path).write_text("{")
        case "a link":
            kept_file(tmp_path).symlink_to("/dev/null")
        case "a directory":
            kept_file(tmp_path).mkdir()
        case _:
            kept_file(tmp_path).write_text('{"version": 99}')
    measured = Measured(tmp_path, {})
    measured.read(())

    (finding,) = examine_calibration(tmp_path, None)
    (beside_a_daemon,) = examine_calibration(tmp_path, {})  # which has not read it since

    assert measured.problem == f"{finding.measured}; {finding.remedy}"
    assert (Verdict.BROKEN, finding) == (finding.verdict, beside_a_daemon)


def test_a_calibration_that_does_not_fit_has_one_cure(tmp_path, caplog):
    disk = leaf_devices()[0]
    keep(tmp_path, calibration(leaf(disk.id, find_identity(disk.id)), kernel="2.6.32"))
    Measured(tmp_path, {disk.id: find_identity(disk.id)}).read((disk,))

    (finding,) = examine_calibration(tmp_path, None)

    assert f"; {finding.remedy}" in caplog.text


@pytest.mark.parametrize(
    ("told", "shown", "remedy"),
    [
        (
            "/s/c: no calibration: cut; remove it, 'iod calibrate PATH' makes a new one",
            "/s/c: no calibration: cut, when the daemon read it",
            "remove it, 'iod calibrate PATH' makes a new one; then 'iod config reload'",
        ),
        (
            "/s/c: Permission denied; make it readable for the daemon, then 'iod config reload'",
            "/s/c: Permission denied, when the daemon read it",
            "make it readable for the daemon, then 'iod config reload'",
        ),
    ],
    ids=["damaged", "unreadable"],
)
def test_what_the_daemon_says_is_wrong_with_the_file_is_a_finding(tmp_path, told, shown, remedy):
    (finding,) = examine_calibration(tmp_path, {"calibration_problem": told})

    assert (Verdict.BROKEN, shown, remedy) == (finding.verdict, finding.measured, finding.remedy)


def test_who_may_read_the_file_is_told_by_the_daemons_words_as_well(tmp_path):
    kept_file(tmp_path).write_text("{")
    told = f"{kept_file(tmp_path)}: no calibration: cut; remove it"

    (finding,) = examine_calibration(tmp_path, {"calibration_problem": told})

    assert finding.remedy == "remove it; then 'iod config reload'"


def test_the_remedies_name_what_is_to_be_given_as_the_help_does():
    (none,) = judge_calibration([])
    (old,) = judge_calibration([{**ROW, "problem": "old"}])

    assert all(each.remedy.startswith("'iod calibrate PATH' ") for each in (none, old))
