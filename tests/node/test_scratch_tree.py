"""What a user may lay into a directory that root will remove: nothing outside is touched."""

import fcntl
import os
import stat
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from harness import NOBODY
from mounting import mount
from scratching import both_disks, needs_root

from iodaemon.supervisor import scratch
from iodaemon.supervisor.scratch import ScratchError

__all__ = ["both_disks"]

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
    path = both_disks[0] / ".iodaemon"
    path.mkdir(mode=0o711)
    (path / "tree").mkdir()
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
    """Whether all of it is gone. What a helper has opened is closed by its end."""
    before = open_descriptors()
    try:
        return scratch.remove(str(store.parent), "tree", None, time.monotonic() + within_s)
    finally:
        for fd in open_descriptors() - before:
            os.close(fd)


def open_descriptors():
    fds = map(int, os.listdir("/proc/self/fd"))
    return {fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")}  # but that of the listing


def other(text, *words):
    """A process that runs this, once it says that it does."""
    command = [sys.executable, "-c", text, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def test_links_are_removed_and_not_followed(store, precious):
    tree = store / "tree"
    (tree / "to_directory").symlink_to(precious)
    (tree / "to_file").symlink_to(precious / "file")
    (tree / "up").symlink_to("../..")
    (tree / "loop").symlink_to("loop")
    os.link(precious / "file", tree / "name")
    remove(store)

    assert [] == list(store.iterdir())
    assert "before" == (precious / "file").read_text()


@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_what_is_mounted_within_is_not_entered_and_the_rest_goes(store, precious, kind):
    point = store / "tree" / "point"
    point.mkdir()
    (store / "tree" / "other").write_text("x")
    mount(*(("--bind", str(precious)) if kind == "bind" else ("-t", "tmpfs", "none")), str(point))
    (point / "file").write_text("before")
    try:
        with pytest.raises(ScratchError, match="mounted at 'point'"):
            remove(store)
        rest = [path.name for path in (store / "tree").iterdir()]
        inside = (point / "file").read_text()
    finally:
        subprocess.run(["umount", point], check=True)
    remove(store)

    assert ["point"] == rest
    assert "before" == inside
    assert [] == list(store.iterdir())


def test_a_mount_on_the_directory_itself_is_not_entered(store, precious):
    mount("--bind", str(precious), str(store / "tree"))
    try:
        with pytest.raises(OSError, match="cross-device"):
            remove(store)
    finally:
        subprocess.run(["umount", store / "tree"], check=True)

    assert "before" == (precious / "file").read_text()


def test_closed_directories_odd_names_and_special_files_go_as_well(store):
    tree = os.fsencode(store / "tree")
    inner = store / "tree" / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.chmod(0)
    inner.parent.chmod(0)
    os.mkdir(tree + b"/\xff\n\x1b[2J")
    os.mkfifo(tree + b"/pipe")
    os.mknod(tree + b"/device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    Path(os.fsdecode(tree), "x" * 255).touch()
    remove(store)

    assert [] == list(store.iterdir())


def test_a_tree_deeper_than_paths_and_descriptors_go_is_removed(store):
    subprocess.run([sys.executable, "-c", DEEP, store / "tree", "3000"], check=True)
    remove(store)

    assert [] == list(store.iterdir())


def test_what_is_immutable_is_kept_and_named(store):
    file = store / "tree" / "fixed"
    file.touch()
    flags = bytearray(8)
    fd = os.open(file, os.O_RDONLY)
    fcntl.ioctl(fd, GET_FLAGS, flags)
    before = struct.unpack("l", flags)[0]
    fcntl.ioctl(fd, SET_FLAGS, struct.pack("l", before | IMMUTABLE))
    try:
        with pytest.raises(ScratchError, match="'fixed' in it cannot be removed"):
            remove(store)
    finally:
        fcntl.ioctl(fd, SET_FLAGS, struct.pack("l", before))
        os.close(fd)
    remove(store)

    assert [] == list(store.iterdir())


def test_directories_that_become_links_while_they_are_removed_lead_nowhere(store, precious):
    victim = precious / "x" / "y"
    victim.mkdir(parents=True)
    (victim / "file").write_text("before")
    for name in "abcdefgh":
        (store / "tree" / name / "x" / "y").mkdir(parents=True)
    subprocess.run(["chown", "-R", NOBODY.pw_name, store / "tree"], check=True)
    with other(SWAPS, store / "tree", precious, NOBODY.pw_uid) as process:
        for _ in range(10):
            with suppress(ScratchError):
                if remove(store, 0.2):
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
        with pytest.raises(ScratchError):
            remove(store)
        found = point.parent.stat()
    finally:
        subprocess.run(["umount", point], check=True)

    assert (0, 0o40700) == (found.st_uid, found.st_mode)


def test_when_the_time_is_up_the_rest_is_left_for_the_next_turn(store):
    for number in range(100):
        (store / "tree" / f"{number}").mkdir()

    assert not remove(store, -1.0)
    assert remove(store)

    assert [] == list(store.iterdir())
