"""Where rules for admission and for regulation are crossed: a machine, its storage, its jobs.

A server has a mixed queue: jobs of several kinds, most of which say something of themselves.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from iodaemon.config import decode_table
from iodaemon.core.job import JobSpec
from iodaemon.core.platform import Device, DeviceId, Platform
from iodaemon.core.rule import Rules
from iodaemon.model.disk import SimulatedDisk
from iodaemon.model.node import default_platform
from iodaemon.model.profile import Compute, Profile, Read, Step, Write
from iodaemon.model.spec import Model
from iodaemon.policy.placement import least_io
from iodaemon.registry import Kind as RuleKind
from iodaemon.registry import find_rule
from iodaemon.simulator.cluster import Cluster, ClusterJob, submission
from iodaemon.simulator.equilibrio import Mix, draw_workload, hinted_places
from iodaemon.simulator.run import Submission
from iodaemon.simulator.scenario import Disk


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are alike; ranges are drawn from uniformly, both ends included.

    Attributes:
        name: for people.
        part: how often it is drawn, relative to the other kinds.
        cpus: slots, one of these each.
        cycles: a job does its steps so many times.
        compute_s: computing of a cycle.
        read_bytes: read in a cycle; 0 for none.
        write_bytes: written in a cycle, past the page cache; 0 for none.
    """

    name: str
    part: float = 1.0
    cpus: tuple[int, ...] = (1,)
    cycles: tuple[int, int] = (1, 1)
    compute_s: tuple[float, float] = (1.0, 1.0)
    read_bytes: tuple[int, int] = (0, 0)
    write_bytes: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        """Refuse ranges that are none."""
        if not self.part > 0.0 or not self.cpus or min(self.cpus) < 1:
            raise ValueError(f"kind {self.name!r}: part is above 0, cpus lists numbers from 1 on")
        for key, least in (("cycles", 1), ("compute_s", 0), ("read_bytes", 0), ("write_bytes", 0)):
            low, high = getattr(self, key)
            if not least <= low <= high < math.inf:
                raise ValueError(f"kind {self.name!r}: {key} is {low} to {high}; {least} or more")


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """What comes, how fast, and what is said of it.

    Attributes:
        jobs: how many.
        mean_gap_s: mean time between two submits (exponential).
        kinds: at least one.
        walltime_ratio: part of the jobs that have a walltime.
        walltime: walltime / time alone.
        hint_ratio: part of the jobs that declare their I/O.
        hint_error: how wrong the declared rate is: its natural logarithm is off by a normal
            deviate of this standard deviation. 0: they know it exactly.
    """

    jobs: int = 80
    mean_gap_s: float = 10.0
    kinds: tuple[Kind, ...] = ()
    walltime_ratio: float = 0.8
    walltime: tuple[float, float] = (1.2, 4.0)
    hint_ratio: float = 0.75
    hint_error: float = 0.3

    def __post_init__(self) -> None:
        """Refuse a queue of nothing."""
        if self.jobs < 1 or not self.kinds:
            raise ValueError("jobs is at least 1, and kinds lists at least one kind")
        for key in ("walltime_ratio", "hint_ratio"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be 0 to 1")
        if not 1.0 <= self.walltime[0] <= self.walltime[1] < math.inf:
            raise ValueError(f"walltime is {list(self.walltime)}; [from, to], 1 or more")
        for key in ("mean_gap_s", "hint_error"):
            if not 0.0 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key} is {getattr(self, key):g}; it must not be below 0")


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and how it is alone on the idle machine.

    Attributes:
        submission: as the controller is told of it, and what it really does.
        compute_s: its time out of I/O.
        io_alone_s: its time in I/O.
    """

    submission: Submission
    compute_s: float
    io_alone_s: float

    @property
    def alone_s(self) -> float:
        """How long it takes."""
        return self.compute_s + self.io_alone_s


class _Does(msgspec.Struct, frozen=True, kw_only=True):
    """What a job was drawn to do in all."""

    profile: Profile
    compute_s: float
    io_bytes: int


def draw_queue(
    queue: Queue, seed: int, *, stream_bytes_per_s: float, transfers: float = 1.0
) -> tuple[Piece, ...]:
    """The jobs of a seed, ordered by submit time.

    Args:
        queue: what is wanted.
        seed: same seed, same jobs.
        stream_bytes_per_s: what one job alone gets of the storage.
        transfers: all sizes are multiplied by it, for a storage so many times as fast.
    """
    rng = random.Random(f"mixed {seed}")  # noqa: S311 - for experiments, not for secrets
    submit_s = 0.0
    pieces: list[Piece] = []
    for kind in _kinds(queue, rng):
        does = _draw(kind, rng, transfers)
        io_alone_s = does.io_bytes / stream_bytes_per_s
        alone_s = does.compute_s + io_alone_s
        spec = _spec(queue, kind, rng, number=len(pieces) + 1, does=does, alone_s=alone_s)
        submission = (submit_s, spec, does.profile)
        pieces.append(Piece(submission=submission, compute_s=does.compute_s, io_alone_s=io_alone_s))
        if queue.mean_gap_s > 0.0:
            submit_s += rng.expovariate(1.0 / queue.mean_gap_s)
    return tuple(pieces)


def _kinds(queue: Queue, rng: random.Random) -> Sequence[Kind]:
    return rng.choices(queue.kinds, [kind.part for kind in queue.kinds], k=queue.jobs)


def _draw(kind: Kind, rng: random.Random, transfers: float) -> _Does:
    steps: list[Step] = []
    compute_s, io_bytes = 0.0, 0
    for _ in range(rng.randint(*kind.cycles)):
        seconds = rng.uniform(*kind.compute_s)
        read_bytes = round(rng.uniform(*kind.read_bytes) * transfers)
        write_bytes = round(rng.uniform(*kind.write_bytes) * transfers)
        steps += [Read(read_bytes), Compute(seconds), Write(write_bytes, direct=True)]
        compute_s += seconds
        io_bytes += read_bytes + write_bytes
    return _Does(profile=Profile(steps=tuple(steps)), compute_s=compute_s, io_bytes=io_bytes)


def _spec(
    queue: Queue, kind: Kind, rng: random.Random, *, number: int, does: _Does, alone_s: float
) -> JobSpec:
    """What it says of itself. As many numbers are drawn whatever is said."""
    says_walltime, factor = rng.random() < queue.walltime_ratio, rng.uniform(*queue.walltime)
    says_io, error = rng.random() < queue.hint_ratio, math.exp(rng.gauss(0.0, queue.hint_error))
    io_s = alone_s - does.compute_s
    rate = does.io_bytes / io_s if io_s > 0.0 else 0.0
    return JobSpec(
        command=("simulated",),
        name=f"{kind.name}-{number}",
        cpus=rng.choice(kind.cpus),
        walltime_s=alone_s * factor if says_walltime else None,
        io_rate_bytes_per_s=rate * error if says_io else None,
        io_share=io_s / alone_s if says_io and alone_s > 0.0 else None,
    )


Tables = dict[str, dict[str, Any]]
"""Parameters of rules as a policy file has them, by the rule's name. One with ``rule`` is a rule of
another name with these parameters."""
_PFS: Final = DeviceId("pfs")
_PFS_REQUEST_BYTES: Final = 2**20
"""What a client of a parallel file system asks for at once."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server and its mixed queue.

    Attributes:
        id: its name in the table.
        sockets: of the machine.
        slots: of each socket.
        disk: below all of them.
        rotational: whether the kernel says that it has an arm.
        transfers: sizes of all reads and writes are multiplied by this.
        queue: the jobs. None: those of the study.
        rules: parameters of rules on this machine.
        max_suspend_s: the controller's guard. None lifts it.
    """

    id: str
    sockets: int = 2
    slots: int = 8
    disk: Disk = Disk()
    rotational: bool = False
    transfers: float = 1.0
    queue: Queue | None = None
    rules: Tables = {}
    max_suspend_s: float | None = 600.0

    def platform(self) -> Platform:
        """What is handed out; how fast the disk is is not known to it."""
        device = Device(id=DeviceId("sim0"), rotational=self.rotational)
        partitions = default_platform(self.sockets, self.slots).partitions
        return Platform(partitions=partitions, devices=(device,))

    def model(self) -> Model:
        """What is shared."""
        return Model(disk=self.disk.simulated())

    def work(self, seed: int) -> tuple[Piece, ...]:
        """The jobs of a seed; there is a queue."""
        assert self.queue is not None
        disk = self.disk.simulated()
        alone = disk.capacity_bytes_per_s * disk.scaling(1)
        if disk.stream_cap_bytes_per_s is not None:
            alone = min(alone, disk.stream_cap_bytes_per_s)
        return draw_queue(self.queue, seed, stream_bytes_per_s=alone, transfers=self.transfers)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster with a parallel file system that is seen as clients see it.

    The file system is a device with the counters of a disk: requests, and the time that they took,
    summed over all clients. It is never slower for having many; a job's I/O is one stream of it.

    Attributes:
        id: its name in the table.
        cluster: nodes, file system, network.
        mix: the jobs.
        knowledge: part of the jobs whose I/O is declared.
        rules: parameters of rules on this machine.
        max_suspend_s: the controller's guard. None lifts it.
    """

    id: str
    cluster: Cluster = Cluster()
    mix: Mix = Mix()
    knowledge: float = 0.75
    rules: Tables = {}
    max_suspend_s: float | None = 3600.0

    def platform(self) -> Platform:
        """All nodes, and the file system."""
        partitions = self.cluster.platform().partitions
        return Platform(partitions=partitions, devices=(Device(id=_PFS, rotational=False),))

    def model(self) -> Model:
        """The file system, without a cache."""
        disk = SimulatedDisk(
            id=_PFS,
            capacity_bytes_per_s=self.cluster.file_system_bytes_per_s,
            request_bytes=_PFS_REQUEST_BYTES,
        )
        return Model(disk=disk)

    def work(self, seed: int) -> tuple[Piece, ...]:
        """The jobs of a seed."""
        jobs = draw_workload(self.mix, self.cluster, seed)
        hinted = hinted_places(len(jobs), self.knowledge, seed)
        return tuple(self._piece(job, is_hinted=place in hinted) for place, job in enumerate(jobs))

    def _piece(self, job: ClusterJob, *, is_hinted: bool) -> Piece:
        submit_s, spec, _ = submission(self.cluster, job, is_hinted=is_hinted)
        return Piece(
            submission=(submit_s, spec, self._profile(job)),
            compute_s=job.compute_s,
            io_alone_s=self.cluster.io_alone_s(job),
        )

    def _profile(self, job: ClusterJob) -> Profile:
        """As ``Cluster.profile``, but to the device."""
        cycles = self.cluster.cycles
        steps: list[Step] = [Compute(job.compute_s / cycles)]
        if job.does_io:
            transfer = self.cluster.transfer(job.nodes, job.io_bytes / cycles, job.io_bytes_per_s)
            size_bytes = max(1, round(transfer.size_bytes))
            write = Write(size_bytes, cap_bytes_per_s=transfer.cap_bytes_per_s, direct=True)
            steps += (*self.cluster.delay, write)
        return Profile(steps=tuple(steps), repeat=cycles)


Place = Server | Site


def rules_of(place: Place, admission: str, regulation: str) -> Rules:
    """The policy of a pair. Jobs that run past their walltime are let go on, and counted.

    Raises:
        ConfigError: there is no such rule, or it does not take its parameters.
    """
    return Rules(
        name=f"{admission}+{regulation}",
        admission=_rule("admission", admission, place.rules, place.id),
        regulation=_rule("regulation", regulation, place.rules, place.id),
        placement=least_io.Rule(),
        max_suspend_s=place.max_suspend_s,
        ends_overdue=False,
    )


def _rule(kind: RuleKind, name: str, tables: Mapping[str, Mapping[str, Any]], where: str) -> Any:
    parameters = dict(tables.get(name, {}))
    type_ = find_rule(kind, str(parameters.pop("rule", name)))
    return decode_table(parameters, type_, where=f"{where} rules.{name}")
