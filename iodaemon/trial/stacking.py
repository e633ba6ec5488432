"""``iod stack``: the same job on 1, 2, 4 ... sockets, each of them fully loaded.

What a job loses by those on other sockets is what they contend for together: the storage.

Source: Lv et al., JCST 2014, section 2 (CMP stacking), eq. 1, figures 1 and 5 to 8. Their figures 2
and 3 (cache coherence) are not redrawn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.core.measure import lv_normalized_runtime
from iodaemon.core.platform import Partition
from iodaemon.errors import IodaemonError, RequestError
from iodaemon.node.topology import format_cpu_list
from iodaemon.trial.comparing import ALONE_POLICY, medians_s, time_alone, times_alone_s
from iodaemon.trial.fit import check_memory, check_widths, find_parts
from iodaemon.trial.interruption import InterruptedTrialError
from iodaemon.trial.latency import Slice, Uncontended, latency_of, slices_of, uncontended
from iodaemon.trial.machine import describe
from iodaemon.trial.run import (
    Conduct,
    Course,
    Raw,
    Tell,
    fresh_daemon,
    run_jobs,
    run_s,
    short_notes,
)
from iodaemon.trial.site import Site
from iodaemon.trial.workload import JobTable, Workload, job_spec

MOST_PARTS: Final = 8
"""Sockets that a machine with one is divided into at most: as many as Lv et al. had."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets that are stacked.

    Attributes:
        sockets: CPUs of each, as a list of the kernel.
        slots: of each.
        steps: how many sockets are loaded, ascending from 1.
        is_divided: they are parts of one socket of the machine, or as the workload file says.
    """

    sockets: tuple[str, ...]
    slots: tuple[int, ...]
    steps: tuple[int, ...]
    is_divided: bool

    def copies(self, step: int, cpus: int) -> int:
        """Jobs of so many slots that fill the first sockets."""
        return sum(slots // cpus for slots in self.slots[:step])


class StepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of job on so many sockets, once.

    Attributes:
        kind: of the job.
        sockets: loaded.
        round: from 1.
        jobs: that ran together.
        runtime_s: mean of the jobs' times from start to end.
        runtimes_s: of each.
        waiting_s: as in ``Latency``; None: no disk is known, or it had nothing to do.
        serving_s: the same.
        busy_s: the same.
        contended_ratio: the same.
        used_ratio: most memory in use, of all.
    """

    kind: str
    sockets: int
    round: int
    jobs: int
    runtime_s: float
    runtimes_s: tuple[float, ...]
    waiting_s: float | None = None
    serving_s: float | None = None
    busy_s: float | None = None
    contended_ratio: float | None = None
    used_ratio: float | None = None


class Stacked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; as ``Outcome`` of a comparison."""

    workload: str
    path: str
    layout: Layout
    rounds_asked: int
    rounds: int
    alone_s: dict[str, float]
    alone_times_s: dict[str, tuple[float, ...]]
    runs: tuple[StepRun, ...]
    machine: dict[str, Any]
    notes: tuple[str, ...]
    began_s: float
    signal_number: int | None = None
    failure: IodaemonError | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a curve: medians over the rounds, with the range of the normalized run time."""

    kind: str
    sockets: int
    jobs: int
    rounds: int
    runtime_s: float
    normalized: float
    normalized_low: float
    normalized_high: float
    waiting_s: float | None
    serving_s: float | None
    busy_s: float | None
    contended_ratio: float | None
    used_ratio: float | None


def lay_out(workload: Workload, root: Path = Path("/")) -> Layout:
    """The sockets to stack: those of the file, else the machine's; one socket is divided by cores.

    Raises:
        RequestError: there is nothing to stack, or a job does not fit on a socket.
        ConfigError: the file's sockets do not fit the machine.
    """
    topology = workload.topology
    found = find_parts(workload, root)
    if len(found) == 1:
        groups = divide(found[0])
        slots = [len(found[0].slots) // len(groups)] * len(groups)
    else:
        groups = [sorted(cpu for slot in part.slots for cpu in slot.cpus) for part in found]
        slots = [len(part.slots) for part in found]
    slots = [each * topology.times for each in slots]
    if len(groups) < 2:
        raise RequestError("this machine has one core to use: there is nothing to stack")
    check_widths(workload, min(slots))
    layout = Layout(
        sockets=tuple(format_cpu_list(each) for each in groups),
        slots=tuple(slots),
        steps=steps_of(len(groups)),
        is_divided=bool(topology.sockets) or len(found) == 1,
    )
    together = zip(workload.jobs, largest_copies(workload, layout), strict=True)
    check_memory(workload, max(job.hold_bytes * copies for job, copies in together))
    return layout


def divide(part: Partition) -> list[list[int]]:
    """The CPUs of a socket in equal groups of cores: a power of 2 of them, at most eight."""
    count = 1
    while count * 2 <= min(MOST_PARTS, len(part.slots)):
        count *= 2
    each = len(part.slots) // count
    slots = [part.slots[at * each : (at + 1) * each] for at in range(count)]
    return [sorted(cpu for slot in group for cpu in slot.cpus) for group in slots]


def steps_of(sockets: int) -> tuple[int, ...]:
    """1, 2, 4 ... and all of them."""
    powers = [1 << power for power in range(sockets.bit_length()) if 1 << power <= sockets]
    return tuple(sorted({*powers, sockets}))


def largest_copies(workload: Workload, layout: Layout) -> list[int]:
    """How many copies of each job run together on all sockets."""
    return [layout.copies(layout.steps[-1], job.cpus) for job in workload.jobs]


def stack(
    place: Site, layout: Layout, rounds: int, *, check: Callable[[], None], tell: Tell
) -> Stacked:
    """Run every kind of job alone and on every number of sockets; every second round backwards.

    Ends early as a comparison does; a round that was not completed is left out.
    """
    began_s = time.time()
    alone: dict[str, list[Raw]] = {}
    raws: list[tuple[JobTable, int, int, Raw]] = []
    number: int | None = None
    failure: IodaemonError | None = None
    tasks = [(job, step) for job in place.workload.jobs for step in layout.steps]
    course = Course(rounds * (len(place.workload.jobs) + len(tasks)), check=check, tell=tell)
    try:
        for round_ in range(1, rounds + 1):
            time_alone(place, alone, round_, rounds=rounds, course=course)
            for job, step in tasks if round_ % 2 else tasks[::-1]:
                what = f"round {round_} of {rounds}, {job.name} on {_sockets(step)}"
                raw = _run_step(place, layout, job, step, what=what, conduct=course.next(what))
                raws.append((job, step, round_, raw))
    except InterruptedTrialError as error:
        number = error.signal_number
    except IodaemonError as error:
        failure = error
    complete = len(raws) // len(tasks)
    alone_times_s = times_alone_s(alone)
    others = [raw for each in alone.values() for raw in each]
    return Stacked(
        workload=place.workload.name,
        path=str(place.workload.path),
        layout=layout,
        rounds_asked=rounds,
        rounds=complete,
        alone_s=medians_s(alone_times_s),
        alone_times_s=alone_times_s,
        runs=_step_runs([each for each in raws if each[2] <= complete], others, place),
        machine=describe(place.disks),
        notes=(*place.notes, *short_notes([raw for *_, raw in raws])),
        began_s=began_s,
        signal_number=number,
        failure=failure,
    )


def _run_step(
    place: Site,
    layout: Layout,
    job: JobTable,
    step: int,
    *,
    what: str,
    conduct: Conduct,
) -> Raw:
    specs = [
        job_spec(job, copy, place.workload, place.places)
        for copy in range(layout.copies(step, job.cpus))
    ]
    topology = msgspec.to_builtins(place.workload.topology)
    settings = {
        "policy": ALONE_POLICY,
        "topology": {**topology, "sockets": list(layout.sockets[:step])},
    }
    with fresh_daemon(place, settings) as daemon:
        return run_jobs(daemon, specs, place, conduct, what=what)


def _step_runs(
    raws: Sequence[tuple[JobTable, int, int, Raw]], alone: Iterable[Raw], place: Site
) -> tuple[StepRun, ...]:
    slices = [slices_of(raw.looks) for *_, raw in raws]
    others = [slices_of(raw.looks) for raw in alone]
    everything = (each for group in (*slices, *others) for each in group)
    base_s = uncontended(everything, place.services)
    return tuple(
        _step_run(job.name, step, round_, raw, each, base_s)
        for (job, step, round_, raw), each in zip(raws, slices, strict=True)
    )


def _step_run(
    kind: str, step: int, number: int, raw: Raw, slices: Sequence[Slice], base_s: Uncontended
) -> StepRun:
    times = tuple(map(run_s, raw.jobs))
    latency = latency_of(slices, base_s)
    return StepRun(
        kind=kind,
        sockets=step,
        round=number,
        jobs=len(raw.jobs),
        runtime_s=statistics.mean(times),
        runtimes_s=times,
        waiting_s=None if latency is None else latency.waiting_s,
        serving_s=None if latency is None else latency.serving_s,
        busy_s=None if latency is None else latency.busy_s,
        contended_ratio=None if latency is None else latency.contended_ratio,
        used_ratio=raw.used_ratio,
    )


def summarise(runs: Sequence[StepRun]) -> tuple[Step, ...]:
    """The points of the curves, by kind in the order of the file, then by sockets."""
    kinds = dict.fromkeys(run.kind for run in sorted(runs, key=lambda run: run.round))
    steps = sorted({run.sockets for run in runs})
    return tuple(_point(runs, kind, step) for kind in kinds for step in steps)


def _point(runs: Sequence[StepRun], kind: str, step: int) -> Step:
    first_s = {run.round: run.runtime_s for run in runs if (run.kind, run.sockets) == (kind, 1)}
    own = [run for run in runs if (run.kind, run.sockets) == (kind, step)]
    normalized = [lv_normalized_runtime(run.runtime_s, first_s[run.round]) for run in own]
    return Step(
        kind=kind,
        sockets=step,
        jobs=own[0].jobs,
        rounds=len(own),
        runtime_s=statistics.median(run.runtime_s for run in own),
        normalized=statistics.median(normalized),
        normalized_low=min(normalized),
        normalized_high=max(normalized),
        waiting_s=_median(own, "waiting_s"),
        serving_s=_median(own, "serving_s"),
        busy_s=_median(own, "busy_s"),
        contended_ratio=_median(own, "contended_ratio"),
        used_ratio=_median(own, "used_ratio"),
    )


def _median(runs: Sequence[StepRun], key: str) -> float | None:
    values = [value for run in runs if (value := getattr(run, key)) is not None]
    return statistics.median(values) if values else None


def _sockets(step: int) -> str:
    return "1 socket" if step == 1 else f"{step} sockets"
