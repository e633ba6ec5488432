"""What the examination finds of disks: calibrations, storage tiers, room for output."""

import os
import tempfile

import pytest
from calibrating import calibration, leaf
from mounting import small_disk
from test_doctor_service import as_nobody

from iodaemon.calibration.store import keep, kept_file
from iodaemon.config.tier import DiskTable, TierTable, build_tiers
from iodaemon.core.storage import DiskFacts
from iodaemon.daemon.calibrating import Measured
from iodaemon.doctor.disks import (
    check_calibration,
    check_output_disk,
    check_tiers,
    judge_tiers,
)
from iodaemon.doctor.report import Verdict
from iodaemon.node.devices import find_identity, leaf_devices
from iodaemon.node.tier_disk import probe_disk
from iodaemon.supervisor import disk_trouble, scratch

# -- calibrations ----------------------------------------------------------------------------------

ROW = {"device": "sda", "measured_s": 1.79e9, "loaded_bytes_per_s": 5e7, "problem": ""}


def test_the_daemon_that_runs_has_the_word(tmp_path):
    (finding,) = check_calibration(tmp_path, {"calibration": [ROW]})
    (none,) = check_calibration(tmp_path, {})

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

    (finding,) = check_calibration(tmp_path, None)

    assert finding.verdict is verdict
    assert finding.what == f"calibration of {disk.id}"


def test_a_disk_that_is_not_here_is_none_of_this_machines(tmp_path):
    keep(tmp_path, calibration(leaf(identity="serial of another machine")))

    (finding,) = check_calibration(tmp_path, None)

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

    (finding,) = check_calibration(tmp_path, None)
    (beside_a_daemon,) = check_calibration(tmp_path, {})  # which has not read it since

    assert measured.problem == f"{finding.measured}; {finding.remedy}"
    assert (Verdict.BROKEN, finding) == (finding.verdict, beside_a_daemon)


def test_a_calibration_that_does_not_fit_has_one_cure(tmp_path, caplog):
    disk = leaf_devices()[0]
    keep(tmp_path, calibration(leaf(disk.id, find_identity(disk.id)), kernel="2.6.32"))
    Measured(tmp_path, {disk.id: find_identity(disk.id)}).read((disk,))

    (finding,) = check_calibration(tmp_path, None)

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
    kept_file(tmp_path).write_text("{")  # what it is now says less than the daemon's word
    (finding,) = check_calibration(tmp_path, {"calibration_problem": told})

    assert (Verdict.BROKEN, shown, remedy) == (finding.verdict, finding.measured, finding.remedy)


# -- storage tiers ---------------------------------------------------------------------------------

GIB = 2**30
TABLES = {
    "fast": TierTable(disk=(DiskTable(path="/a", capacity_bytes=10 * GIB),)),
    "slow": TierTable(bandwidth_bytes_per_s=1e8),
}


def judged(allocated=0, tables=TABLES, **changes):
    made = {"filesystem": "7", "total_bytes": 20 * GIB, "free_bytes": 15 * GIB, "kind": "ssd"}
    facts = {"/a": DiskFacts(**(made | {"description": "ext4 on disk sda"} | changes))}
    [finding] = judge_tiers(tables, facts, allocated={"/a": allocated})
    return finding


def test_a_disk_with_room_for_what_it_promises_is_ok():
    finding = judged()

    assert Verdict.OK is finding.verdict
    assert "/a: ssd, ext4 on disk sda; 10 GiB for jobs, 15 GiB free" == finding.measured


def test_what_jobs_have_written_is_no_foreign_file():
    assert Verdict.OK is judged(free_bytes=2 * GIB, allocated=8 * GIB).verdict
    assert Verdict.LACKING is judged(free_bytes=2 * GIB, allocated=7 * GIB).verdict


def test_what_a_filesystem_has_for_itself_is_no_foreign_file():
    empty = {"total_bytes": 10 * GIB, "free_bytes": 10 * GIB - GIB // 20}

    assert Verdict.OK is judged(**empty).verdict
    assert Verdict.LACKING is judged(**(empty | {"free_bytes": 9 * GIB})).verdict


def built(allocated=0, **changes):
    made = {"filesystem": "7", "total_bytes": 20 * GIB, "free_bytes": 15 * GIB, "kind": "ssd"}
    fast, _ = build_tiers(TABLES, {"/a": DiskFacts(**(made | changes))}, {"/a": allocated})
    return fast.disks[0].others_bytes


def test_the_daemon_has_of_a_disk_what_the_examination_finds_lacking():
    assert 0 == built()
    assert 0 == built(free_bytes=2 * GIB, allocated=8 * GIB)
    assert GIB == built(free_bytes=2 * GIB, allocated=7 * GIB)
    assert build_tiers(TABLES, None)[0].disks[0].others_bytes is None


def test_a_disk_that_is_meant_to_be_on_the_filesystem_of_root_is_ok():
    table = TierTable(disk=(DiskTable(path="/a", capacity_bytes=10 * GIB, on_root=True),))
    finding = judged(is_on_root=True, tables={"fast": table})

    assert Verdict.OK is finding.verdict
    assert finding.measured.endswith("15 GiB free, on the filesystem of /")


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"problem": "does not exist; make it"}, "tier fast: disk /a does not exist"),
        ({"problem": disk_trouble.READ_ONLY}, "tier fast: disk /a is read-only"),
        ({"is_on_root": True}, "tier fast: disk /a is on the filesystem of /"),
        (
            {"total_bytes": 5 * GIB},
            "tier fast: disk /a is to have 10 GiB, and its filesystem has 5 GiB",
        ),
    ],
)
def test_what_keeps_a_daemon_from_starting_is_broken(changes, shown):
    finding = judged(**changes)

    assert (Verdict.BROKEN, shown) == (finding.verdict, finding.measured)
    assert finding.remedy


def test_this_machine_is_looked_at(tmp_path):
    tables = {"fast": TierTable(disk=(DiskTable(path=str(tmp_path), on_root=True),))}
    rows = [{"disk": str(tmp_path), "size_bytes": 5}, {"disk": "/other", "size_bytes": 7}]

    [finding] = check_tiers(tables, {"allocated": rows}, is_shared=False)

    assert 5 == finding.values["promised_bytes"]
    assert finding.values["capacity_bytes"] > 0
    assert [] == list(check_tiers({}, None, is_shared=True))


def test_a_disk_that_jobs_cannot_use_is_broken_though_the_daemon_starts(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    disk.chmod(0o777)
    tables = {"fast": TierTable(disk=(DiskTable(path=str(disk), on_root=True),))}
    [finding] = check_tiers(tables, None, is_shared=False)
    disk.chmod(0o1777)
    [sticky] = check_tiers(tables, None, is_shared=False)

    assert Verdict.BROKEN is finding.verdict
    assert "no job can use its space there" == finding.cost
    assert f"{disk} belongs to uid {os.geteuid()}, mode 0777" in finding.measured
    assert f"chmod go-w {disk}" in finding.remedy
    assert Verdict.BROKEN is not sticky.verdict


@pytest.mark.skipif(os.geteuid() != 0, reason="what is not root's is told first")
def test_a_disk_that_users_cannot_reach_is_told(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "disk").mkdir()
    disk = DiskTable(path=str(tmp_path / "disk"), on_root=True)
    [finding] = check_tiers({"fast": TierTable(disk=(disk,))}, None, is_shared=True)
    [own] = check_tiers({"fast": TierTable(disk=(disk,))}, None, is_shared=False)

    assert finding.measured.endswith(f"is closed to users, who may not enter {tmp_path}")
    assert f"'chmod o+x {tmp_path}'" == finding.remedy
    assert Verdict.BROKEN is not own.verdict


@pytest.mark.parametrize(("allocated", "is_told"), [(0, True), (99, True), (100, False)])
def test_a_full_disk_is_a_fault_unless_jobs_were_promised_all_of_it(allocated, is_told):
    facts = {"/a": DiskFacts(total_bytes=100, free_bytes=0, lack=disk_trouble.FULL)}
    tables = {"fast": TierTable(disk=(DiskTable(path="/a", kind="ssd"),))}
    [finding] = judge_tiers(tables, facts, allocated={"/a": allocated})

    assert is_told == (Verdict.BROKEN is finding.verdict)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")
@pytest.mark.parametrize(
    ("uid", "mode", "told"),
    [
        (65534, 0o755, ""),
        (0, 0o1777, ""),
        (
            65534,
            0o777,
            (
                "belongs to uid 65534, mode 0777, so that others may change it; "
                "'chown 65534 DISK; chmod go-w DISK'"
            ),
        ),
        (0, 0o755, "may not be written to by uid 65534; name a directory of your own"),
    ],
)
def test_a_users_own_daemon_tells_what_that_user_can_do(uid, mode, told):
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        disk = os.path.join(place, "disk")
        os.mkdir(disk)
        os.chown(disk, uid, uid)
        os.chmod(disk, mode)
        with as_nobody():
            looked = probe_disk(disk).obstacle
            try:
                scratch.make(disk, "1.1-a", os.geteuid(), None, None)
                met = ""
            except scratch.ScratchError as error:
                met = str(error)

    told = told.replace("DISK", disk)
    assert (told, told) == (looked, met)


# -- the output ------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [True, False])
def test_two_directories_of_one_filesystem_share_its_room(tmp_path, made):
    state, output = tmp_path / "state", tmp_path / "output"
    if made:
        state.mkdir()
        output.mkdir()

    found = check_output_disk(state, output)

    assert Verdict.LACKING is found.verdict
    assert f"{output} is " in found.measured
    assert "the journal's filesystem" in found.measured
    assert "output_max" in found.cost
    assert "supervisor_dir" in found.remedy
    assert {"shared": True} == found.values


def test_a_filesystem_of_its_own_is_ok(tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    with small_disk(output, kib=1024):
        found = check_output_disk(tmp_path / "state", output / "jobs")

    assert Verdict.OK is found.verdict
    assert {"shared": False} == found.values
