"""File systems of a test's own; where root is required a test that cannot have one fails."""

import contextlib
import os
import shutil
import subprocess

import pytest

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
def small_disk(path, *, kib):
    """A file system in memory at this empty directory, of so many KiB; for its owner alone."""
    mount("-t", "tmpfs", "-o", f"size={kib}k,mode=700", "none", path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


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
