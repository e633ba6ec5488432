"""``iod compare``: the same real jobs under each policy, in alternating rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from iodaemon.errors import IodaemonError
from iodaemon.trial.interruption import InterruptedTrialError
from iodaemon.trial.latency import Slice, Uncontended, latency_of, slices_of, uncontended
from iodaemon.trial.machine import describe
from iodaemon.trial.run import Course, Raw, Tell, fresh_daemon, run_jobs, run_s, short_notes
from iodaemon.trial.site import Site
from iodaemon.trial.summary import JobTime, Run, complete_rounds, job_measures
from iodaemon.trial.workload import Workload, job_spec

ALONE_POLICY: Final = "none"
"""Under which jobs are timed alone: nobody to be protected from."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy to compare; ``source`` is its name or file, as a configuration takes it."""

    name: str
    source: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    policies: tuple[Policy, ...]
    rounds: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        workload: its name.
        path: its file.
        policies: in the order in which they were asked for; the first is compared with.
        rounds_asked: so many.
        rounds: complete ones, of which alone the summary speaks.
        counts: copies of each kind of job.
        alone_s: run time of one job of each kind with the machine to itself, median of the rounds.
        alone_times_s: the same of each round that has begun.
        runs: of the complete rounds.
        partial: runs of a round that was not completed.
        slices: of each of ``runs``, what its disks went through.
        alone: what a request takes alone.
        machine: what it was run on.
        sockets: CPUs of each, as the daemon had them.
        slots: of them all.
        notes: what a reader must know, one line each.
        signal_number: that ended it early. None: none did.
        failure: what ended it early, in words.
        began_s: since 1970.
    """

    workload: str
    path: str
    policies: tuple[str, ...]
    rounds_asked: int
    rounds: int
    counts: dict[str, int]
    alone_s: dict[str, float]
    alone_times_s: dict[str, tuple[float, ...]]
    runs: tuple[Run, ...]
    partial: tuple[Run, ...]
    slices: tuple[tuple[Slice, ...], ...]
    alone: Uncontended
    machine: dict[str, Any]
    sockets: tuple[tuple[int, ...], ...]
    slots: int
    notes: tuple[str, ...]
    began_s: float
    signal_number: int | None = None
    failure: IodaemonError | None = None


class _Seen:
    """What has been run so far."""

    def __init__(self) -> None:
        self.alone: dict[str, list[Raw]] = {}
        self.raws: list[tuple[str, int, Raw]] = []
        self.sockets: tuple[tuple[int, ...], ...] = ()
        self.slots = 0
        self.cautions: dict[str, None] = {}


def order(policies: Sequence[Policy], number: int) -> list[Policy]:
    """Who comes when in this round (from 0): every second one backwards, every third begins anew.

    So a drift of the machine meets all alike: two policies come as A B, B A, B A, A B; three in all
    their six orders.
    """
    first = (number // 2) % len(policies)
    turned = [*policies[first:], *policies[:first]]
    return turned[::-1] if number % 2 else turned


def compare(place: Site, plan: Plan, *, check: Callable[[], None], tell: Tell) -> Outcome:
    """Run the rounds; in each every kind of job alone first, then all under each policy.

    Ends early by a signal, or where a job fails; what was complete by then is in the outcome.

    Args:
        place: made for the workload.
        plan: which policies, how many rounds.
        check: raises InterruptedTrialError where somebody asked to end.
        tell: is told how far it is.
    """
    began_s, seen = time.time(), _Seen()
    number: int | None = None
    failure: IodaemonError | None = None
    total = plan.rounds * (len(place.workload.jobs) + len(plan.policies))
    try:
        _run_rounds(place, plan, seen, Course(total, check=check, tell=tell))
    except InterruptedTrialError as error:
        number = error.signal_number
    except IodaemonError as error:
        failure = error
    return _outcome(place, plan, seen, began_s=began_s, number=number, failure=failure)


def time_alone(
    place: Site, alone: dict[str, list[Raw]], round_: int, *, rounds: int, course: Course
) -> Mapping[str, Any]:
    """Run one job of each kind with the machine to itself; the node, as its daemon shows it.

    Args:
        place: of the trial.
        alone: where to add the runs, by kind.
        round_: from 1; in every second one the last kind comes first.
        rounds: of the trial.
        course: of the trial.
    """
    jobs = place.workload.jobs
    with fresh_daemon(place, {"policy": ALONE_POLICY}) as daemon:
        for job in jobs if round_ % 2 else jobs[::-1]:
            what = f"round {round_} of {rounds}, {job.name} alone"
            place.clean()
            specs = [job_spec(job, 0, place.workload, place.places)]
            raw = run_jobs(daemon, specs, place, course.next(what), what=what)
            alone.setdefault(job.name, []).append(raw)
        return daemon.client.node()


def times_alone_s(alone: Mapping[str, Sequence[Raw]]) -> dict[str, tuple[float, ...]]:
    """Run times of each kind alone, in the order of the rounds."""
    return {kind: tuple(run_s(raw.jobs[0]) for raw in raws) for kind, raws in alone.items()}


def medians_s(times_s: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The time alone of each kind that the others are held to."""
    return {kind: statistics.median(each) for kind, each in times_s.items()}


def _run_rounds(place: Site, plan: Plan, seen: _Seen, course: Course) -> None:
    workload, rounds = place.workload, plan.rounds
    specs = [
        job_spec(job, copy, workload, place.places)
        for job in workload.jobs
        for copy in range(job.count)
    ]
    for number in range(rounds):
        node = time_alone(place, seen.alone, number + 1, rounds=rounds, course=course)
        seen.sockets, seen.slots = _sockets(node)
        for policy in order(plan.policies, number):
            what = f"round {number + 1} of {rounds}, {policy.name}"
            with fresh_daemon(place, {"policy": policy.source}) as daemon:
                shown: Mapping[str, Any] = daemon.client.policy()
                seen.cautions.update(dict.fromkeys(shown.get("cautions", ())))
                raw = run_jobs(daemon, specs, place, course.next(what), what=what)
            seen.raws.append((policy.name, number + 1, raw))


def _outcome(
    place: Site,
    plan: Plan,
    seen: _Seen,
    *,
    began_s: float,
    number: int | None,
    failure: IodaemonError | None,
) -> Outcome:
    workload = place.workload
    slices = [slices_of(raw.looks) for _, _, raw in seen.raws]
    others = [slices_of(raw.looks) for raws in seen.alone.values() for raw in raws]
    everything = (each for group in (*slices, *others) for each in group)
    base_s = uncontended(everything, place.services)
    alone_times_s = times_alone_s(seen.alone)
    alone_s = medians_s(alone_times_s)
    runs = _runs(workload, seen, alone_s, slices, base_s)
    names = tuple(policy.name for policy in plan.policies)
    complete = complete_rounds(runs, names)
    return Outcome(
        workload=workload.name,
        path=str(workload.path),
        policies=names,
        rounds_asked=plan.rounds,
        rounds=len({run.round for run in complete}),
        counts={job.name: job.count for job in workload.jobs},
        alone_s=alone_s,
        alone_times_s=alone_times_s,
        runs=complete,
        partial=tuple(run for run in runs if run not in complete),
        slices=tuple(each for run, each in zip(runs, slices, strict=True) if run in complete),
        alone=base_s,
        machine=describe(place.disks),
        sockets=seen.sockets,
        slots=seen.slots,
        notes=(*place.notes, *seen.cautions, *short_notes([raw for *_, raw in seen.raws])),
        began_s=began_s,
        signal_number=number,
        failure=failure,
    )


def _runs(
    workload: Workload,
    seen: _Seen,
    alone_s: Mapping[str, float],
    slices: Sequence[Sequence[Slice]],
    base_s: Uncontended,
) -> list[Run]:
    kinds = [job.name for job in workload.jobs for _ in range(job.count)]
    return [
        _run(policy, number, raw, kinds, alone_s, each, base_s)
        for (policy, number, raw), each in zip(seen.raws, slices, strict=True)
    ]


def _run(
    policy: str,
    number: int,
    raw: Raw,
    kinds: Sequence[str],
    alone_s: Mapping[str, float],
    slices: Sequence[Slice],
    base_s: Uncontended,
) -> Run:
    jobs = tuple(
        JobTime(name=job["name"], kind=kind, run_s=run_s(job), suspended_s=job["suspended_io_s"])
        for job, kind in zip(raw.jobs, kinds, strict=True)
    )
    latency = latency_of(slices, base_s)
    return Run(
        policy=policy,
        round=number,
        **job_measures(jobs, alone_s, raw.makespan_s),
        suspensions=raw.suspensions,
        moved_bytes=raw.moved_bytes,
        waiting_s=None if latency is None else latency.waiting_s,
        serving_s=None if latency is None else latency.serving_s,
        busy_s=None if latency is None else latency.busy_s,
        contended_ratio=None if latency is None else latency.contended_ratio,
        used_ratio=raw.used_ratio,
        jobs=jobs,
    )


def _sockets(node: Mapping[str, Any]) -> tuple[tuple[tuple[int, ...], ...], int]:
    """The CPUs of each socket, and the slots of all, as the daemon says."""
    sockets = node["sockets"]
    return tuple(tuple(one["cpus"]) for one in sockets), sum(one["slots"] for one in sockets)
