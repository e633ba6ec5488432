"""One workload of Lv et al. under one policy: run, watched each timeslice, and summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.config import load_policy
from iodaemon.core.decision import Plan, Suspend
from iodaemon.core.job import Job, JobState
from iodaemon.core.measure import (
    jain_index,
    lv_average_runtime_s,
    lv_slowdown,
    lv_throughput_per_s,
    makespan_s,
    mean,
)
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.errors import ConfigError
from iodaemon.policy.regulation import dynamic, none
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.lv import Counting, Piece, Server
from iodaemon.simulator.run import simulate
from iodaemon.simulator.table import numbers

DEMAND: Final = "+demand"
"""Behind the name of a policy: the jobs' I/O is counted as demand, not as the kernel does."""
FULL: Final = 0.9
"""From this part of a slice on that the disk is busy there is contention (figure 8)."""
MS: Final = 1000.0


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, and how it is told of the jobs' I/O.

    Attributes:
        label: as in the file.
        rules: of the policy.
        counting: see ``Model``.
    """

    label: str
    rules: Rules
    counting: Counting

    def at(self, timeslice_s: float) -> Rules:
        """With this timeslice, unless its own is longer, and a guard that is not too short for it.

        The longest suspension is as many timeslices as with the policy's own. That guard is lifted
        under the published rule and without regulation.
        """
        regulation: Any = self.rules.regulation
        changes = {"timeslice_s": max(timeslice_s, regulation.timeslice_s)}
        rules = msgspec.structs.replace(
            self.rules, regulation=msgspec.structs.replace(regulation, **changes)
        )
        if isinstance(regulation, dynamic.Rule | none.Rule):
            return msgspec.structs.replace(rules, max_suspend_s=None)
        if rules.max_suspend_s is not None:
            longer = changes["timeslice_s"] / self.rules.regulation.timeslice_s
            rules = msgspec.structs.replace(rules, max_suspend_s=longer * rules.max_suspend_s)
        return rules


def find_ways(labels: Sequence[str], search: Sequence[Path]) -> dict[str, Way]:
    """The policies by label: ``NAME``, ``FILE.toml``, or one of these with ``+demand`` behind it.

    Raises:
        ConfigError: one is not found, wrong, or there twice.
    """
    ways: dict[str, Way] = {}
    for label in labels:
        policy = load_policy(label.removesuffix(DEMAND), overrides={}, search=search)
        counting: Counting = "demand" if label.endswith(DEMAND) else "kernel"
        name = policy.name + (DEMAND if counting == "demand" else "")
        if name in ways:
            raise ConfigError(f"policies: {name!r} is there twice; each has its name")
        ways[name] = Way(label=name, rules=policy.rules, counting=counting)
    return ways


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What ``iostat`` would have shown of a slice.

    Attributes:
        at_s: its end.
        waiting_ms: mean time that a request waited; None: there was none.
        serving_ms: mean time that it was served: the busy time over the requests.
        busy: part of the slice in which the disk was busy.
        moved_bytes_per_s: of the disk.
        counted_bytes_per_s: of all jobs that run, as they are counted.
        held: jobs that stand still for others.
    """

    at_s: float
    waiting_ms: float | None
    serving_ms: float | None
    busy: float
    moved_bytes_per_s: float
    counted_bytes_per_s: float
    held: int


class Watch:
    """Looks at the disk at every sample, and counts suspensions."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.suspensions = 0
        self._at_s = -1.0

    def see(self, state: State, plan: Plan) -> None:
        """Called after each step of the controller."""
        self.suspensions += sum(isinstance(decision, Suspend) for decision in plan.decisions)
        last = state.meter.last
        if last is None or last.at_s == self._at_s:
            return
        self._at_s = last.at_s
        for load in state.meter.devices.values():
            requests = load.reads_per_s + load.writes_per_s
            serving_s = load.busy_ratio / requests if requests > 0.0 else None
            await_s = load.queue_length / requests if requests > 0.0 else None
            live = list(state.live)
            rates = (state.meter.bandwidth(job.id) for job in live if not job.wants_freeze)
            self.looks.append(
                Look(
                    at_s=last.at_s,
                    waiting_ms=_waiting_ms(await_s, serving_s),
                    serving_ms=None if serving_s is None else serving_s * MS,
                    busy=load.busy_ratio,
                    moved_bytes_per_s=load.total_bytes_per_s,
                    counted_bytes_per_s=sum(r.total_bytes_per_s for r in rates if r is not None),
                    held=sum(job.io_hold for job in live),
                )
            )


def _waiting_ms(await_s: float | None, serving_s: float | None) -> float | None:
    """Of the time of a request, the part in which it is not served."""
    if await_s is None or serving_s is None:
        return None
    return max(0.0, await_s - serving_s) * MS


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run.

    Attributes:
        sums: a line of the table.
        jobs: a line each.
        looks: one a slice.
    """

    sums: Row
    jobs: tuple[Row, ...]
    looks: tuple[Look, ...]


def run_lv(
    server: Server,
    work: Sequence[Piece],
    way: Way,
    *,
    timeslice_s: float,
    seed: int,
    until_s: float,
    sockets: int | None = None,
) -> Outcome:
    """Run the jobs to their end.

    Args:
        server: the machine.
        work: the jobs, all submitted at 0.
        way: the policy.
        timeslice_s: of the published rule.
        seed: of the generator that rules may use.
        until_s: virtual time at which the run is cut off.
        sockets: so many of the machine are used. None: all.
    """
    watch = Watch()
    result = simulate(
        server.platform(sockets),
        way.at(timeslice_s),
        [piece.submission for piece in work],
        model=server.model(way.counting),
        seed=seed,
        until_s=until_s,
        on_step=watch.see,
    )
    jobs = [job for job in result.jobs if job.state is JobState.COMPLETED]
    rows = tuple(_job_row(job, work[job.id - 1]) for job in jobs)
    return Outcome(sums=_sums(jobs, rows, work, watch), jobs=rows, looks=tuple(watch.looks))


def _job_row(job: Job, piece: Piece) -> Row:
    assert job.started_s is not None
    assert job.ended_s is not None
    return {
        "job": job.id,
        "app": piece.app,
        "alone_s": piece.alone_s,
        "io_part": piece.io_part,
        "run_s": job.ended_s - job.started_s,
        "started_s": job.started_s,
        "suspended_s": job.suspended_io_s,
    }


def _sums(jobs: Sequence[Job], rows: Sequence[Row], work: Sequence[Piece], watch: Watch) -> Row:
    """One line.

    ``jain`` is the index of the jobs' slowdowns, T_alone / T_shared; ``held_heavy`` and
    ``held_light`` are the suspended parts of the run time of the half of the jobs that spend more
    of their time alone in I/O, and of the other half.
    """
    run_s = numbers(rows, "run_s")
    alone_s = numbers(rows, "alone_s")
    span_s = makespan_s(jobs)
    looks = watch.looks
    waiting = [look.waiting_ms for look in looks if look.waiting_ms is not None]
    serving = [look.serving_ms for look in looks if look.serving_ms is not None]
    shares = [a / s for a, s in zip(alone_s, run_s, strict=True)]
    return {
        "jobs": len(work),
        "not_completed": len(work) - len(jobs),
        "makespan_s": span_s,
        "throughput_per_s": lv_throughput_per_s(len(jobs), span_s) if jobs else 0.0,
        "runtime_s": lv_average_runtime_s(run_s),
        "slowdown": lv_slowdown(alone_s, run_s),
        "jain": jain_index(shares),
        "waiting_ms": mean(waiting),
        "serving_ms": mean(serving),
        "contended": mean([float(look.busy >= FULL) for look in looks]),
        "moved_mb_per_s": mean([look.moved_bytes_per_s for look in looks]) / 1e6,
        "counted_mb_per_s": mean([look.counted_bytes_per_s for look in looks]) / 1e6,
        "held": mean([float(look.held) for look in looks]),
        "suspensions": watch.suspensions,
        "suspended_s": sum(numbers(rows, "suspended_s")),
        **_held_parts(rows),
    }


def _held_parts(rows: Sequence[Row]) -> Row:
    ordered = sorted(rows, key=lambda row: (-float(row["io_part"]), int(row["job"])))
    middle = len(ordered) // 2
    return {"held_heavy": _held(ordered[:middle]), "held_light": _held(ordered[middle:])}


def _held(rows: Sequence[Row]) -> float:
    run_s = sum(numbers(rows, "run_s"))
    return sum(numbers(rows, "suspended_s")) / run_s if run_s > 0.0 else 0.0


def averaged(looks: Sequence[Look], points: int) -> list[Mapping[str, float]]:
    """Waiting and serving over time, at most so many points, each the mean of those it covers."""
    seen = [look for look in looks if look.waiting_ms is not None]
    size = max(1, -(-len(seen) // points))
    return [_mean_look(seen[first : first + size]) for first in range(0, len(seen), size)]


def _mean_look(looks: Sequence[Look]) -> Mapping[str, float]:
    return {
        "at_s": looks[-1].at_s,
        "waiting_ms": mean([look.waiting_ms or 0.0 for look in looks]),
        "serving_ms": mean([look.serving_ms or 0.0 for look in looks]),
    }
