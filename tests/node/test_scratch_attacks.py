"""What a user may lay into a directory that root will remove: nothing outside is touched."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import until
from keeping import NOBODY, ServiceKeeper
from mounting import make_file_system, mount
from scratching import both_disks, disks, jobs, left, needs_root, share

from iodaemon.backend.linux import beneath
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.scratch_desk import ScratchDesk
from iodaemon.backend.linux.scratch_tree import (
    KeptError,
    UnfinishedError,
    measure_tree,
    remove_tree,
)

__all__ = ["both_disks", "disks", "jobs"]

pytestmark = [pytest.mark.node, needs_root]

GET_FLAGS, SET_FLAGS, IMMUTABLE = 0x80086601, 0x40086602, 0x10  # FS_IOC_GETFLAGS; FS_IMMUTABLE_FL
DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(int(sys.argv[2])):
    os.mkdir("d")
    os.chdir("d")
open("leaf", "w").close()
"""
SWAPS = """
import os, sys
os.chdir(sys.argv[1])
os.setuid(int(sys.argv[3]))
print("go", flush=True)
while True:
    for name in "abcdefgh":
        try:
            os.rename(name, "aside")
            os.symlink(sys.argv[2], name)
            os.unlink(name)
            os.rename("aside", name)
        except OSError:
            try:
                os.makedirs(name + "/x/y")
            except OSError:
                pass
"""
"""In a directory that is being removed, directories become links to another and back."""
FILLS = """
import os, sys
os.chdir(sys.argv[1])
os.setuid(int(sys.argv[2]))
os.mkdir("sub")
os.chdir("sub")
print("go", flush=True)
n = 0
while True:
    try:
        open(str(n), "w").close()
    except OSError:
        pass
    n += 1
"""


@pytest.fixture
def store(both_disks):
    """A directory of root's on a disk, with a tree named ``tree`` of another user's."""
    path = both_disks[0] / "store"
    (path / "tree").mkdir(parents=True)
    os.chown(path / "tree", NOBODY.pw_uid, NOBODY.pw_gid)
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


@pytest.fixture
def precious(both_disks):
    """A file of root's that must outlive all this."""
    path = both_disks[0] / "precious"
    path.mkdir()
    (path / "file").write_text("before")
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def remove(store, within_s=20.0):
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
    try:
        remove_tree(fd, "tree", time.monotonic() + within_s)
    finally:
        os.close(fd)


def measure(store, within_s=20.0):
    fd = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return measure_tree(fd, "tree", time.monotonic() + within_s)
    finally:
        os.close(fd)


@pytest.fixture(params=["openat2", "an older kernel"])
def _any_kernel(request, monkeypatch):
    if request.param != "openat2":
        monkeypatch.setattr(beneath, "_SYS_OPENAT2", 100_000)


def test_links_are_removed_and_not_followed(store, precious):
    tree = store / "tree"
    (tree / "to_directory").symlink_to(precious)
    (tree / "to_file").symlink_to(precious / "file")
    (tree / "up").symlink_to("../..")
    (tree / "loop").symlink_to("loop")
    remove(store)

    assert [] == list(store.iterdir())
    assert "before" == (precious / "file").read_text()


def test_another_name_of_a_file_elsewhere_keeps_the_file(store, precious):
    os.link(precious / "file", store / "tree" / "name")
    remove(store)

    assert "before" == (precious / "file").read_text()


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_a_user_mounted_by_fuse_is_unmounted_and_never_asked(store, kind):
    """Nobody answers for it."""
    point = store / "tree" / "point"
    point.mkdir() if kind == "directory" else point.touch()
    mode = "40000" if kind == "directory" else "100000"
    with open("/dev/fuse", "r+b", buffering=0) as device:
        text = f"fd={device.fileno()},rootmode={mode},user_id={NOBODY.pw_uid},group_id=0"
        libc = ctypes.CDLL(None)
        done = libc.mount(b"it", bytes(point), b"fuse", 6, f"{text},allow_other".encode())
        try:
            usage = measure(store)
            remove(store)
        finally:
            libc.umount2(bytes(point), 2)

    assert 0 == done
    assert not usage.is_all
    assert [] == list(store.iterdir())


@pytest.mark.usefixtures("_any_kernel")
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_what_is_mounted_within_is_not_entered_and_the_rest_goes(store, precious, kind):
    point = store / "tree" / "point"
    point.mkdir()
    (store / "tree" / "other").write_text("x")
    mount(*(("--bind", str(precious)) if kind == "bind" else ("-t", "tmpfs", "none")), str(point))
    (point / "file").write_text("before")
    try:
        usage = measure(store)
        with pytest.raises(KeptError, match="mounted at 'point'"):
            remove(store)
        rest = [path.name for path in (store / "tree").iterdir()]
        inside = (point / "file").read_text()
    finally:
        subprocess.run(["umount", point], check=True)
    remove(store)

    assert ["point"] == rest
    assert "before" == inside
    assert (2, False) == (usage.files, usage.is_all)
    assert [] == list(store.iterdir())


def test_a_mount_on_the_directory_itself_is_not_entered(store, precious):
    mount("--bind", str(precious), str(store / "tree"))
    try:
        with pytest.raises(OSError, match="cross-device"):
            remove(store)
    finally:
        subprocess.run(["umount", store / "tree"], check=True)

    assert "before" == (precious / "file").read_text()


def test_directories_that_nobody_may_read_go_as_well(store):
    inner = store / "tree" / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.chmod(0)
    inner.parent.chmod(0)
    usage = measure(store)
    remove(store)

    assert (2, True) == (usage.files, usage.is_all)
    assert [] == list(store.iterdir())


def test_names_that_are_no_text_and_kinds_that_are_no_files_go_as_well(store):
    tree = os.fsencode(store / "tree")
    os.mkdir(tree + b"/\xff\n\x1b[2J")
    os.mkfifo(tree + b"/pipe")
    os.mknod(tree + b"/device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    Path(os.fsdecode(tree), "x" * 255).touch()
    remove(store)

    assert [] == list(store.iterdir())


@pytest.mark.parametrize("depth", [40, 3_000])
def test_a_tree_deeper_than_paths_and_descriptors_go_is_removed(store, depth):
    subprocess.run([sys.executable, "-c", DEEP, store / "tree", str(depth)], check=True)
    usage = measure(store)
    remove(store)

    assert [] == list(store.iterdir())
    assert (depth + 1, True) == (usage.files, usage.is_all)


def test_a_deep_tree_that_cannot_be_moved_is_removed_all_the_same(store, monkeypatch):
    """As below a directory that is encrypted with a key that is gone: ENOKEY."""
    subprocess.run([sys.executable, "-c", DEEP, store / "tree", "40"], check=True)
    moves = []

    def refuse(*names, **_):
        moves.append(names)
        raise OSError(errno.ENOKEY, os.strerror(errno.ENOKEY))

    monkeypatch.setattr(os, "rename", refuse)
    remove(store)

    assert [] == list(store.iterdir())
    assert moves


def test_what_is_immutable_is_kept_and_named(store):
    file = store / "tree" / "fixed"
    file.touch()
    flags = bytearray(8)
    fd = os.open(file, os.O_RDONLY)
    fcntl.ioctl(fd, GET_FLAGS, flags)
    before = struct.unpack("l", flags)[0]
    fcntl.ioctl(fd, SET_FLAGS, struct.pack("l", before | IMMUTABLE))
    try:
        with pytest.raises(KeptError, match="'fixed' in it cannot be removed"):
            remove(store)
    finally:
        fcntl.ioctl(fd, SET_FLAGS, struct.pack("l", before))
        os.close(fd)
    remove(store)

    assert [] == list(store.iterdir())


def other(text, *words):
    """A process that runs this, once it says that it does."""
    command = [sys.executable, "-c", text, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


@pytest.mark.usefixtures("_any_kernel")
def test_directories_that_become_links_while_they_are_removed_lead_nowhere(store, precious):
    victim = precious / "x" / "y"
    victim.mkdir(parents=True)
    (victim / "file").write_text("before")
    for name in "abcdefgh":
        (store / "tree" / name / "x" / "y").mkdir(parents=True)
    subprocess.run(["chown", "-R", NOBODY.pw_name, store / "tree"], check=True)
    with other(SWAPS, store / "tree", precious, NOBODY.pw_uid) as process:
        until_s = time.monotonic() + 3.0
        while time.monotonic() < until_s:
            try:
                remove(store, 0.5)
            except (KeptError, UnfinishedError):
                continue
            break
        process.kill()
    remove(store)

    assert "before" == (victim / "file").read_text()
    assert "before" == (precious / "file").read_text()


def test_who_fills_a_directory_from_within_fills_it_no_more_once_it_is_entered(store):
    with other(FILLS, store / "tree", NOBODY.pw_uid) as process:
        remove(store)
        is_at_it = process.poll() is None
        process.kill()

    assert is_at_it
    assert [] == list(store.iterdir())


def test_a_directory_that_could_not_be_removed_is_closed_to_who_is_in_it(store):
    point = store / "tree" / "sub" / "point"
    point.mkdir(parents=True)
    os.chown(point.parent, NOBODY.pw_uid, NOBODY.pw_gid)
    mount("-t", "tmpfs", "none", str(point))
    try:
        with pytest.raises(KeptError):
            remove(store)
        found = point.parent.stat()
    finally:
        subprocess.run(["umount", point], check=True)

    assert (0, 0o40700) == (found.st_uid, found.st_mode)


def test_a_file_of_several_names_is_measured_once(store):
    tree = store / "tree"
    (tree / "a").write_bytes(b"x" * 100_000)
    before = measure(store)
    os.link(tree / "a", tree / "b")
    after = measure(store)

    assert before.size_bytes == after.size_bytes
    assert (1, 2) == (before.files, after.files)


def test_measuring_ends_in_time_and_says_that_it_is_not_all(store):
    for number in range(300):
        (store / "tree" / f"{number}").touch()

    assert not measure(store, 0.0).is_all


# -- by way of the keeper ------------------------------------------------------------------------


def test_a_mount_in_a_jobs_directory_is_told_and_the_directory_goes_once_it_is_gone(jobs, precious):
    gate = jobs.keeper.root / "gate"
    jobs.start(f"mkdir $IOD_SCRATCH/m; until [ -e {gate} ]; do sleep 0.02; done")
    until(lambda: (jobs.place() / "m").exists(), "a directory")
    point = jobs.place() / "m"
    mount("--bind", str(precious), str(point))
    try:
        gate.touch()
        report = jobs.await_scratch("kept")
    finally:
        subprocess.run(["umount", point], check=True)
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert "something is mounted at 'm' in it; unmount that" in report["because"]
    assert str(point.parent) in report["because"]
    assert "before" == (precious / "file").read_text()


def test_a_directory_that_is_hidden_by_a_mount_counts_as_over(jobs, precious):
    jobs.start("sleep 600")
    mount("--bind", str(precious), str(jobs.place()))
    try:
        report = jobs.await_scratch("over")
    finally:
        subprocess.run(["umount", jobs.place()], check=True)
        jobs.line.ask("kill", job=1, attempt=1, signal=9)

    assert not report["is_all"]


def test_a_mounted_file_is_not_measured(store, precious):
    (store / "tree" / "file").touch()
    (precious / "file").write_bytes(b"x" * 1_000_000)
    mount("--bind", str(precious / "file"), str(store / "tree" / "file"))
    try:
        usage = measure(store)
    finally:
        subprocess.run(["umount", store / "tree" / "file"], check=True)

    assert not usage.is_all
    assert usage.size_bytes < 1_000_000


def test_a_user_who_is_still_inside_when_the_job_has_ended_is_shut_out(jobs):
    """A process of the user's that is none of the job's, such as a login shell."""
    gate = jobs.keeper.root / "gate"
    jobs.start(f"mkdir $IOD_SCRATCH/sub; until [ -e {gate} ]; do sleep 0.02; done")
    until(lambda: (jobs.place() / "sub").exists(), "a directory")
    place = jobs.place()
    with subprocess.Popen(
        ["setpriv", f"--reuid={NOBODY.pw_uid}", "--clear-groups", "sleep", "600"], cwd=place / "sub"
    ) as inside:
        gate.touch()
        jobs.await_scratch("removed")
        there = os.readlink(f"/proc/{inside.pid}/cwd")
        inside.kill()

    assert there.endswith("(deleted)")
    assert [] == left(jobs.disks)


@pytest.fixture
def large_disk(tmp_path):
    """With names for a hundred thousand files."""
    image, disk = tmp_path / "image", tmp_path / "large"
    disk.mkdir()
    make_file_system(image, mib=128, files=101_000)
    mount("-o", "loop", str(image), str(disk))
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)  # most of it is making them
def test_a_hundred_thousand_files_hold_up_no_other_job(jobs, large_disk):
    gate = jobs.keeper.root / "gate"
    jobs.start(f"until [ -e {gate} ]; do sleep 0.02; done", [share(large_disk, 100)])
    place = jobs.place()
    for number in range(100_000):
        os.close(os.open(place / f"{number}", os.O_CREAT | os.O_WRONLY))
    measured_s = time.monotonic()
    store_fd = os.open(place.parent, os.O_RDONLY)
    usage = measure_tree(store_fd, place.name, measured_s + 60)
    os.close(store_fd)
    measured_s = time.monotonic() - measured_s
    gate.touch()
    began_s, waits = time.monotonic(), []
    while jobs.scratch()["state"] != "removed":
        asked_s = time.monotonic()
        jobs.line.ask("list", jobs=[])
        waits.append(time.monotonic() - asked_s)
        time.sleep(0.01)
    took_s = time.monotonic() - began_s
    print(f"measured in {measured_s:.2f} s, removed in {took_s:.2f} s; the keeper answered", end="")
    print(f" in {sorted(waits)[len(waits) // 2] * 1000:.2f} ms, {max(waits) * 1000:.1f} at worst")

    assert (100_000, True) == (usage.files, usage.is_all)
    assert len(waits) > 10  # one, if it were removed between two answers


class WithFewFiles(ServiceKeeper):
    """May have no more open files than this, but for itself."""

    def prefix(self, command):
        return ["prlimit", "--nofile=48:4096", *command]


def test_a_keeper_may_open_as_many_files_as_its_hard_limit_says():
    with WithFewFiles("signals") as keeper:
        keeper.begin()
        limits = resource.prlimit(keeper.process.pid, resource.RLIMIT_NOFILE)

    assert (4096, 4096) == limits


class Hanging:
    """Removals that never end; how often a job is looked at."""

    def __init__(self, place):
        self.looks = []
        for number in range(6):
            (place / f"{number}.1").mkdir()
            share = {"path": "/disk", "size": 1, "name": f"{number}-1-0f", "project": 1}
            shares = [{**share, "store": "y"}]
            record = {"uid": 65534, "output": None, "shares": shares}
            (place / f"{number}.1" / "scratch.json").write_text(json.dumps(record))
        self._selector = selectors.DefaultSelector()
        directories = JobDirectories(str(place))
        self.desk = ScratchDesk(
            directories, self._selector, self._fork, self._is_alive, lambda _key: False
        )
        self.desk.take_over(set())

    def _is_alive(self, key):
        self.looks.append(key)

    def _fork(self):
        pid = os.fork()
        while pid == 0:
            signal.pause()
        return pid

    def end_one(self):
        """The one that was begun first ends without a word, as when its turn is over."""
        next(iter(self._selector.get_map().values())).fileobj.shutdown(socket.SHUT_RD)
        self._selector.select()[0][0].data()

    def close(self):
        while self._selector.get_map():
            self.end_one()
        self._selector.close()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


@pytest.fixture
def hanging(tmp_path):
    found = Hanging(tmp_path)
    yield found
    found.close()


def test_jobs_that_wait_for_their_turn_at_a_disk_are_not_looked_at(hanging):
    hanging.desk.look()
    time.sleep(0.1)
    hanging.desk.look()

    assert 6 == len(hanging.looks)


def test_the_keeper_is_no_slower_while_a_disk_does_not_answer(jobs):
    """What works on the disk is stopped, as by a device that hangs."""
    gate = jobs.keeper.root / "gate"
    jobs.arm("scratch.sweeping", number=signal.SIGSTOP)
    jobs.start(f"until [ -e {gate} ]; do sleep 0.02; done")
    gate.touch()
    jobs.keeper.status()
    sweep = jobs.stopped_at("scratch.sweeping")
    report = jobs.scratch()
    second = jobs.start("true", job=2)
    ended = jobs.keeper.status(2)
    os.kill(sweep, signal.SIGCONT)
    jobs.await_scratch("removed")

    assert "removing" == report["state"]
    assert second["alive"]
    assert 0 == ended["exit"]["code"]


def test_a_job_whose_record_cannot_be_read_is_kept_and_others_go_on(hanging, tmp_path):
    """As where the keeper can open no more files."""
    record = tmp_path / "0.1" / "scratch.json"
    record.unlink()
    record.mkdir()
    hanging.desk.look()
    told = []
    hanging.desk.ask("0.1", None, None, told.append)

    assert "kept" == told[0]["state"]
    assert "cannot be read" in told[0]["because"]
    assert 5 == len(hanging.looks)
