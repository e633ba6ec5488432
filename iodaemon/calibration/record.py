"""What is kept of a calibration, what the daemon reads of it, and whether it still fits. Pure.

It fits no more where

1. a device moved more than ``_FAR`` times the most that was measured, for ``SUSTAIN_ABOVE`` slices
   in a row: what was measured was not all, or it is another device behind the same name;
2. lone requests take far longer than the longest, or far shorter than the shortest measured, for
   ``SUSTAIN_LONE`` slices with lone requests in a row. Requests were alone in a slice where hardly
   more than one was in flight while any was.

What was seen once is told until it is measured again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iodaemon.core.meter import DeviceLoad, lone_range_s
from iodaemon.core.platform import Device, DeviceId, LoneTimes, Points, ServiceTimes
from iodaemon.errors import ConfigError

VERSION: Final = 1
"""Of the file. One that is newer is refused by name."""
MOST_KEPT: Final = 256
"""Calibrations in one file; the oldest goes."""
MOST_TEXT: Final = 8192
"""Characters of a word: a path has 4095 at most, and there is more in a description."""
_MOST_STEPS: Final = 10_000
_LONGEST_PROBLEM: Final = 200
"""Characters: a value that is none is quoted, however long it is."""
_CONTROL: Final = r"\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""What no terminal shall be told, and what is no text."""
_NOT_PLAIN: Final = re.compile(f"[{_CONTROL}]")
_PLAIN: Final = rf"\A[^{_CONTROL}]*\Z"

# The file lies where another user than its reader may write: each value is one that is possible.
Text = Annotated[str, Meta(max_length=MOST_TEXT, pattern=_PLAIN)]
Rate = Annotated[float, Meta(ge=0.0, le=1e18)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Date = Annotated[float, Meta(ge=0.0, le=2.5e11)]
"""Before the year 10000."""
Ratio = Annotated[float, Meta(ge=0.0, le=1e15)]
Width = Annotated[float, Meta(ge=1.0, le=1e9)]
ServiceTime = Annotated[float, Meta(gt=0.0, le=1e4)]
RequestSize = Annotated[float, Meta(gt=0.0, le=2.0**40)]
Size = Annotated[int, Meta(ge=1, le=2**40)]
FileSize = Annotated[int, Meta(ge=1, le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Sockets = Annotated[int, Meta(ge=1, le=2**20)]

Kind = Literal["read", "write"]
Pattern = Literal["order", "random"]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Lone requests of one size to one device.

    Attributes:
        asked_bytes: of a request, as the reader asked.
        size_bytes: of a request, as the device was asked (the kernel splits and merges them).
        service_s: how long one took, from queueing to completion.
    """

    kind: Kind
    pattern: Pattern
    asked_bytes: Size
    size_bytes: RequestSize
    service_s: ServiceTime
    requests: Count


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf disk that was measured.

    Attributes:
        name: the kernel's, at that time.
        identity: what stays the same when the kernel's name does not.
        most_bytes_per_s: the most that was seen of it, read or written.
        loaded_bytes_per_s: what it read with all sockets loaded.
        width: how many times as much all readers had as one, 1 or more.
    """

    name: Text
    identity: Text
    model: Text = ""
    rotational: bool | None = None
    most_bytes_per_s: Rate = 0.0
    loaded_bytes_per_s: Rate = 0.0
    width: Width = 1.0
    points: Annotated[tuple[Point, ...], Meta(max_length=_MOST_STEPS)] = ()

    @property
    def service(self) -> ServiceTimes | None:
        """The lone requests as rules have them; None: there were none."""
        kinds: tuple[Kind, ...] = ("read", "write")
        reads, writes = (
            LoneTimes(
                in_order=_by_size(self.points, kind, "order"),
                at_random=_by_size(self.points, kind, "random"),
            )
            for kind in kinds
        )
        if reads == writes == LoneTimes():
            return None
        return ServiceTimes(reads=reads, writes=writes, width=self.width)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Paced readers on some of the sockets.

    Attributes:
        asked_bytes_per_s: by all together; None: each as fast as it could.
        had_bytes_per_s: by all together.
        run_ratio: run time over what the rate would have it, the mean of the readers.
        wait_s: mean time of a read.
    """

    sockets: Sockets
    readers: Count
    asked_bytes_per_s: Rate | None
    had_bytes_per_s: Rate
    run_ratio: Ratio
    wait_s: Seconds


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where run time starts to degrade on so many sockets.

    Attributes:
        fine_bytes_per_s: the most that all readers together asked for and had in time.
        degraded_bytes_per_s: the least at which they were slowed down. None: never seen.
    """

    sockets: Sockets
    fine_bytes_per_s: Rate
    degraded_bytes_per_s: Rate | None


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured.

    Attributes:
        cold: ``direct``: past the page cache; ``dropped``: dropped from it before each step.
        sockets: the CPUs of each, as the kernel writes them.
        divided: the machine has one socket, which was divided.
        step_s: of one step of the readers, the median.
        once: no byte was read in two steps.
        timed_by: whose clock timed the lone requests: the kernel's own, of the disk. A reader's
            would be that of whatever answers it.
        forced: it was measured although the machine was busy.
        busy: what else was going on before, meanwhile and after, in words.
    """

    cold: Literal["direct", "dropped"]
    sockets: Annotated[tuple[Text, ...], Meta(max_length=4096)]
    divided: bool
    readers_per_socket: Count
    block_bytes: Size
    file_bytes: FileSize
    step_s: Seconds
    once: bool
    timed_by: Literal["device"]
    took_s: Seconds
    forced: bool = False
    busy: Text = ""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One device (or several below one file system), measured once.

    Attributes:
        at_s: when it was done, seconds since 1970.
        path: the directory that was asked for.
        description: the layers below it, for people.
        kernel: release.
        program: version of iodaemon.
        loads: every step.
        sequential_bytes_per_s: one reader in order, as fast as it goes.
        loaded_bytes_per_s: all readers in order.
        random_bytes_per_s: all readers at random places.
        random_block_bytes: of each of those reads.
        write_bytes_per_s: one writer in order.
        io_bound_bytes_per_s: recommended. None: nothing was slowed down.
    """

    at_s: Date
    path: Text
    description: Text
    filesystem: Text
    kernel: Text
    program: Text
    method: Method
    leaves: Annotated[tuple[Leaf, ...], Meta(max_length=1024)]
    loads: Annotated[tuple[Load, ...], Meta(max_length=_MOST_STEPS)]
    knees: Annotated[tuple[Knee, ...], Meta(max_length=1024)]
    sequential_bytes_per_s: Rate
    loaded_bytes_per_s: Rate
    random_bytes_per_s: Rate
    random_block_bytes: Size
    write_bytes_per_s: Rate
    io_bound_bytes_per_s: Rate | None

    @property
    def identities(self) -> frozenset[str]:
        return frozenset(leaf.identity for leaf in self.leaves)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file: the newest calibration of each set of disks, the newest last."""

    version: Annotated[int, Meta(ge=1)] = VERSION
    calibrations: Annotated[tuple[Calibration, ...], Meta(max_length=MOST_KEPT)] = ()

    def with_new(self, made: Calibration) -> Kept:
        """The same with one more, in the place of the last one of the same disks."""
        others = [each for each in self.calibrations if each.identities != made.identities]
        return Kept(calibrations=(*others[1 - MOST_KEPT :], made))


def plain(text: str) -> str:
    """What may be kept of any text: no control characters, no surrogates, not too long."""
    return _NOT_PLAIN.sub("\ufffd", text)[:MOST_TEXT]


def encode(kept: Kept) -> bytes:
    """The file's text."""
    return msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n"


def decode(text: bytes, where: str) -> Kept:
    """What the file of this name says.

    Raises:
        ConfigError: it is not such a file, or a newer one.
    """
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version > VERSION:
            raise ConfigError(
                f"{where}: version {version} is of a newer iodaemon, this one reads {VERSION}; "
                "update iodaemon, or remove the file: 'iod calibrate PATH' makes a new one"
            )
        return msgspec.json.decode(text, type=Kept)
    except RecursionError:
        problem = "its parts lie in one another too deeply"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        told = str(error).replace(f"matching regex {_PLAIN!r}", "without control characters")
        problem = told[:_LONGEST_PROBLEM]
    raise ConfigError(
        f"{where}: no calibration: {problem}; remove it, 'iod calibrate PATH' makes a new one"
    )


class _Versioned(msgspec.Struct, frozen=True):
    version: Annotated[int, Meta(ge=1, le=2**31)]


# -- as the daemon uses it -------------------------------------------------------------------------


def known_leaves(
    kept: Kept, identities: Mapping[DeviceId, str]
) -> dict[DeviceId, tuple[Calibration, Leaf]]:
    """What was measured of the devices of this machine; the newest measurement of each counts."""
    known = {leaf.identity: (made, leaf) for made in kept.calibrations for leaf in made.leaves}
    return {name: known[word] for name, word in identities.items() if word in known}


def calibrated(
    devices: Iterable[Device], leaves: Mapping[DeviceId, tuple[Calibration, Leaf]]
) -> tuple[Device, ...]:
    """The devices with what was measured of them, and nothing where nothing was."""
    found = []
    for device in devices:
        capacity = service = None
        if device.id in leaves:
            _, leaf = leaves[device.id]
            # Rules that reckon with a capacity share it between jobs: one stream may have far more.
            capacity = leaf.loaded_bytes_per_s or leaf.most_bytes_per_s or None
            service = leaf.service
        found.append(
            msgspec.structs.replace(device, capacity_bytes_per_s=capacity, service=service)
        )
    return tuple(found)


def find_problem(made: Calibration, release: str) -> str:
    """Why it may not hold: another kernel than this one, or a busy machine; empty: no reason."""
    if made.kernel != release:
        return f"measured under kernel {made.kernel}, this is {release}"
    return "measured while the machine was busy" if made.method.forced else ""


def _by_size(points: Sequence[Point], kind: Kind, pattern: Pattern) -> Points:
    """One time for each size, rising: of two requests of one size the shorter was the lone one."""
    times: dict[float, float] = {}
    for point in points:
        if (point.kind, point.pattern) == (kind, pattern):
            known_s = times.get(point.size_bytes, point.service_s)
            times[point.size_bytes] = min(known_s, point.service_s)
    return tuple(sorted(times.items()))


# -- whether it still fits -------------------------------------------------------------------------

_FAR: Final = 1.5
"""Steps of a calibration on a shared virtual machine differ by less."""
_FAR_TIMES: Final = 3.0
"""A lone request is one of many places and patterns: twice or half is nothing to speak of."""
SUSTAIN_ABOVE: Final = 10
SUSTAIN_LONE: Final = 30
_ALONE: Final = 1.25
"""Requests in flight while any is, up to which they count as alone."""
_LEAST_REQUESTS_PER_S: Final = 5.0


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How a device has done so far.

    Attributes:
        above: slices in a row with more than was ever measured.
        lone: slices with lone requests in a row that took far longer (or shorter).
        problem: what does not fit, in words; empty: nothing.
    """

    above: int = 0
    lone: int = 0
    problem: str = ""


def judge(
    fit: Fit, load: DeviceLoad, *, most_bytes_per_s: float, service: ServiceTimes | None
) -> Fit:
    """What is known of a device after one more slice.

    ``most_bytes_per_s`` is the most that was measured; 0: nothing was.
    """
    if fit.problem:
        return fit
    is_above = 0.0 < _FAR * most_bytes_per_s < load.total_bytes_per_s
    above = fit.above + 1 if is_above else 0
    outside = None if service is None else _outside(load, service)
    lone = fit.lone if outside is None else (fit.lone + 1 if outside else 0)
    problem = ""
    if above >= SUSTAIN_ABOVE:
        problem = (
            f"it moves {load.total_bytes_per_s / 1e6:.0f} MB/s, and at most "
            f"{most_bytes_per_s / 1e6:.0f} MB/s was measured"
        )
    elif lone >= SUSTAIN_LONE:
        problem = outside or ""
    return Fit(above=above, lone=lone, problem=problem)


def _outside(load: DeviceLoad, service: ServiceTimes) -> str | None:
    """How lone requests differ from what was measured; empty: they do not; None: there were none.

    Discards and flushes, of which nothing was measured, make a slice say nothing.
    """
    requests_per_s = load.reads_per_s + load.writes_per_s
    measured = lone_range_s(load, service)
    is_alone = load.queue_length <= _ALONE * load.busy_ratio
    if measured is None or requests_per_s < _LEAST_REQUESTS_PER_S or not is_alone:
        return None
    took_s = load.queue_length / requests_per_s
    if measured[0] / _FAR_TIMES <= took_s <= measured[1] * _FAR_TIMES:
        return ""
    low, high = (1000.0 * each for each in measured)
    return (
        f"a lone request takes {1000.0 * took_s:.3g} ms, and {low:.3g} to {high:.3g} ms was "
        "measured"
    )
