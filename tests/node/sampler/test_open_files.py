"""Which disks a job's open files lie on: fake trees, and real processes on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iodaemon.node import devices
from iodaemon.node.devices import find_device, find_mount_devices
from iodaemon.node.sampler.client import Track
from iodaemon.node.sampler.job_io import Position
from iodaemon.node.sampler.open_files import (
    MOST_DESCRIPTORS,
    MOST_JOBS,
    MOST_TABLE_BYTES,
    PERIOD,
    OpenFiles,
)
from iodaemon.node.sampler.proc_files import parse_mount, parse_mountinfo
from iodaemon.node.sampler.sweep import Sampler, Settings
from iodaemon.supervisor.ledger import Key

ROOT_MOUNT, DATA_MOUNT, DEV_MOUNT, NFS_MOUNT, PIPE = 20, 21, 22, 23, 9
MOUNTS = f"""\
{ROOT_MOUNT} 1 8:0 / / rw - ext4 /dev/sda rw
{DATA_MOUNT} {ROOT_MOUNT} 8:16 / /data rw - ext4 /dev/sdb rw
{DEV_MOUNT} {ROOT_MOUNT} 0:5 / /dev rw - devtmpfs udev rw
{NFS_MOUNT} {ROOT_MOUNT} 0:40 / /net rw - nfs4 server:/export rw
"""
DIRECTORY = 0o200000


class Tree:
    """A /proc and a /sys with two disks, and processes with open files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, number in (("sda", "8:0"), ("sdb", "8:16")):
            directory = root / "sys/devices" / name
            (directory / "slaves").mkdir(parents=True)
            (directory / "size").write_text("1000\n")
            link = root / "sys/dev/block" / number
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(directory)
        self.mounts(MOUNTS)

    def mounts(self, text: str) -> None:
        self.text = text
        for path in (self.root / "proc").glob("*/mountinfo"):
            path.write_text(text)

    def process(self, pid: int, fds: dict[int, int], *, cwd="/", directories=()) -> None:
        """Descriptors by number with the mount that each is on."""
        place = self.root / f"proc/{pid}"
        (place / "ns").mkdir(parents=True, exist_ok=True)
        (place / "fdinfo").mkdir(exist_ok=True)
        for link, target in (("ns/mnt", "mnt:[1]"), ("cwd", cwd)):
            (place / link).unlink(missing_ok=True)
            (place / link).symlink_to(target)
        (place / "mountinfo").write_text(self.text)
        for old in (place / "fdinfo").iterdir():
            old.unlink()
        for number, mount_id in fds.items():
            flags = 0o100000 | (DIRECTORY if number in directories else 0)
            text = f"pos:\t0\nflags:\t{flags:o}\nmnt_id:\t{mount_id}\nino:\t7\n"
            (place / f"fdinfo/{number}").write_text(text)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


class Looks:
    """Looks at the files of one job; its disks, as they are known now."""

    def __init__(self, root, members):
        self.root = root
        self.files = OpenFiles(root, Position())
        self.members = members
        self.track = Track(Key(1, 1), None, None)

    def read(self):
        self.files.begin()
        lines = self.files.look(self.members())
        self.track.take_look(None if lines is None else self.disks_of(lines))
        return self.track.devices

    def disks_of(self, lines):
        mounts = (parse_mount(line.encode("latin-1")) for line in lines)
        found = [find_mount_devices(mount, root=self.root).devices for mount in mounts]
        return frozenset(disk.id for devices in found for disk in devices)


def look(tree, *pids):
    return Looks(tree.root, lambda: list(pids)).read()


STANDARD = {0: DEV_MOUNT, 1: ROOT_MOUNT, 2: ROOT_MOUNT}


@pytest.mark.parametrize(
    ("fds", "more", "expected"),
    [
        # not where the output goes
        ({**STANDARD, 3: DATA_MOUNT}, {}, ("sdb",)),
        # but if nothing is open
        ({0: DATA_MOUNT, 1: ROOT_MOUNT, 2: PIPE}, {}, ("sda", "sdb")),
        # or the directory
        ({0: DEV_MOUNT, 1: PIPE, 2: PIPE}, {"cwd": "/data/work"}, ("sdb",)),
        # no folder
        ({**STANDARD, 3: DATA_MOUNT, 4: ROOT_MOUNT}, {"directories": {4}}, ("sdb",)),
        # a network is no disk
        ({**STANDARD, 3: NFS_MOUNT}, {}, ()),
    ],
)
def test_a_process_is_on_the_disks_of_its_open_files(tree, fds, more, expected):
    tree.process(5, fds, **more)

    assert look(tree, 5) == expected


def test_all_processes_of_a_job_count_and_one_that_is_gone_is_unknown(tree):
    assert look(tree, 5) is None
    assert look(tree) is None

    tree.process(5, STANDARD)
    tree.process(6, {**STANDARD, 7: DATA_MOUNT})
    tree.process(7, {**STANDARD, 7: ROOT_MOUNT})

    assert look(tree, 5, 6, 7) == ("sda", "sdb")


def test_no_more_than_so_many_descriptors_are_looked_at(tree):
    tree.process(5, {**STANDARD, **dict.fromkeys(range(3, 300), ROOT_MOUNT), 300: DATA_MOUNT})

    assert len(os.listdir(tree.root / "proc/5/fdinfo")) > MOST_DESCRIPTORS
    assert look(tree, 5) == ("sda",)


def test_a_file_closed_for_a_moment_still_counts_and_is_forgotten_later(tree):
    files = Looks(tree.root, lambda: [5])
    tree.process(5, {**STANDARD, 3: DATA_MOUNT})
    seen = [files.read()]
    tree.process(5, {**STANDARD, 3: ROOT_MOUNT})
    seen += [files.read() for _ in range(2)]

    assert seen == [("sdb",), ("sda", "sdb"), ("sda",)]


@pytest.mark.parametrize("jobs", [1, 3 * MOST_JOBS * PERIOD])
def test_jobs_that_run_are_looked_at_in_turn_and_few_in_one_sweep(tmp_path, jobs):
    settings = Settings(address="", parent=0, uid=0, jobs=str(tmp_path), root=str(tmp_path))
    sampler = Sampler(settings, {"devices": {}, "cpus": {}}, Position())
    looked = []
    request = {"jobs": [[number, 1, None, None] for number in range(1, jobs + 1)]}
    for _ in range(3 * PERIOD):
        answer = sampler.sweep(request)  # without a cgroup all are read each time
        looked.append([job for job, _, _ in answer["files"]])
        request = {}

    assert max(map(len, looked)) <= MOST_JOBS
    assert set(range(1, jobs + 1)) == set().union(*looked)


def test_a_mount_number_that_is_used_again_is_the_new_mount(tree):
    files = Looks(tree.root, lambda: [5])
    tree.process(5, {**STANDARD, 3: DATA_MOUNT})
    first = files.read()
    tree.mounts(MOUNTS.replace("8:16 / /data", "8:0 /x /data"))
    for _ in range(2):
        last = files.read()

    assert (first, last) == (("sdb",), ("sda",))


OVERLAY = (
    b"30 1 0:50 / / rw - overlay overlay rw,lowerdir=/dead/lower:/dead/lower2,upperdir=/dead/up\n"
)
FUSE = b"31 30 0:51 / /f rw - fuse.x /dev/shm/dead rw\n"


@pytest.mark.parametrize("line", [OVERLAY, FUSE], ids=["overlay", "fuse"])
def test_no_path_that_a_jobs_mount_names_is_looked_at(tree, monkeypatch, line):
    def refuse(path, *args, **options):
        assert isinstance(path, int) or "dead" not in os.fspath(path), path
        return real(path, *args, **options)

    (tree.root / "proc/self").mkdir(parents=True)
    (tree.root / "proc/self/mountinfo").write_text(MOUNTS)
    (tree.root / "dead").mkdir()
    real = os.stat
    monkeypatch.setattr(devices.os, "stat", refuse)
    monkeypatch.setattr(devices.os, "lstat", refuse)
    [mount] = parse_mountinfo(line)

    found = find_mount_devices(mount, parse_mountinfo(OVERLAY + FUSE), tree.root)

    assert () == found.devices  # no disk is below


def test_a_job_with_too_many_mounts_is_unknown_and_the_next_one_is_not(tree):
    for pid in (5, 6):
        tree.process(pid, {3: DATA_MOUNT})
        (tree.root / f"proc/{pid}/ns/mnt").unlink()
        (tree.root / f"proc/{pid}/ns/mnt").symlink_to(f"mnt:[{pid}]")
    (tree.root / "proc/5/mountinfo").write_text(MOUNTS * (MOST_TABLE_BYTES // len(MOUNTS) + 1))

    assert look(tree, 5) is None
    assert look(tree, 6) == ("sdb",)


# -- real processes --------------------------------------------------------------------------------


def held_open(*paths, cwd):
    """A process that has these files open, once it has said so."""
    code = "import sys; f = [open(p) for p in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=cwd,
    )
    process.stdout.readline()
    return process


def disks(path):
    return tuple(sorted(device.id for device in find_device(path).devices))


@pytest.mark.node
@pytest.mark.parametrize("is_open", [True, False], ids=["open file", "working directory alone"])
def test_a_real_process_is_on_the_disk_of_its_file_and_unknown_once_it_ended(tmp_path, is_open):
    (tmp_path / "data").write_text("x")
    files = [tmp_path / "data"] if is_open else []
    with held_open(*files, cwd="/dev/shm" if is_open else tmp_path) as process:
        found = Looks(Path("/"), lambda: [process.pid]).read()
        process.communicate()

    assert found == disks(tmp_path)
    assert Looks(Path("/"), lambda: [process.pid]).read() is None
