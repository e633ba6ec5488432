"""File systems of a test's own; where root is required a test that cannot have one fails."""

import contextlib
import os
import shutil
import subprocess

import pytest

DISK_KIB = 4096
WHY = "may not mount a file system here"


def lacks_root(why):
    """Skip the test; fail it where IOD_REQUIRE names root."""
    if "root" in os.environ.get("IOD_REQUIRE", ""):
        pytest.fail(f"IOD_REQUIRE names root, and {why}")
    pytest.skip(why)


def mount(*words):
    """Mount by these words of mount(8), or do without the test."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        lacks_root(f"{WHY}: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(path, *, kib, files=None):
    """A file system in memory at this empty directory, of so many KiB; for its owner alone."""
    count = "" if files is None else f",nr_inodes={files}"
    mount("-t", "tmpfs", "-o", f"size={kib}k,mode=700{count}", "none", path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextlib.contextmanager
def disk_of(server, *, files=None):
    """A file system of its own for a server's state, until the server is gone."""
    server.state.mkdir(mode=0o700)
    try:
        with small_disk(server.state, kib=DISK_KIB, files=files):
            yield server.state
    finally:
        server.state.rmdir()
        server.root.rmdir()  # the server could not, while this was mounted below


@contextlib.contextmanager
def full(disk, *, takes_no_file=False):
    """No byte is left on it meanwhile; and no file can be made on it, if there is a limit."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    files = []
    with contextlib.suppress(OSError):
        while takes_no_file:
            file = disk / f"ballast.{len(files)}"
            file.touch()
            files.append(file)
    try:
        yield
    finally:
        for file in (ballast, *files):
            file.unlink()


def make_file_system(image, *words, mib=16, files=None):
    """A small ext4 in this new file; further words of mkfs.ext4(8)."""
    made = shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if made is None:
        lacks_root("there is no mkfs.ext4; apt-get install e2fsprogs")
    with open(image, "wb") as file:
        file.truncate(mib << 20)
    count = [] if files is None else ["-N", str(files)]
    subprocess.run([made, "-q", *count, *words, image], check=True)


def mount_image(image, point, *options):
    """Mount this image past the page cache, so that the disk that it lies on is what is used.

    The loop device is gone with the mount.
    """
    words = [
        "losetup",
        "--find",
        "--show",
        "--direct-io=on",
        *(["--read-only"] * ("ro" in options)),
    ]
    done = subprocess.run([*words, str(image)], capture_output=True, text=True, check=False)
    if done.returncode:
        lacks_root(f"{WHY}: {done.stderr.strip()}")
    loop = done.stdout.strip()
    try:
        mount(*(("-o", ",".join(options)) if options else ()), loop, str(point))
    finally:
        subprocess.run(["losetup", "--detach", loop], check=True)  # once nobody uses it
