"""The server of Lv et al. 2014 and the jobs of its workloads, as parameters and as what runs."""

from __future__ import annotations

import math
import random
from typing import Literal

import msgspec

from iodaemon.core.job import JobSpec
from iodaemon.core.platform import Device, DeviceId, Platform
from iodaemon.model.disk import GIB, SimulatedDisk
from iodaemon.model.memory import SimulatedMemory
from iodaemon.model.node import default_platform
from iodaemon.model.profile import Compute, Profile, Read, Step, Touch, Write
from iodaemon.model.scaling import LV_EXPONENT, LV_KNEE_STREAMS, waning_scaling
from iodaemon.model.spec import Model
from iodaemon.registry import nearest
from iodaemon.simulator.run import Submission

Counting = Literal["kernel", "demand"]


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of section 2.2.2 with its disk.

    Attributes:
        sockets: CMPs.
        slots: cores of each.
        memory_bytes: of the whole machine.
        usable: the part of it that working sets can fill before pages are given up.
        capacity_bytes_per_s: of the disk, while few wait for it.
        knee_streams: with more streams than these waiting it delivers less.
        exponent: how fast: (knee / streams) to this power is left.
        job_cap_bytes_per_s: no job reads or writes faster, whatever the number of its streams.
        request_bytes: size of a request.
        stream_depth: requests that a stream keeps in flight: the window that is read, and the
            one that is read ahead.
        asked_requests: where I/O is counted as demand, so many at most count as asked for and not
            got, of each stream that reads or writes. None: all that is left of the step.
    """

    sockets: int = 8
    slots: int = 8
    memory_bytes: int = 256 * GIB
    usable: float = 0.5
    capacity_bytes_per_s: float = 50e6
    knee_streams: int = LV_KNEE_STREAMS
    exponent: float = LV_EXPONENT
    job_cap_bytes_per_s: float = 26e6
    request_bytes: int = 128 * 1024
    stream_depth: int = 2
    asked_requests: int | None = None

    def __post_init__(self) -> None:
        """Refuse a machine that is none."""
        if self.sockets < 1 or self.slots < 1:
            raise ValueError("sockets and slots are at least 1")
        self.model("kernel")

    def platform(self, sockets: int | None = None) -> Platform:
        """So many of its sockets above the disk, which has an arm. None: all of them."""
        device = Device(id=DeviceId("sim0"), rotational=True)
        partitions = default_platform(sockets or self.sockets, self.slots).partitions
        return Platform(partitions=partitions, devices=(device,))

    def disk(self) -> SimulatedDisk:
        """What all sockets share."""
        return SimulatedDisk(
            capacity_bytes_per_s=self.capacity_bytes_per_s,
            scaling=waning_scaling(self.knee_streams, self.exponent),
            counted="waiting",
            stream_cap_bytes_per_s=self.job_cap_bytes_per_s,
            request_bytes=self.request_bytes,
            stream_depth=self.stream_depth,
        )

    def model(self, counting: Counting) -> Model:
        """Disk and memory; how the jobs' I/O is counted."""
        memory = SimulatedMemory(capacity_bytes=self.memory_bytes, usable=self.usable)
        asked = None if self.asked_requests is None else self.asked_requests * self.request_bytes
        return Model(disk=self.disk(), memory=memory, counting=counting, asked_bytes=asked)

    def alone_bytes_per_s(self, streams: int) -> float:
        """What a job with so many streams gets of the disk alone."""
        left = waning_scaling(self.knee_streams, self.exponent)(streams)
        return min(self.job_cap_bytes_per_s, self.capacity_bytes_per_s * left)


class App(msgspec.Struct, frozen=True, kw_only=True):
    """One application; all figures are of a whole job, in the mean.

    Attributes:
        threads: a job of several takes a socket for itself.
        streams: of its I/O. None: one a thread.
        cycles: it reads, computes and writes in so many equal parts.
        at_start: the part of what it reads that is read before all else.
        compute_s: its computing.
        read_bytes: from the disk.
        write_bytes: to the disk, past the page cache.
        resident_bytes: its working set; 0: small.
        touches: it goes over its working set while it computes (``Paging``), in bursts, and
            does no other I/O.
    """

    threads: int = 1
    streams: int | None = None
    cycles: int = 1
    at_start: float = 0.0
    compute_s: float
    read_bytes: int = 0
    write_bytes: int = 0
    resident_bytes: int = 0
    touches: bool = False

    def __post_init__(self) -> None:
        """Refuse jobs that do nothing or less."""
        sizes = (self.read_bytes, self.write_bytes, self.resident_bytes)
        if min(self.threads, self.io_streams, self.cycles) < 1 or min(sizes) < 0:
            raise ValueError("threads, streams and cycles are at least 1, sizes not below 0")
        if self.touches and (self.at_start or self.cycles > 1 or max(sizes[:2]) > 0):
            raise ValueError("an application that touches its memory reads by that alone")
        if not 0.0 <= self.at_start <= 1.0:
            raise ValueError(f"at_start is {self.at_start:g}; from 0 to 1")
        if not 0.0 < self.compute_s < math.inf:
            raise ValueError(f"compute_s is {self.compute_s:g}; above 0")

    @property
    def io_streams(self) -> int:
        """Streams of its I/O."""
        return self.threads if self.streams is None else self.streams


class Paging(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs with large working sets go over them: the two figures of implicit I/O.

    Attributes:
        touch_bytes_per_s: of memory, for each second of computing.
        burst_s: computing between two times at which it waits for what was missing.
    """

    touch_bytes_per_s: float = 20e6
    burst_s: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what is none."""
        if not 0.0 < self.touch_bytes_per_s < math.inf or not 0.0 < self.burst_s < math.inf:
            raise ValueError("touch_bytes_per_s and burst_s are above 0")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A row of table 3.

    Attributes:
        index: its number.
        jobs: batch length.
        apps: one: duplicated; several: each job is drawn from them at random.
        timeslice_s: TIMESLICE, of all policies.
    """

    index: int
    jobs: int
    apps: tuple[str, ...]
    timeslice_s: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a workload of nothing."""
        if self.jobs < 1 or not self.apps or not self.timeslice_s > 0.0:
            raise ValueError(f"workload {self.index}: jobs, apps and a timeslice above 0")


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A job.

    Attributes:
        app: its application.
        alone_s: how long it takes alone.
        io_part: the part of that in I/O.
        submission: as it is submitted, and what it really does.
    """

    app: str
    alone_s: float
    io_part: float
    submission: Submission


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """All that jobs are drawn from.

    Attributes:
        apps: by name.
        paging: of those that touch their memory.
        spread: computing and bytes of each cycle (of applications that touch: of the job) are
            drawn uniformly within this part of the mean.
    """

    apps: dict[str, App]
    paging: Paging = Paging()
    spread: float = 0.2

    def __post_init__(self) -> None:
        """Refuse a spread that is none."""
        if not 0.0 <= self.spread < 1.0:
            raise ValueError(f"spread is {self.spread:g}; 0 or more, and below 1")

    def check(self, workload: Workload) -> None:
        """Refuse a workload of applications that are not there.

        Raises:
            ValueError: names the one.
        """
        for name in workload.apps:
            if name not in self.apps:
                raise ValueError(f"workload {workload.index}: {nearest(name, tuple(self.apps))}")

    def draw(self, workload: Workload, server: Server, seed: int) -> tuple[Piece, ...]:
        """The jobs of a seed, all submitted at once; more of them begin with the same ones."""
        key = f"lv {workload.index} {seed}"
        names = random.Random(key).choices(workload.apps, k=workload.jobs)  # noqa: S311 - no secrets
        return tuple(
            draw_job(name, self.apps[name], self, server, key, number)
            for number, name in enumerate(names, start=1)
        )


def draw_job(name: str, app: App, load: Load, server: Server, key: str, number: int) -> Piece:
    """One job of an application; the same key and number, the same job."""
    rng = random.Random(f"{key} {number}")  # noqa: S311 - for experiments, not for secrets
    profile, compute_s, io_bytes = (_touching if app.touches else _cycling)(app, load, rng)
    spec = JobSpec(
        command=("simulated", name),
        name=f"{name}-{number}",
        cpus=1 if app.threads == 1 else server.slots,
    )
    alone_s = compute_s + io_bytes / server.alone_bytes_per_s(app.io_streams)
    submission = (0.0, spec, profile)
    io_part = 1.0 - compute_s / alone_s
    return Piece(app=name, alone_s=alone_s, io_part=io_part, submission=submission)


def _touching(app: App, load: Load, rng: random.Random) -> tuple[Profile, float, int]:
    compute_s = app.compute_s * _factor(load, rng)
    bursts = max(1, round(compute_s / load.paging.burst_s))
    burst_s = compute_s / bursts
    steps = (Compute(burst_s), Touch(round(burst_s * load.paging.touch_bytes_per_s)))
    profile = Profile(steps=steps, repeat=bursts, resident_bytes=app.resident_bytes)
    return profile, compute_s, 0


def _cycling(app: App, load: Load, rng: random.Random) -> tuple[Profile, float, int]:
    steps: list[Step] = []
    total_s, total_bytes = 0.0, 0
    if app.at_start > 0.0:
        total_bytes = round(app.read_bytes * app.at_start * _factor(load, rng))
        steps.append(Read(total_bytes, streams=app.io_streams))
    later_bytes = app.read_bytes * (1.0 - app.at_start)
    for _ in range(app.cycles):
        compute_s = app.compute_s / app.cycles * _factor(load, rng)
        factor = _factor(load, rng)
        read_bytes = round(later_bytes / app.cycles * factor)
        write_bytes = round(app.write_bytes / app.cycles * factor)
        steps += [
            Read(read_bytes, streams=app.io_streams),
            Compute(compute_s),
            Write(write_bytes, direct=True, streams=app.io_streams),
        ]
        total_s += compute_s
        total_bytes += read_bytes + write_bytes
    return Profile(steps=tuple(steps), resident_bytes=app.resident_bytes), total_s, total_bytes


def _factor(load: Load, rng: random.Random) -> float:
    return rng.uniform(1.0 - load.spread, 1.0 + load.spread)
