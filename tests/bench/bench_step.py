"""R3: one step of the controller, without any process or disk."""

from __future__ import annotations

import statistics
import time

from bench_daemon import ROOT
from bench_figure import Check, Section, Series
from bench_plan import Plan

from iodaemon.config import load_policy
from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.job import Job, JobId, JobSpec, JobState
from iodaemon.core.platform import Device, DeviceId, Partition, PartitionId, Platform, Slot, SlotId
from iodaemon.core.sample import DeviceCounters, JobCounters, NodeCounters, Sample
from iodaemon.core.state import State

RUNNING = 64
MB = 1_000_000
POLICIES = ("default", "none")


def _platform() -> Platform:
    slots = tuple(Slot(id=SlotId(number), cpus=(number,)) for number in range(RUNNING))
    halves = (slots[: RUNNING // 2], slots[RUNNING // 2 :])
    partitions = tuple(
        Partition(id=PartitionId(number), slots=half) for number, half in enumerate(halves)
    )
    return Platform(partitions=partitions, devices=(Device(id=DeviceId("8:0")),))


def new_job(number: int, at_s: float = 0.0) -> Job:
    """A job that waits."""
    return Job(
        id=JobId(number),
        spec=JobSpec(command=("true",)),
        uid=0,
        state=JobState.PENDING,
        since_s=at_s,
        submitted_s=at_s,
    )


def _sample(number: int) -> Sample:
    """Every job moves a little, each at its own rate."""
    jobs = {
        JobId(job): JobCounters(
            read_bytes=number * job * MB, written_bytes=number * MB, operations=number * 10
        )
        for job in range(1, RUNNING + 1)
    }
    busy = DeviceCounters(
        **{name: number * 100 for name in DeviceCounters.__struct_fields__ if name != "in_flight"},
        in_flight=1,
    )
    return Sample(
        at_s=float(number), jobs=jobs, devices={DeviceId("8:0"): busy}, node=NodeCounters()
    )


def _controller(policy: str, pending: int, finished: int) -> Controller:
    rules = load_policy(str(ROOT / f"policies/{policy}.toml"), overrides={}, search=()).rules
    controller = Controller(State(_platform()), rules)
    first = RUNNING + pending
    controller.step([ev.JobSubmitted(at_s=0.0, job=new_job(n)) for n in range(1, first + 1)])
    controller.step(
        [ev.JobStarted(at_s=0.0, job_id=JobId(n), attempt=1) for n in range(1, RUNNING + 1)]
    )
    for begin in range(first + 1, first + finished + 1, 1000):
        ids = range(begin, min(begin + 1000, first + finished + 1))
        controller.step([ev.JobSubmitted(at_s=0.0, job=new_job(n)) for n in ids])
        ends = [ev.CancelRequested(at_s=0.0, job_id=JobId(n), by="bench", grace_s=0.0) for n in ids]
        controller.step(ends)
    return controller


def _ticks_ms(controller: Controller, count: int) -> list[float]:
    found = []
    for number in range(1, count + 1):
        event = ev.SampleTaken(at_s=float(number), sample=_sample(number))
        began_s = time.perf_counter()
        controller.step([event])
        found.append((time.perf_counter() - began_s) * 1000.0)
    return found


def measure_step(plan: Plan) -> Section:
    """R3."""
    pending = 2000 if plan.is_quick else 10_000
    finished = 2000 if plan.is_quick else 50_000
    count = 50 if plan.is_quick else 300
    series = []
    for policy in POLICIES:
        for ended in (0, finished):
            name = f"policy {policy}, {ended:,} jobs have ended"
            ticks = _ticks_ms(_controller(policy, pending, ended), count)
            series.append(Series(name, ticks, "ms"))
    medians = [statistics.median(one.values) for one in series]
    return Section(
        title=f"R3: a timeslice's step, {pending:,} waiting and {RUNNING} running",
        series=series,
        checks=[
            Check("median", medians[0], 1.0, "ms"),
            Check(f"with {finished:,} ended to none", medians[1] / medians[0], 1.2, "times"),
        ],
        notes=[f"{count} ticks in a row, each with a sample in which every job moved something"],
    )
