"""Where is to be measured, on which CPUs and for how long; or why it cannot be."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.calibration import plan
from iodaemon.calibration.beside import check_counted, look
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
from iodaemon.node.topology import SlotKind, own_limits, read_topology
from iodaemon.units import format_bytes, format_duration

PREFIX: Final = ".iodaemon-calibrate"
_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
"""A file system without O_TMPFILE, or a kernel before 3.11 (open(2))."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, and how.

    Attributes:
        ground: the directory and its disks, one at least.
        sockets: the CPUs of each, one at least.
        divided: they are parts of the machine's only one.
        file_bytes: of the test file at most.
        busy: what was going on before, in words.
        forced: other users of the machine are no reason to end.
    """

    ground: PathDevice
    sockets: tuple[tuple[int, ...], ...]
    divided: bool
    file_bytes: int
    seconds: float
    busy: str = ""
    forced: bool = False

    @property
    def per_socket(self) -> int:
        return plan.readers_per_socket(len(self.sockets))

    @property
    def times(self) -> plan.Times:
        return plan.divide_time(self.seconds, len(self.sockets))


def prepare(
    path: str,
    *,
    seconds: float,
    size_bytes: int | None,
    sockets: Sequence[str],
    slot: SlotKind,
    forced: bool,
    may_be_busy: bool,
) -> Setup:
    """Look at everything, for two seconds; make nothing.

    Args:
        path: a directory on the disk to measure.
        seconds: the whole may take about so long.
        size_bytes: of the test file. None: what is sensible.
        sockets: the machine's, as configured; empty: as detected. ``slot`` likewise.
        forced: a busy machine is no reason to refuse.
        may_be_busy: nor is it here, because nothing will be measured.

    Raises:
        RequestError: it cannot be measured; one line with why and what to do.
        ConfigError: ``sockets`` does not fit the machine.
    """
    if not plan.LEAST_S <= seconds <= plan.MOST_S:
        what = "is more than a day" if seconds > plan.MOST_S else "says too little"
        longest = format_duration(plan.MOST_S)
        raise RequestError(f"--time {what}; write {plan.LEAST_S:g} s to {longest}")
    ground = survey(path)
    parts, divided = find_sockets(sockets, slot)
    readers = len(parts) * plan.readers_per_socket(len(parts))
    size = plan.file_bytes(_free_bytes(path), readers, size_bytes)
    if size == 0:
        raise RequestError(_too_little(ground.path, readers, size_bytes))
    why = "; ".join(look([device.id for device in ground.devices]))
    if why and not (forced or may_be_busy):
        raise RequestError(
            f"the machine is busy: {why}; wait until it is quiet, or --force to measure beside that"
        )
    return Setup(
        ground=ground,
        sockets=parts,
        divided=divided,
        file_bytes=size,
        seconds=seconds,
        busy=why,
        forced=forced,
    )


def _free_bytes(path: str) -> int:
    """For this user."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _too_little(path: str, readers: int, asked: int | None) -> str:
    least = max(plan.LEAST_BYTES, readers * plan.WRITE_BLOCK)
    if asked is not None and asked < least:
        given, enough = format_bytes(asked), format_bytes(least)
        return f"--size {given} is too little for {readers} readers; write {enough} or more"
    needed = format_bytes(int(least / plan.ROOM_SHARE))
    return (
        f"{path} has {format_bytes(_free_bytes(path))} left and {needed} are needed, of "
        "which the test file takes half; free some space, or name another directory"
    )


def find_sockets(
    sockets: Sequence[str] = (), slot: SlotKind = "core"
) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """The CPUs of each socket; and whether they are parts of the machine's only one.

    Raises:
        ConfigError: ``sockets`` does not fit the machine.
    """
    cpus, nodes = own_limits()
    partitions = read_topology(
        Path("/"), allowed_cpus=cpus, allowed_nodes=nodes, sockets=sockets, slot=slot
    )
    with_slots = [partition for partition in partitions if partition.slots]
    if len(with_slots) > 1:
        every = (tuple(cpu for s in p.slots for cpu in s.cpus) for p in with_slots)
        return tuple(every), False
    return plan.divide_cores([s.cpus for p in with_slots for s in p.slots]), True


def describe(setup: Setup) -> list[tuple[str, str]]:
    """What will be done, in pairs of words."""
    ground, times = setup.ground, setup.times
    parts = len(setup.sockets)
    size, free = format_bytes(setup.file_bytes), format_bytes(_free_bytes(ground.path))
    places = f"{parts} parts of the machine's only socket" if setup.divided else f"{parts} sockets"
    beside = setup.busy or "the machine is quiet"
    if setup.busy and not setup.forced:
        beside += ": it would be refused without --force"
    return [
        ("directory", f"{ground.path} ({ground.description})"),
        ("disks", ", ".join(device.id for device in ground.devices)),
        ("readers", f"{setup.per_socket} on each of {places}"),
        ("test file", f"at most {size} of {free} free; it has no name, and is gone at the end"),
        ("steps", f"{times.steps} of at most {format_duration(round(times.step_s, 2))}"),
        ("time", f"about {format_duration(round(times.total_s))}"),
        ("beside it", beside),
    ]


# -- the directory and its disks -------------------------------------------------------------------


def survey(path: str) -> PathDevice:
    """What is below a directory that can be measured.

    Raises:
        NotFound: there is none.
        NotPermitted: nothing may be made in it.
        RequestError: it cannot be measured there; one line with why and what to do.
    """
    below = _find_below(path)
    if not os.path.isdir(path):
        raise RequestError(f"{path} is no directory; name one on the disk to measure")
    check_kind(path, below)
    _check_loops(path)
    unaccounted = unaccounted_devices()
    check_counted(device.id for device in below.devices if device.id in unaccounted)
    if (problem := find_full_or_read_only(path)) is not None:
        what = f"{problem.fact} ({below.description})"
        raise RequestError(f"{what}; {problem.cure}, or name another directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise NotPermitted(f"{path} may not be written to; name a directory of your own")
    return below


def identities_of(path: str) -> frozenset[str]:
    """The identities of the disks below the path; none where none is known.

    Raises:
        NotFound: there is no such path.
    """
    return frozenset(find_identity(device.id) for device in _find_below(path).devices)


def _find_below(path: str) -> PathDevice:
    if not os.path.exists(path):
        raise NotFound(f"{path or repr(path)} does not exist; name a directory")
    return find_device(path, is_written=True)


def _check_loops(path: str) -> None:
    """Refuse a loop device that reads its file through the page cache, however deep below."""
    number = os.stat(path).st_dev
    directory = find_block(Path("/"), f"{os.major(number)}:{os.minor(number)}")
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
            _check_loops(file)


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

    Files of killed processes, which had a name for a moment, are removed; another user's are left
    to that user.

    Raises:
        OSError: it cannot be made.
    """
    for path in find_left(directory, PREFIX):
        with contextlib.suppress(FileNotFoundError):  # somebody else sweeps as well
            if path.lstat().st_uid == os.geteuid():
                path.unlink()
    access = os.O_RDWR | os.O_CLOEXEC
    try:
        descriptor = os.open(directory, access | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
        path = Path(directory, new_name(PREFIX))
        descriptor = os.open(path, access | os.O_CREAT | os.O_EXCL, 0o600)
        path.unlink()
    try:
        yield descriptor
    finally:
        os.close(descriptor)
