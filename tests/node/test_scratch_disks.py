"""Disks of tiers that stop working under jobs: told with path and cure, as the disk's own fault."""

import contextlib
import errno
import math
import os

import pytest
from harness import means
from scratching import both_disks, disks, jobs, needs_root, read_only, share

from iodaemon.backend.linux import scratch
from iodaemon.backend.linux.protocol import SCRATCH_FILE
from iodaemon.backend.linux.store import Store

__all__ = ["both_disks", "disks", "jobs", "means"]

pytestmark = [pytest.mark.node, needs_root]


@pytest.mark.parametrize("is_used", [False, True])
def test_a_disk_that_is_read_only_is_named_with_its_tier_and_the_cure(jobs, is_used):
    disk = jobs.disks[0]
    if is_used:
        with contextlib.closing(Store(str(disk), new_on="")) as store:
            store.identify()
    with read_only(disk):
        status = jobs.run("true", [{**share(disk), "tier": "fast"}])

    assert f"tier fast: disk {disk} is read-only; mount it writable" == status["never_ran"]
    assert (str(disk), None) == (status["disk"], status.get("holds"))


def test_what_cannot_be_removed_from_a_read_only_disk_names_the_tier_and_the_cure(disks, tmp_path):
    [planned] = scratch.plan("1-1", [{**share(disks[0]), "tier": "fast"}])
    scratch.make(str(tmp_path), [planned], os.geteuid(), None)

    with read_only(disks[0]), pytest.raises(scratch.KeptError) as kept:
        scratch.remove(str(tmp_path), math.inf)
    scratch.remove(str(tmp_path), math.inf)

    told = f"tier fast: disk {disks[0]} is read-only; mount it writable"
    assert str(kept.value).endswith(f": {told}")
    assert not (disks[0] / ".iodaemon" / planned["name"]).exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EIO, "does not work (Input/output error); see"),
        (errno.EROFS, "is read-only; mount it writable"),
        (errno.EDQUOT, ""),
    ],
)
def test_an_error_is_the_disks_or_the_users(disks, number, words):
    with contextlib.closing(Store(str(disks[0]), new_on="", tier="fast")) as store:
        told = store.trouble(OSError(number, os.strerror(number)))

    assert bool(words) == isinstance(told, scratch.DiskError)
    assert str(disks[0]) in str(told)
    assert (words or os.strerror(number)) in str(told)


def test_a_jobs_directory_that_cannot_be_written_to_is_named(disks, tmp_path):
    shares = scratch.plan("1-1", [share(disks[0])])

    with pytest.raises(scratch.ScratchError, match=SCRATCH_FILE):
        scratch.make(str(tmp_path / "none"), shares, 0, None)
