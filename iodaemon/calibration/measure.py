"""Measures a device: the test file, lone requests, what it carries, and where that ends."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

import iodaemon
from iodaemon.calibration import plan
from iodaemon.calibration.beside import Witness
from iodaemon.calibration.busy import look
from iodaemon.calibration.crew import Crew
from iodaemon.calibration.ground import Ground, test_file
from iodaemon.calibration.knee import disputed, find_knees, next_rate, recommended
from iodaemon.calibration.lone import LoneMeter
from iodaemon.calibration.record import Calibration, Kind, Load, Method, plain
from iodaemon.calibration.region import Regions
from iodaemon.calibration.writing import reserve, write_file
from iodaemon.core.platform import DeviceId
from iodaemon.errors import RequestError
from iodaemon.kernels.paced import BLOCK, Order, Told
from iodaemon.node.topology import format_cpu_list

_RANDOM_SEED: Final = 1

Tell = Callable[[str, float, float], None]
"""``tell(what, done_s, total_s)``: called before each step."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured, and how.

    Attributes:
        ground: where.
        sockets: the CPUs of each, one at least.
        divided: they are parts of the machine's only one.
        file_bytes: of the test file at most.
        seconds: the whole takes about so long.
        busy: what was going on before, in words.
        forced: others who use the machine are no reason to end.
    """

    ground: Ground
    sockets: tuple[tuple[int, ...], ...]
    divided: bool
    file_bytes: int
    seconds: float
    busy: str = ""
    forced: bool = False

    @property
    def per_socket(self) -> int:
        """Readers."""
        return plan.readers_per_socket(len(self.sockets))

    @property
    def times(self) -> plan.Times:
        """How long each part takes."""
        return plan.divide_time(self.seconds, len(self.sockets))


def calibrate(setup: Setup, tell: Tell, stop_if_asked: Callable[[], None]) -> Calibration:
    """Measure; nothing is left of it, however it ends.

    Args:
        setup: what.
        tell: hears how far it is.
        stop_if_asked: called often; it raises where the whole is to end.

    Raises:
        OSError: the file cannot be made, written or read.
        RequestError: it cannot be measured; one line with why and what to do.
    """
    begun_s = time.monotonic()
    with test_file(setup.ground.path) as descriptor, contextlib.ExitStack() as undo:
        reserve(descriptor, setup.file_bytes)
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


class _Run:
    """One calibration under way."""

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
        self._regions = Regions(0, len(crew))
        self._names = tuple(device.id for device in setup.ground.devices)
        self._lone = LoneMeter(setup.ground)
        self._witness = Witness(
            self._names,
            planned=self._times.steps + plan.KINDS * len(plan.SIZES),
            is_direct=crew.cold == "direct",
            is_forced=setup.forced,
        )
        self._loaded: dict[DeviceId, float] = {}

    # -- parts -----------------------------------------------------------------------------------

    def write_file(self) -> None:
        """Write as much as there is time for; what is read later has to be on the disk."""
        self._say("writes the test file")
        written, self._write_bytes_per_s = write_file(
            self._write, self._descriptor, self._setup.file_bytes, self._times.write_s
        )
        self._regions = Regions(written, len(self._crew))
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
        whole = self._regions.whole

        def order() -> Order:
            offset = self._regions.anywhere(size)
            return Order(
                offset=0 if seed else offset,
                length=whole if seed else whole - offset,
                block=size,
                seconds=self._times.lone_s,
                seed=seed,
                writes=kind == "write",
            )

        orders, (told,), moved = self._witness.steady(
            self._crew.do, lambda: {0: order()}, writes=kind == "write"
        )
        self._lone.take(orders[0], told, moved)

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
        """Each rate on each number of sockets."""
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
        """Is the machine as quiet as before?"""
        self._say("looks whether the machine is still quiet")
        self._witness.look_back(look(self._names))

    def result(self, took_s: float) -> Calibration:
        """All of it."""
        knees = find_knees(self._loads)
        setup, ground = self._setup, self._setup.ground
        uname = platform.uname()
        return Calibration(
            at_s=time.time(),
            path=plain(ground.path),
            description=plain(ground.description),
            filesystem=plain(ground.filesystem),
            kernel=uname.release,
            program=iodaemon.__version__,
            method=self._method(took_s),
            leaves=self._lone.leaves(
                most=max(self._write_bytes_per_s, *(load.had_bytes_per_s for load in self._loads)),
                loaded=self._loaded,
                loaded_together=self._capacities[setup.times.counts[-1]],
                width=max(self._capacities.values()) / max(1.0, self._loads[0].had_bytes_per_s),
            ),
            loads=tuple(self._loads),
            knees=knees,
            sequential_bytes_per_s=self._loads[0].had_bytes_per_s,
            loaded_bytes_per_s=self._capacities[setup.times.counts[-1]],
            random_bytes_per_s=self._random_bytes_per_s,
            random_block_bytes=plan.RANDOM_BLOCK,
            write_bytes_per_s=self._write_bytes_per_s,
            io_bound_bytes_per_s=recommended(knees),
        )

    def _method(self, took_s: float) -> Method:
        setup = self._setup
        busy = "; ".join([*([setup.busy] if setup.busy else []), *self._witness.words])
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
        each = total / len(readers)
        self._say(f"{total / sockets / 1e6:.1f} MB/s a socket on {_count(sockets)}")
        told = self._read(readers, each)
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

        _, told, moved = self._witness.steady(self._crew.do, orders)
        if rate is None:  # the last of these is that with all sockets loaded
            self._loaded = {name: float(each.read_bytes) for name, each in moved.items()}
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
        return self._did(self._witness.steady(self._crew.do, lambda: orders)[1])

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


def _count(sockets: int) -> str:
    return f"{sockets} socket{'s' if sockets > 1 else ''}"
