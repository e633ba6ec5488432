"""Where rules for admission and for regulation are crossed: a machine, its storage, its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from iodaemon.config import decode_table
from iodaemon.core.platform import Device, DeviceId, Platform
from iodaemon.core.rule import Rules
from iodaemon.model.disk import SimulatedDisk
from iodaemon.model.node import default_platform
from iodaemon.model.profile import Compute, Profile, Step, Write
from iodaemon.model.spec import Model
from iodaemon.policy.placement import least_io
from iodaemon.registry import Kind as RuleKind
from iodaemon.registry import find_rule
from iodaemon.simulator.cluster import Cluster, ClusterJob, submission
from iodaemon.simulator.equilibrio import Mix, draw_workload, hinted_places
from iodaemon.simulator.mixed import Piece, Queue, draw_queue
from iodaemon.simulator.scenario import Disk

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
