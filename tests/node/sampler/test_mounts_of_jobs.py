"""What a job mounts in a namespace of its own costs the daemon little, and leads it nowhere."""

import os
from pathlib import Path

import pytest

from iodaemon.errors import NoData
from iodaemon.node import devices
from iodaemon.node.devices import find_mount_devices
from iodaemon.node.sampler.job_io import Position
from iodaemon.node.sampler.open_files import MOST_TABLE_BYTES, OpenFiles
from iodaemon.node.sampler.proc_files import parse_mountinfo, read_file

OWN = b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
OVERLAY = (
    b"30 1 0:50 / / rw - overlay overlay rw,lowerdir=/dead/lower:/dead/lower2,upperdir=/dead/up\n"
)
FUSE = b"31 30 0:51 / /f rw - fuse.x /dev/shm/link rw\n"


@pytest.fixture
def untouched(tmp_path, monkeypatch):
    """Fails when a path is looked at that a mount's options name."""

    def refuse(path, *args, **options):
        text = os.fspath(path) if not isinstance(path, int) else ""
        assert "dead" not in text, text
        assert "shm/link" not in text, text
        return real(path, *args, **options)

    real = os.stat
    reals = os.lstat
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_bytes(OWN)
    monkeypatch.setattr(devices.os, "stat", refuse)
    monkeypatch.setattr(
        devices.os, "lstat", lambda path, **options: (refuse(path), reals(path, **options))[1]
    )
    return tmp_path


@pytest.mark.parametrize("line", [OVERLAY, FUSE], ids=["overlay", "fuse"])
def test_no_path_that_a_jobs_mount_names_is_looked_at(untouched, line):
    (untouched / "dead").mkdir()
    mounts = parse_mountinfo(OVERLAY + FUSE)
    [mount] = parse_mountinfo(line)

    found = find_mount_devices(mount, mounts, untouched)

    assert () == found.devices  # no disk is in this root


def test_a_file_that_is_too_long_is_no_data(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 20_000)

    assert 20_000 == len(read_file(tmp_path / "file", 20_000))
    with pytest.raises(NoData, match="longer than 19999 bytes"):
        read_file(tmp_path / "file", 19_999)


def test_a_job_with_too_many_mounts_is_unknown_and_the_next_one_is_not(tmp_path):
    for pid, mounts in ((5, OWN * (MOST_TABLE_BYTES // len(OWN) + 300)), (6, OWN)):
        place = tmp_path / f"proc/{pid}"
        (place / "fdinfo").mkdir(parents=True)
        (place / "ns").mkdir()
        (place / "ns/mnt").symlink_to(f"mnt:[{pid}]")
        (place / "cwd").symlink_to("/")
        (place / "mountinfo").write_bytes(mounts)
    files = OpenFiles(Path(tmp_path), Position())

    assert files.look([5]) is None
    assert files.look([6]) is not None
