"""What the examination finds of the disks of storage tiers."""

import pytest

from iodaemon.config.tier import DiskTable, TierTable
from iodaemon.core.tier import DiskFacts
from iodaemon.doctor.finding import Verdict
from iodaemon.doctor.tier import examine_tiers, judge_disks

GIB = 2**30
TABLES = {
    "fast": TierTable(disk=(DiskTable(path="/a", capacity_bytes=10 * GIB),)),
    "slow": TierTable(bandwidth_bytes_per_s=1e8),
}


def judged(allocated=0, **changes):
    made = {"filesystem": "7", "total_bytes": 20 * GIB, "free_bytes": 15 * GIB, "kind": "ssd"}
    facts = {"/a": DiskFacts(**(made | {"description": "ext4 on disk sda"} | changes))}
    [finding] = judge_disks(TABLES, facts, root_filesystem="1", allocated={"/a": allocated})
    return finding


def test_a_disk_with_room_for_what_it_promises_is_ok():
    finding = judged()

    assert Verdict.OK is finding.verdict
    assert "/a: ssd, ext4 on disk sda; 10 GiB for jobs, 15 GiB free" == finding.measured


def test_what_jobs_have_written_is_no_foreign_file():
    assert Verdict.OK is judged(free_bytes=2 * GIB, allocated=8 * GIB).verdict
    assert Verdict.LACKING is judged(free_bytes=2 * GIB, allocated=7 * GIB).verdict


def test_a_disk_on_the_filesystem_of_root_is_told_for_something_may_not_be_mounted():
    finding = judged(filesystem="1")

    assert Verdict.LACKING is finding.verdict
    assert "it is on the filesystem of /" in finding.measured


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"problem": "does not exist; make it"}, "tier fast: disk /a does not exist"),
        ({"is_read_only": True}, "tier fast: disk /a is on a read-only filesystem"),
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
    tables = {"fast": TierTable(disk=(DiskTable(path=str(tmp_path)),))}
    rows = [{"disk": str(tmp_path), "size_bytes": 5}, {"disk": "/other", "size_bytes": 7}]

    [finding] = examine_tiers(tables, {"allocated": rows})

    assert 5 == finding.values["promised_bytes"]
    assert finding.values["capacity_bytes"] > 0
    assert [] == list(examine_tiers({}, None))
