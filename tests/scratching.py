"""Two small disks of storage tiers, and jobs that have directories on them, for tests."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from mounting import make_file_system, mount

MIB = 1 << 20


@contextlib.contextmanager
def two_disks():
    """Two ext4 file systems of 16 MiB, mounted; unmounted again whatever happens."""
    place = Path(tempfile.mkdtemp(prefix="iod-disks-"))
    disks = []
    try:
        for name in ("fast", "slow"):
            image, disk = place / f"{name}.img", place / name
            make_file_system(image)
            disk.mkdir()
            mount("-o", "loop", str(image), str(disk))
            disks.append(disk)
        place.chmod(0o755)
        yield disks
    finally:
        for disk in disks:
            subprocess.run(["umount", "--recursive", disk], check=True)
        subprocess.run(["rm", "-rf", place], check=True)


@contextlib.contextmanager
def read_only(disk):
    """The disk as it is after an error; writable again whatever happens."""
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


def left(disks):
    """Names of jobs' directories that are there."""
    stores = [disk / ".iodaemon" for disk in disks]
    return sorted(p.name for s in stores if s.exists() for p in s.iterdir() if p.name != "id")


def place_of(disks):
    """The only directory of a job that is there."""
    [name] = left(disks)
    [place] = [disk / ".iodaemon" / name for disk in disks if (disk / ".iodaemon" / name).exists()]
    return place


@pytest.fixture(scope="module")
def both_disks():
    with two_disks() as disks:
        yield disks


@pytest.fixture
def disks(both_disks):
    yield both_disks
    remaining = left(both_disks)
    for name in remaining:  # they would fail all tests that follow
        subprocess.run(["rm", "-rf", *(d / ".iodaemon" / name for d in both_disks)], check=False)
    assert [] == remaining
    here = str(both_disks[0].parent)
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    assert sorted(map(str, both_disks)) == sorted(p for p in mounted if p.startswith(here))


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
