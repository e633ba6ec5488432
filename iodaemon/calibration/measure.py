"""Measures a device: the test file, lone requests, what it carries, and where that ends."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import iodaemon
from iodaemon.calibration import plan
from iodaemon.calibration.beside import Moved, Witness, look
from iodaemon.calibration.crew import Crew
from iodaemon.calibration.ground import Setup, test_file
from iodaemon.calibration.knee import disputed, find_knees, next_rate, recommended
from iodaemon.calibration.record import Calibration, Kind, Leaf, Load, Method, Point, plain
from iodaemon.core.platform import DeviceId
from iodaemon.errors import RequestError
from iodaemon.kernels.paced import BLOCK, Order, Told
from iodaemon.node.devices import find_identity
from iodaemon.node.topology import format_cpu_list

_RANDOM_SEED: Final = 1
_LEAST_REQUESTS: Final = 5
"""Of fewer lone ones the mean says little."""
_CHUNK_BYTES: Final = 64 << 20
"""Of the test file, made durable before the next: writing shall last as long as it says."""
_LEAST_CHUNK_S: Final = 2.0
"""A chunk ends after so long, so that a slow disk is not taken for one that does not answer."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Tell = Callable[[str, float, float], None]
"""``tell(what, done_s, total_s)``: called before each step."""


def calibrate(setup: Setup, tell: Tell, stop_if_asked: Callable[[], None]) -> Calibration:
    """Measure; nothing is left of it, however it ends.

    Args:
        setup: of ``ground.prepare``.
        tell: is told how far it is.
        stop_if_asked: called often; it raises where the whole is to end.

    Raises:
        OSError: the file cannot be made, written or read.
        RequestError: it cannot be measured; one line with why and what to do.
    """
    begun_s = time.monotonic()
    with test_file(setup.ground.path) as descriptor, contextlib.ExitStack() as undo:
        _reserve(descriptor, setup.file_bytes)
        crew = Crew(descriptor, setup.sockets, setup.per_socket, stop_if_asked)
        undo.callback(crew.close)
        run = _Run(setup, crew, descriptor, tell)
        run.write_file()
        run.measure_lone()
        run.measure_unpaced()
        run.draw_curves()
        run.look_again()
        run.close_in()
        run.look_back()
        return run.result(time.monotonic() - begun_s)


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Room in one piece, and refused at once where there is none; some file systems have no way."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise RequestError(
                f"the test file of {size_bytes >> 20} MiB does not fit: {error.strerror}; "
                "ask for less with --size, or free some space"
            ) from error
    os.ftruncate(descriptor, size_bytes)


def write_file(
    write: Callable[[Mapping[int, Order]], Mapping[int, Told]],
    descriptor: int,
    size_bytes: int,
    for_s: float,
) -> tuple[int, float]:
    """Have the first reader write for about so long, but no less than can be measured with.

    The file is cut off behind what was written.

    Returns:
        Bytes, and bytes/s with all of them on the disk.

    Raises:
        RequestError: nothing can be written.
        OSError: likewise.
    """
    written = 0
    begun_s = time.monotonic()
    while written < size_bytes:
        left_s = for_s - (time.monotonic() - begun_s)
        if left_s <= 0.0 and written >= plan.LEAST_BYTES:
            break
        order = Order(
            offset=written,
            length=min(_CHUNK_BYTES, size_bytes - written),
            block=plan.WRITE_BLOCK,
            seconds=max(_LEAST_CHUNK_S, left_s),
            writes=True,
        )
        moved = write({0: order})[0].bytes
        os.fdatasync(descriptor)
        if moved <= 0:
            raise RequestError("the test file cannot be written: the disk takes nothing")
        written += moved
    os.ftruncate(descriptor, written)
    return written, written / (time.monotonic() - begun_s)


class _Run:
    def __init__(self, setup: Setup, crew: Crew, descriptor: int, tell: Tell) -> None:
        self._setup = setup
        self._times = setup.times
        self._crew = crew
        self._descriptor = descriptor
        self._tell = tell
        self._done_s = 0.0
        self._loads: list[Load] = []
        self._steps_s: list[float] = []
        self._write_bytes_per_s = self._random_bytes_per_s = 0.0
        self._capacities: dict[int, float] = {}
        self._regions = plan.Regions(0, len(crew))
        self._names = tuple(device.id for device in setup.ground.devices)
        self._identities = {name: find_identity(name) for name in self._names}
        self._points: dict[DeviceId, list[Point]] = {name: [] for name in self._names}
        self._witness = Witness(
            self._names,
            planned=self._times.steps + plan.KINDS * len(plan.SIZES),
            is_direct=crew.cold == "direct",
            is_forced=setup.forced,
        )
        self._loaded: dict[DeviceId, int] = {}

    # -- parts -----------------------------------------------------------------------------------

    def write_file(self) -> None:
        """Write as much as there is time for; what is read later has to be on the disk."""
        self._say("writes the test file")
        written, self._write_bytes_per_s = write_file(
            self._write, self._descriptor, self._setup.file_bytes, self._times.write_s
        )
        self._regions = plan.Regions(written, len(self._crew))
        self._done_s = self._times.write_s

    def measure_lone(self) -> None:
        """One reader, one request at a time, of each kind, size and pattern.

        What is written through the page cache is no lone request when it gets to the disk.
        """
        kinds: Sequence[Kind] = ("read", "write") if self._crew.cold == "direct" else ("read",)
        for kind in kinds:
            for size in plan.SIZES:
                for seed in (None, _RANDOM_SEED + size):
                    self._say(f"lone {kind}s of {size >> 10} KiB")
                    self._measure_lone(kind, size, seed)
                    self._done_s += self._times.lone_s

    def _measure_lone(self, kind: Kind, size: int, seed: int | None) -> None:
        def order() -> dict[int, Order]:
            offset = 0 if seed else self._regions.anywhere(size)
            return {
                0: Order(
                    offset=offset,
                    length=self._regions.whole - offset,
                    block=size,
                    seconds=self._times.lone_s,
                    seed=seed,
                    writes=kind == "write",
                )
            }

        (told,), moved = self._witness.steady(self._crew.do, order, writes=kind == "write")
        for name, did in moved.items():
            requests, moved_bytes, spent_ms = _of_kind(did, kind)
            if min(requests, told.ios) >= _LEAST_REQUESTS and spent_ms > 0:
                self._points[name].append(
                    Point(
                        kind=kind,
                        pattern="random" if seed else "order",
                        asked_bytes=size,
                        size_bytes=moved_bytes / requests,
                        service_s=spent_ms / 1000.0 / requests,
                        requests=requests,
                    )
                )

    def measure_unpaced(self) -> None:
        """As fast as it goes: one reader, each number of sockets, and all at random places."""
        self._say("one reader as fast as it goes")
        alone = self._read(self._crew.on(1)[:1], None)
        self._loads.append(load_of(1, None, alone))
        for sockets in self._times.counts:
            self._say(f"readers on {_count(sockets)} as fast as they go")
            told = self._read(self._crew.on(sockets), None)
            self._capacities[sockets] = _had(told)
            self._loads.append(load_of(sockets, None, told))
        if min(self._capacities.values()) <= 0.0:
            raise RequestError(
                f"nothing was read in {self._times.step_s:.2g} s; wait until the machine is quiet, "
                "or give it more --time"
            )
        self._say("all readers at random places")
        self._random_bytes_per_s = _had(self._read_at_random())

    def draw_curves(self) -> None:
        for rate in plan.rates(self._capacities, self._times.curves):
            for sockets in self._times.counts:
                self._pace(sockets, rate * sockets)

    def look_again(self) -> None:
        """Steps that contradict others, a few."""
        for sockets, total in disputed(self._loads)[: plan.DISPUTES]:
            self._pace(sockets, total)

    def close_in(self) -> None:
        """Rates about the knee with all sockets loaded."""
        sockets = self._times.counts[-1]
        most = plan.HIGH_SHARE * len(self._crew) * self._loads[0].had_bytes_per_s
        for _ in range(plan.REFINEMENTS):
            total = next_rate(find_knees(self._loads), sockets, most)
            if total is None:
                return
            self._pace(sockets, total)

    def look_back(self) -> None:
        self._say("looks whether the machine is still quiet")
        self._witness.look_back(look(self._names))

    def result(self, took_s: float) -> Calibration:
        knees = find_knees(self._loads)
        ground = self._setup.ground
        return Calibration(
            at_s=time.time(),
            path=plain(ground.path),
            description=plain(ground.description),
            filesystem=plain(ground.filesystem),
            kernel=platform.release(),
            program=iodaemon.__version__,
            method=self._method(took_s),
            leaves=self._leaves(),
            loads=tuple(self._loads),
            knees=knees,
            sequential_bytes_per_s=self._loads[0].had_bytes_per_s,
            loaded_bytes_per_s=self._capacities[self._times.counts[-1]],
            random_bytes_per_s=self._random_bytes_per_s,
            random_block_bytes=plan.RANDOM_BLOCK,
            write_bytes_per_s=self._write_bytes_per_s,
            io_bound_bytes_per_s=recommended(knees),
        )

    def _leaves(self) -> tuple[Leaf, ...]:
        """Each disk, with its part of what all had: as much as it read with all sockets loaded."""
        most = max(self._write_bytes_per_s, *(load.had_bytes_per_s for load in self._loads))
        width = max(self._capacities.values()) / max(1.0, self._loads[0].had_bytes_per_s)
        total = sum(self._loaded.values())
        leaves = []
        for device in self._setup.ground.devices:
            share = self._loaded[device.id] / total if total else 1.0 / len(self._names)
            leaf = Leaf(
                name=device.id,
                identity=plain(self._identities[device.id]),
                model=plain(device.model),
                rotational=device.rotational,
                most_bytes_per_s=share * most,
                loaded_bytes_per_s=share * self._capacities[self._times.counts[-1]],
                width=max(1.0, width),
                points=tuple(self._points[device.id]),
            )
            leaves.append(leaf)
        return tuple(leaves)

    def _method(self, took_s: float) -> Method:
        setup = self._setup
        busy = "; ".join(filter(None, (setup.busy, *self._witness.words)))
        return Method(
            cold=self._crew.cold,
            sockets=tuple(format_cpu_list(cpus) for cpus in setup.sockets),
            divided=setup.divided,
            readers_per_socket=setup.per_socket,
            block_bytes=BLOCK,
            file_bytes=self._regions.whole,
            step_s=statistics.median(self._steps_s),
            once=not self._regions.wrapped,
            timed_by="device",
            took_s=took_s,
            forced=bool(busy),
            busy=plain(busy),
        )

    # -- one step --------------------------------------------------------------------------------

    def _pace(self, sockets: int, total: float) -> None:
        readers = self._crew.on(sockets)
        self._say(f"{total / sockets / 1e6:.1f} MB/s a socket on {_count(sockets)}")
        told = self._read(readers, total / len(readers))
        self._loads.append(load_of(sockets, total, told))

    def _read(self, readers: Sequence[int], rate: float | None) -> list[Told]:
        """In order, each in its own part of the file."""
        seconds = self._times.step_s
        size = plan.step_bytes(rate, seconds, self._regions.part)

        def orders() -> dict[int, Order]:
            return {
                number: Order(
                    offset=self._regions.take(number, size), length=size, rate=rate, seconds=seconds
                )
                for number in readers
            }

        told, moved = self._witness.steady(self._crew.do, orders)
        if rate is None:  # the last of these is that with all sockets loaded
            self._loaded = {name: each.read_bytes for name, each in moved.items()}
        return self._did(told)

    def _read_at_random(self) -> list[Told]:
        """All over the file; what goes through the page cache in parts: nothing is read twice."""
        is_direct, part = self._crew.cold == "direct", self._regions.part
        orders = {
            number: Order(
                offset=0 if is_direct else number * part,
                length=self._regions.whole if is_direct else part,
                block=plan.RANDOM_BLOCK,
                seconds=self._times.step_s,
                seed=number + 1,
            )
            for number in range(len(self._crew))
        }
        return self._did(self._witness.steady(self._crew.do, lambda: orders)[0])

    def _write(self, orders: Mapping[int, Order]) -> dict[int, Told]:
        """A part of the test file, until it is on the disk."""
        self._witness.begin()
        begun_s = time.monotonic()
        told = self._crew.do(orders)
        os.fdatasync(self._descriptor)
        self._witness.end(tuple(told.values()), time.monotonic() - begun_s, writes=True)
        return told

    def _did(self, told: list[Told]) -> list[Told]:
        self._steps_s.append(max(each.run_s for each in told))
        self._done_s += self._times.step_s
        return told

    def _say(self, what: str) -> None:
        self._tell(what, self._done_s, self._times.total_s)


def load_of(sockets: int, asked: float | None, told: Sequence[Told]) -> Load:
    """What came of a step, of all its readers together."""
    ios = sum(each.ios for each in told)
    return Load(
        sockets=sockets,
        readers=len(told),
        asked_bytes_per_s=asked,
        had_bytes_per_s=_had(told),
        run_ratio=statistics.fmean(_run_ratio(each) for each in told),
        wait_s=sum(each.wait_s for each in told) / ios if ios else 0.0,
    )


def _run_ratio(told: Told) -> float:
    """Run time over what the rate would have it; of one who was given nothing, as for one block."""
    if told.asked_bytes_per_s is None:
        return 1.0
    return told.run_s * told.asked_bytes_per_s / max(told.bytes, BLOCK)


def _had(told: Sequence[Told]) -> float:
    """What all readers had together, bytes/s, until the last one was done."""
    return sum(each.bytes for each in told) / max(each.run_s for each in told)


def _of_kind(did: Moved, kind: Kind) -> tuple[int, int, int]:
    if kind == "write":
        return did.writes, did.written_bytes, did.write_ms
    return did.reads, did.read_bytes, did.read_ms


def _count(sockets: int) -> str:
    return f"{sockets} socket{'s' if sockets > 1 else ''}"
