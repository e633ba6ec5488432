"""Where is to be measured: which disks, how much room, and why not there."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.calibration.beside import check_counted
from iodaemon.core.platform import Device
from iodaemon.errors import NotFound, NotPermitted, RequestError
from iodaemon.files import find_left, new_name
from iodaemon.node.condition import find_full_or_read_only
from iodaemon.node.devices import (
    NETWORK,
    PathDevice,
    describe_block,
    find_backing_file,
    find_block,
    find_device,
    find_identity,
    find_leaf_blocks,
    is_read_through_cache,
    unaccounted_devices,
)

PREFIX: Final = ".iodaemon-calibrate"
_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
"""A file system without O_TMPFILE, or a kernel before 3.11 (open(2))."""


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that can be measured.

    Attributes:
        path: absolute, without symbolic links.
        description: the layers below it, for people.
        filesystem: its kind.
        devices: its leaf disks, one at least.
        identities: of each, in the same order.
        free_bytes: for this user.
    """

    path: str
    description: str
    filesystem: str
    devices: tuple[Device, ...]
    identities: tuple[str, ...]
    free_bytes: int


def survey(path: str) -> Ground:
    """What is below the directory.

    Raises:
        NotFound: there is none.
        NotPermitted: nothing may be made in it.
        RequestError: it cannot be measured there; one line with why and what to do.
    """
    check_exists(path)
    if not os.path.isdir(path):
        raise RequestError(f"{path} is no directory; name one on the disk to measure")
    below = find_device(path, is_written=True)
    check_kind(path, below)
    check_loops(path)
    unaccounted = unaccounted_devices()
    check_counted(device.id for device in below.devices if device.id in unaccounted)
    status = os.statvfs(path)
    if (problem := find_full_or_read_only(path)) is not None:
        what = f"{problem.fact} ({below.description})"
        raise RequestError(f"{what}; {problem.cure}, or name another directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise NotPermitted(f"{path} may not be written to; name a directory of your own")
    return Ground(
        path=below.path,
        description=below.description,
        filesystem=below.filesystem,
        devices=below.devices,
        identities=tuple(find_identity(device.id) for device in below.devices),
        free_bytes=status.f_bavail * status.f_frsize,
    )


def identities_of(path: str) -> frozenset[str]:
    """The identities of the disks below the path; none where none is known.

    Raises:
        NotFound: there is no such path.
    """
    check_exists(path)
    return frozenset(
        find_identity(device.id) for device in find_device(path, is_written=True).devices
    )


def check_exists(path: str) -> None:
    """Refuse what is not there.

    Raises:
        NotFound: there is no such path.
    """
    if not os.path.exists(path):
        raise NotFound(f"{path or repr(path)} does not exist; name a directory")


def check_loops(path: str, root: Path = Path("/")) -> None:
    """Refuse a loop device that reads its file through the page cache, however deep below.

    Raises:
        RequestError: it is the memory that would be measured.
    """
    number = os.stat(path).st_dev
    directory = find_block(root, f"{os.major(number)}:{os.minor(number)}")
    for leaf in find_leaf_blocks(directory) if directory is not None else ():
        if (file := find_backing_file(leaf)) is None:
            continue
        if is_read_through_cache(leaf):
            raise RequestError(
                f"{path} is on {describe_block(leaf)}, which is read through the page cache, so "
                "memory would be measured; calibrate the directory that the file lies in, or "
                f"'losetup --direct-io=on /dev/{leaf.name}'"
            )
        with contextlib.suppress(OSError):  # its file has no name here
            check_loops(file, root)


def check_kind(path: str, below: PathDevice) -> None:
    """Refuse what has no device here.

    Raises:
        RequestError: one line with why and what to do.
    """
    what = f"{path} is {below.description}"
    remedy = "name a directory on a disk of this machine"
    if below.kind == "tmpfs":
        raise RequestError(f"{what}: there is no device to measure; {remedy}")
    if below.kind == "nfs" or below.filesystem in NETWORK:
        raise RequestError(f"{what}: a network file system's device is another machine's; {remedy}")
    if not below.devices:
        raise RequestError(f"{what}: no disk of this machine is known below it; {remedy}")


@contextlib.contextmanager
def test_file(directory: str) -> Iterator[int]:
    """The descriptor of a new file without a name, so that it is gone with its last user.

    What others that were killed left before theirs had lost its name is removed.

    Raises:
        OSError: it cannot be made.
    """
    sweep(directory)
    descriptor = _make_file(directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _make_file(directory: str) -> int:
    access = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, access | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    path = f"{directory}/{new_name(PREFIX)}"
    descriptor = os.open(path, access | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return descriptor


def sweep(directory: str) -> None:
    """Remove what one that was killed has left here; another user's is left to that user."""
    for path in find_left(directory, PREFIX):
        with contextlib.suppress(FileNotFoundError):  # somebody else sweeps as well
            if path.lstat().st_uid == os.geteuid():
                path.unlink()
