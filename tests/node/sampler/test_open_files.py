"""Which disks a job's open files lie on: fake trees, and real processes on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iodaemon.node.devices import find_device, find_mount_devices
from iodaemon.node.sampler.job_io import Position
from iodaemon.node.sampler.open_files import LOOKS, MOST_DESCRIPTORS, MOST_JOBS, PERIOD, OpenFiles
from iodaemon.node.sampler.proc_files import parse_mount

ROOT_MOUNT, DATA_MOUNT, DEV_MOUNT, NFS_MOUNT, PIPE = 20, 21, 22, 23, 9
MOUNTS = f"""\
{ROOT_MOUNT} 1 8:0 / / rw - ext4 /dev/sda rw
{DATA_MOUNT} {ROOT_MOUNT} 8:16 / /data rw - ext4 /dev/sdb rw
{DEV_MOUNT} {ROOT_MOUNT} 0:5 / /dev rw - devtmpfs udev rw
{NFS_MOUNT} {ROOT_MOUNT} 0:40 / /net rw - nfs4 server:/export rw
"""
DIRECTORY = 0o200000
JOB = 1


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
    """Looks at the files of jobs; the disks of each, as they are known now."""

    def __init__(self, root):
        self.root = root
        self.files = OpenFiles(root, Position())
        self.known = {}

    def add(self, job, members):
        self.files.add(job, members)
        self.known[job] = None

    def read(self):
        for job in self.known:  # all of them run
            self.files.note(job)
        for job, lines in self.files.read().items():
            self.known[job] = None if lines is None else self.disks_of(lines)
        return self.known

    def disks_of(self, lines):
        mounts = map(parse_mount, lines)
        found = [find_mount_devices(mount, root=self.root).devices for mount in mounts]
        return tuple(sorted({disk.id for devices in found for disk in devices}))


def looks_at(root, members):
    looks = Looks(root)
    looks.add(JOB, members)
    return looks


def look(tree, *pids):
    return looks_at(tree.root, lambda: list(pids)).read()[JOB]


STANDARD = {0: DEV_MOUNT, 1: ROOT_MOUNT, 2: ROOT_MOUNT}


def test_files_that_are_open_count_and_where_the_output_goes_does_not(tree):
    tree.process(5, {**STANDARD, 3: DATA_MOUNT})

    assert look(tree, 5) == ("sdb",)


def test_with_nothing_else_open_standard_input_and_output_count(tree):
    tree.process(5, {0: DATA_MOUNT, 1: ROOT_MOUNT, 2: PIPE})

    assert look(tree, 5) == ("sda", "sdb")


def test_with_no_file_open_the_working_directory_counts(tree):
    tree.process(5, {0: DEV_MOUNT, 1: PIPE, 2: PIPE}, cwd="/data/work")

    assert look(tree, 5) == ("sdb",)


def test_a_directory_that_is_open_does_not_count(tree):
    tree.process(5, {**STANDARD, 3: DATA_MOUNT, 4: ROOT_MOUNT}, directories={4})

    assert look(tree, 5) == ("sdb",)


def test_files_on_a_network_are_known_to_be_on_no_disk(tree):
    tree.process(5, {**STANDARD, 3: NFS_MOUNT})

    assert look(tree, 5) == ()


def test_all_processes_of_a_job_count(tree):
    tree.process(5, STANDARD)
    tree.process(6, {**STANDARD, 7: DATA_MOUNT})
    tree.process(7, {**STANDARD, 7: ROOT_MOUNT})

    assert look(tree, 5, 6, 7) == ("sda", "sdb")


def test_a_job_that_is_gone_is_unknown(tree):
    assert look(tree, 5) is None
    assert look(tree) is None


def test_no_more_than_so_many_descriptors_are_looked_at(tree):
    tree.process(5, {**STANDARD, **dict.fromkeys(range(3, 300), ROOT_MOUNT), 300: DATA_MOUNT})

    assert len(os.listdir(tree.root / "proc/5/fdinfo")) > MOST_DESCRIPTORS
    assert look(tree, 5) == ("sda",)


def test_a_file_closed_for_a_moment_still_counts_and_is_forgotten_later(tree):
    files = looks_at(tree.root, lambda: [5])

    def after_a_period():
        for _ in range(PERIOD):
            found = files.read()[JOB]
        return found

    tree.process(5, {**STANDARD, 3: DATA_MOUNT})
    seen = [after_a_period()]
    tree.process(5, {**STANDARD, 3: ROOT_MOUNT})
    seen += [after_a_period() for _ in range(LOOKS)]

    assert seen == [("sdb",), ("sda", "sdb"), ("sda",)]


def test_in_between_the_last_answer_holds_and_nothing_is_read(tree):
    tree.process(5, {**STANDARD, 3: DATA_MOUNT})
    asked = []

    def members():
        asked.append(1)
        return [5]

    files = looks_at(tree.root, members)
    answers = [files.read()[JOB] for _ in range(2 * PERIOD)]

    assert answers == [("sdb",)] * 2 * PERIOD
    assert len(asked) == 2


def test_a_job_that_has_not_run_is_not_looked_at_again(tree):
    tree.process(5, {**STANDARD, 3: DATA_MOUNT})
    asked = []
    files = OpenFiles(tree.root, Position())
    files.add(JOB, lambda: asked.append(1) or [5])
    files.note(JOB)
    told = [bool(files.read()) for _ in range(3 * PERIOD)]

    assert ([True], 1) == (told[:1], len(asked))
    assert not any(told[1:])


def test_many_jobs_are_looked_at_in_turn(tree):
    files = Looks(tree.root)
    tree.process(5, {**STANDARD, 3: DATA_MOUNT})
    for number in range(1, 3 * MOST_JOBS + 1):
        files.add(number, lambda: [5])

    known = [sum(1 for found in files.read().values() if found is not None) for _ in range(3)]

    assert known == [MOST_JOBS, 2 * MOST_JOBS, 3 * MOST_JOBS]


def test_a_mount_number_that_is_used_again_is_the_new_mount(tree):
    files = looks_at(tree.root, lambda: [5])
    tree.process(5, {**STANDARD, 3: DATA_MOUNT})
    first = files.read()[JOB]
    tree.mounts(MOUNTS.replace("8:16 / /data", "8:0 /x /data"))
    for _ in range(LOOKS * PERIOD):
        last = files.read()[JOB]

    assert (first, last) == (("sdb",), ("sda",))


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
def test_a_real_process_is_on_the_disk_of_its_file(tmp_path, is_open):
    (tmp_path / "data").write_text("x")
    files = [tmp_path / "data"] if is_open else []
    with held_open(*files, cwd="/dev/shm" if is_open else tmp_path) as process:
        found = looks_at(Path("/"), lambda: [process.pid]).read()[JOB]
        process.communicate()

    assert found == disks(tmp_path)


@pytest.mark.node
def test_a_real_process_that_ended_is_unknown(tmp_path):
    with held_open(cwd=tmp_path) as process:
        process.communicate()

    assert looks_at(Path("/"), lambda: [process.pid]).read() == {JOB: None}
