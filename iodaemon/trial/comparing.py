"""``iod compare``: the same real jobs under each policy, in alternating rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

import iodaemon
from iodaemon.errors import IodaemonError
from iodaemon.trial.latency import Latency, Slice, Uncontended, latency_of, slices_of, uncontended
from iodaemon.trial.run import (
    InterruptedTrialError,
    Raw,
    fresh_daemon,
    run_jobs,
    run_s,
    short_notes,
)
from iodaemon.trial.site import Site, describe
from iodaemon.trial.summary import (
    MEASURES,
    JobTime,
    Run,
    changes,
    complete_rounds,
    job_measures,
    spread_of,
    values_of,
)
from iodaemon.trial.workload import job_spec

_ALONE_POLICY: Final = "none"
"""Under which jobs are timed alone: nobody to be protected from."""
_VERSION: Final = 1
"""Of the JSON; raised when a key changes its meaning."""
_NOT_SHOWN: Final = ("slices", "alone", "failure")

Tell = Callable[[str, int, int, Mapping[str, int]], None]
"""Takes what is being run, how many runs are done of how many, and the jobs by their state."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy to compare; ``source`` is its name or file, as a configuration takes it."""

    name: str
    source: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    policies: tuple[Policy, ...]
    rounds: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        policies: in the order in which they were asked for; the first is compared with.
        rounds: complete ones; the summary speaks of these only.
        counts: copies of each kind of job.
        alone_s: run time of one job of each kind with the machine to itself, median of the rounds.
        alone_times_s: the same of each round that has begun.
        runs: of the complete rounds.
        partial: runs of a round that was not completed.
        slices: of each of ``runs``, what its disks went through.
        alone: what a request takes alone.
        sockets: CPUs of each, as the daemon had them.
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
        check: raises InterruptedTrialError where somebody asked to end.
    """
    trial = _Trial(place, plan, check, tell)
    number: int | None = None
    failure: IodaemonError | None = None
    try:
        for round_ in range(plan.rounds):
            trial.run_round(round_)
    except InterruptedTrialError as error:
        number = error.signal_number
    except IodaemonError as error:
        failure = error
    return msgspec.structs.replace(trial.outcome(), signal_number=number, failure=failure)


class _Trial:
    def __init__(self, place: Site, plan: Plan, check: Callable[[], None], tell: Tell) -> None:
        self._place = place
        self._plan = plan
        self._check = check
        self._tell = tell
        self._began_s = time.time()
        self._done = 0
        self._alone: dict[str, list[Raw]] = {}
        self._raws: list[tuple[str, int, Raw]] = []
        self._sockets: tuple[tuple[int, ...], ...] = ()
        self._slots = 0
        self._cautions: dict[str, None] = {}

    def run_round(self, number: int) -> None:
        """Run this round, from 0; in every second one the last kind comes first."""
        place, jobs = self._place, self._place.workload.jobs
        called = f"round {number + 1} of {self._plan.rounds}"
        with fresh_daemon(place, {"policy": _ALONE_POLICY}) as daemon:
            for job in jobs[::-1] if number % 2 else jobs:
                place.clean()
                specs = [job_spec(job, 0, place.workload, place.places)]
                look = self._on_look(what := f"{called}, {job.name} alone")
                raw = run_jobs(daemon, specs, place, look, what=what)
                self._alone.setdefault(job.name, []).append(raw)
            node: Mapping[str, Any] = daemon.client.node()
        self._sockets = tuple(tuple(one["cpus"]) for one in node["sockets"])
        self._slots = sum(one["slots"] for one in node["sockets"])
        specs = [
            job_spec(job, copy, place.workload, place.places)
            for job in jobs
            for copy in range(job.count)
        ]
        for policy in order(self._plan.policies, number):
            with fresh_daemon(place, {"policy": policy.source}) as daemon:
                shown: Mapping[str, Any] = daemon.client.policy()
                self._cautions.update(dict.fromkeys(shown.get("cautions", ())))
                look = self._on_look(what := f"{called}, {policy.name}")
                raw = run_jobs(daemon, specs, place, look, what=what)
            self._raws.append((policy.name, number + 1, raw))

    def _on_look(self, what: str) -> Callable[[Mapping[str, int]], None]:
        done, self._done = self._done, self._done + 1
        plan = self._plan
        total = plan.rounds * (len(self._place.workload.jobs) + len(plan.policies))

        def look(states: Mapping[str, int]) -> None:
            self._check()
            self._tell(what, done, total, states)

        return look

    def outcome(self) -> Outcome:
        place, plan, workload = self._place, self._plan, self._place.workload
        raws = [raw for _, _, raw in self._raws]
        slices = [slices_of(raw.looks) for raw in raws]
        others = [slices_of(raw.looks) for each in self._alone.values() for raw in each]
        base_s = uncontended((s for group in (*slices, *others) for s in group), place.services)
        times_s = {
            kind: tuple(run_s(raw.jobs[0]) for raw in each) for kind, each in self._alone.items()
        }
        alone_s = {kind: statistics.median(each) for kind, each in times_s.items()}
        kinds = [job.name for job in workload.jobs for _ in range(job.count)]
        runs = [
            _run(policy, number, raw, kinds, alone_s, latency_of(each, base_s))
            for (policy, number, raw), each in zip(self._raws, slices, strict=True)
        ]
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
            alone_times_s=times_s,
            runs=complete,
            partial=tuple(run for run in runs if run not in complete),
            slices=tuple(each for run, each in zip(runs, slices, strict=True) if run in complete),
            alone=base_s,
            machine=describe(place.disks),
            sockets=self._sockets,
            slots=self._slots,
            notes=(*place.notes, *self._cautions, *short_notes(raws)),
            began_s=self._began_s,
        )


def _run(
    policy: str,
    number: int,
    raw: Raw,
    kinds: Sequence[str],
    alone_s: Mapping[str, float],
    latency: Latency | None,
) -> Run:
    jobs = tuple(
        JobTime(name=job["name"], kind=kind, run_s=run_s(job), suspended_s=job["suspended_io_s"])
        for job, kind in zip(raw.jobs, kinds, strict=True)
    )
    return Run(
        policy=policy,
        round=number,
        **job_measures(jobs, alone_s, raw.makespan_s),
        suspensions=raw.suspensions,
        moved_bytes=raw.moved_bytes,
        **({} if latency is None else msgspec.structs.asdict(latency)),
        used_ratio=raw.used_ratio,
        jobs=jobs,
    )


def comparison_document(outcome: Outcome) -> dict[str, Any]:
    """The JSON that is printed and kept.

    All runs with each job's times, medians with ranges, and every comparison made of them.
    """
    fields = {
        name: msgspec.to_builtins(getattr(outcome, name))
        for name in outcome.__struct_fields__
        if name not in _NOT_SHOWN
    }
    summary = {
        policy: {
            measure.key: spread_of(values_of(outcome.runs, policy, measure.key))
            for measure in MEASURES
        }
        for policy in outcome.policies
    }
    return {
        "kind": "compare",
        "version": _VERSION,
        "iodaemon": iodaemon.__version__,
        **fields,
        "failure": None if outcome.failure is None else str(outcome.failure),
        "summary": msgspec.to_builtins(summary),
        "changes": msgspec.to_builtins(changes(outcome.runs, outcome.policies)),
    }
