"""Runs a policy on small simulated loads, which finds rules that fail.

The loads are the same for everybody and every time. They have what a rule may not expect: an empty
queue, jobs without any hint, I/O that cannot be read, jobs that all stand still, a full queue at
once, jobs that want scratch space, regulation in shadow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from iodaemon.core import event as ev
from iodaemon.core.job import DiskId, JobId, ScratchRequest, TierName
from iodaemon.core.platform import Device, DeviceId, Partition, PartitionId, Platform, Slot, SlotId
from iodaemon.core.rule import Limit, Mode, Rules, no_limit
from iodaemon.core.rule_error import RuleError
from iodaemon.core.sample import NodeCounters, Sample
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier
from iodaemon.model.node import Model, SimulatedDisk, default_platform
from iodaemon.simulator.run import Submission, simulate
from iodaemon.simulator.workload import Mix, random_workload

_SEED: Final = 1
_DAY_S: Final = 86400.0
"""Of virtual time; the jobs of a load take about 20 minutes."""
_GB: Final = 10**9


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated load.

    Attributes:
        name: for people.
        mix: its jobs.
        events: what else happens.
        tiers: of storage; with them every second job wants space.
        mode: of regulation.
    """

    name: str
    mix: Mix
    events: tuple[ev.Event, ...] = ()
    tiers: tuple[Tier, ...] = ()
    mode: Mode = Mode.ON


def try_policy(rules: Rules, platform: Platform, *, limit: Limit = no_limit) -> tuple[str, ...]:
    """Run the policy on every load; what people should know of how it went, one line each.

    Args:
        rules: the policy.
        platform: of which the jobs are run.
        limit: on the time that a rule may take.

    Raises:
        RuleError: a rule failed; names its file and line, and the load.
    """
    remarks: list[str] = []
    for load in loads(platform):
        try:
            left = _left_over(rules, platform, load, limit)
        except RuleError as error:
            problem = f"{error.fault.problem} (on the simulated load '{load.name}')"
            fault = msgspec.structs.replace(error.fault, problem=problem)
            raise RuleError(fault) from error.__cause__
        if left:
            remarks.append(
                f"on the simulated load '{load.name}' {left} of {load.mix.jobs} jobs had not ended "
                "after a day; a rule that starts or resumes nobody does that"
            )
    return tuple(remarks)


def loads(platform: Platform) -> Iterator[Load]:
    """Every load, with jobs that fit a socket of the platform."""
    cpus = (1, min(2, max(len(partition.slots) for partition in platform.partitions)))
    mix = Mix(jobs=40, mean_gap_s=1.0, cpus=cpus, steps=(1, 4), compute_s=(0.5, 10.0))
    other = partial(msgspec.structs.replace, mix)
    mixed = other(jobs=100, hides_io_ratio=0.1, speaks_ratio=0.1)
    yield Load(name="mixed jobs", mix=mixed)
    yield Load(name="shadow", mix=mixed, mode=Mode.SHADOW)
    yield Load(name="no hints", mix=other(declared_ratio=0.0, walltime_ratio=0.0))
    yield Load(name="unknown I/O", mix=other(hides_io_ratio=1.0))
    yield Load(name="all at once", mix=other(mean_gap_s=0.0))
    yield Load(name="empty queue", mix=other(jobs=1), events=_quiet_node())
    yield Load(name="all suspended", mix=other(mean_gap_s=0.0), events=_everybody_held(40))
    yield Load(name="scratch space", mix=mix, tiers=_tiers())


def platform_of(node: Mapping[str, Any]) -> Platform:
    """The platform of a daemon, by its answer to ``GET /v1/node``."""
    partitions: list[Partition] = []
    first = 0
    for socket in node["sockets"]:
        slots = (Slot(id=SlotId(at), cpus=(at,)) for at in range(first, first + socket["slots"]))
        partitions.append(Partition(id=PartitionId(socket["id"]), slots=tuple(slots)))
        first += socket["slots"]
    devices = (
        Device(
            id=DeviceId(device["id"]),
            rotational=device.get("rotational"),
            capacity_bytes_per_s=device.get("capacity_bytes_per_s"),
        )
        for device in node["devices"]
    )
    return Platform(partitions=tuple(partitions), devices=tuple(devices))


def any_platform() -> Platform:
    """Two sockets and a disk of which nothing is known."""
    return default_platform()


def _left_over(rules: Rules, platform: Platform, load: Load, limit: Limit) -> int:
    work: Sequence[Submission] = random_workload(load.mix, _SEED)
    if load.tiers:
        work = [_with_space(number, each) for number, each in enumerate(work)]
    disk = SimulatedDisk() if not platform.devices else SimulatedDisk(id=platform.devices[0].id)
    result = simulate(
        platform,
        rules,
        work,
        tiers=load.tiers,
        model=Model(disk=disk),
        seed=_SEED,
        mode=load.mode,
        until_s=_DAY_S,
        events=load.events,
        limit=limit,
    )
    return load.mix.jobs - len(result.finished)


def _quiet_node() -> tuple[ev.Event, ...]:
    """Before its job and after its end: instants without jobs, samples without counters."""
    nothing = Sample(at_s=0.0, jobs={}, devices={}, node=NodeCounters())
    times_s = (1000.0, 1001.0, 1002.0)
    samples = (msgspec.structs.replace(nothing, at_s=time_s) for time_s in times_s)
    return (
        ev.TimerFired(at_s=999.0),
        *(ev.SampleTaken(at_s=sample.at_s, sample=sample) for sample in samples),
    )


def _everybody_held(jobs: int) -> tuple[ev.Event, ...]:
    ids = [JobId(number) for number in range(1, jobs + 1)]
    held = (ev.SuspendRequested(at_s=3.0, job_id=job_id, by="check") for job_id in ids)
    let_go = (ev.ResumeRequested(at_s=13.0, job_id=job_id, by="check") for job_id in ids)
    return (*held, *let_go)


def _tiers() -> tuple[Tier, ...]:
    disks = tuple(
        Disk(
            id=DiskId(f"/check/{number}"),
            capacity_bytes=100 * _GB,
            read_bytes_per_s=2.0 * _GB,
            write_bytes_per_s=1.0 * _GB,
        )
        for number in range(2)
    )
    storage = Storage(nodes=(StorageNode(id="node", disks=disks),))
    fast = Tier(name=TierName("fast"), storage=storage, bandwidth_bytes_per_s=2.0 * _GB)
    return (
        msgspec.structs.replace(fast, staging_bytes_per_s=0.5 * _GB),
        Tier(name=TierName("slow"), storage=None, bandwidth_bytes_per_s=0.5 * _GB),
    )


def _with_space(number: int, submission: Submission) -> Submission:
    submit_s, spec, profile = submission
    if number % 2:
        return submission
    wanted = ScratchRequest(size_bytes=(1 + number % 7) * 10 * _GB)
    return submit_s, msgspec.structs.replace(spec, scratch=wanted), profile
