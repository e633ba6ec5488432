"""What becomes of tiers whose disks are not what they were, and of what a policy chooses."""

import contextlib
import subprocess

import pytest
from harness import until
from mounting import mount
from scratching import both_disks, disks, needs_root
from tiering import _lasting_tiered, make_tiered, tables

__all__ = ["_lasting_tiered", "both_disks", "disks", "make_tiered"]

pytestmark = [pytest.mark.node, needs_root]


@contextlib.contextmanager
def unmounted(disk, aside):
    """Its path is an empty directory of the disk below meanwhile."""
    aside.mkdir()
    mount("--bind", str(disk), str(aside))
    try:
        subprocess.run(["umount", disk], check=True)
        try:
            yield
        finally:
            mount("--bind", str(aside), str(disk))
    finally:
        subprocess.run(["umount", aside], check=True)
        aside.rmdir()


def test_a_disk_that_is_unmounted_under_the_daemon_gives_no_space(make_tiered, disks, tmp_path):
    server = make_tiered(text=tables(disks[:1]))
    with unmounted(disks[0], tmp_path / "aside"):
        job = server.sent("--scratch", "2M", text='echo x > "$IOD_SCRATCH/f"')
        until(lambda: "another file system" in server.says("why", str(job)), "its waiting")
        reason = server.says("why", str(job))
        state = server.job(job)["state"]
        below = list(disks[0].iterdir())

    assert f"tier fast: disk {disks[0]} is another file system than when" in reason
    assert ("PENDING", []) == (state, below)
    assert [("COMPLETED", 0)] == server.outcome(job)
    server.await_nothing()
