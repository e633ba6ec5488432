"""Admission and regulation at once: every rule of the one with every rule of the other.

On servers and clusters in simulation, through the daemon's own controller with its samples. Every
pair meets the same jobs, once a seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.job import Job, JobState
from iodaemon.core.measure import (
    bounded_slowdown,
    displacements,
    equilibrio_io_slowdown,
    jain_index,
    makespan_s,
    mean,
    mean_turnaround_s,
    mean_wait_s,
    stretch,
)
from iodaemon.core.platform import PartitionId, Platform
from iodaemon.core.rule import Rules
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.run import Result, simulate
from iodaemon.simulator.site import Piece, Place, Queue, Server, Site, rules_of
from iodaemon.simulator.table import group, numbers, ranged, where

MEASURES: Final = (
    "makespan_s",
    "turnaround_s",
    "slowdown",
    "worst",
    "stretch",
    "io_slowdown",
    "jain",
    "wait_s",
    "suspended_s",
    "displacement",
)


def sums(result: Result, work: Sequence[Piece], platform: Platform) -> Row:
    """One line of the table.

    ``turnaround_s``, ``wait_s``, ``stretch`` (turnaround / time alone), ``slowdown`` (the same with
    at least 10 s alone) and ``displacement`` (places between arrival and start) are means over the
    jobs; ``worst`` is the largest slowdown, ``jain`` the index of the slowdowns. ``io_slowdown``:
    all time of all jobs from start to end that is not computing, suspended or not, over the same
    alone, less 1.
    ``overdue`` counts jobs that ran for longer than their walltime, suspensions not counted: who
    would have been killed. ``overcommitted`` counts instants with more slots held than there are.
    """
    jobs = [job for job in result.jobs if job.state is JobState.COMPLETED]
    if len(jobs) < len(work):
        return {**dict.fromkeys(MEASURES, 0.0), **_faults(result, jobs, platform)}
    took_s = [_end_s(job) - job.submitted_s for job in jobs]
    pairs = list(zip(took_s, work, strict=True))
    slowdowns = [bounded_slowdown(each_s, piece.alone_s) for each_s, piece in pairs]
    return {
        "makespan_s": makespan_s(jobs),
        "turnaround_s": mean_turnaround_s(jobs),
        "slowdown": mean(slowdowns),
        "worst": max(slowdowns),
        "stretch": mean([stretch(each_s, piece.alone_s) for each_s, piece in pairs]),
        "io_slowdown": _io_slowdown(jobs, work),
        "jain": jain_index(slowdowns),
        "wait_s": mean_wait_s(jobs),
        "suspended_s": sum(job.suspended_io_s for job in jobs),
        "displacement": mean(displacements([_start_s(job) for job in jobs])),
        **_faults(result, jobs, platform),
    }


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """Which pair a user should pick, said before anything was run.

    Of the pairs whose makespan is at most ``makespan_slack`` above the least, and whose worst job
    has a slowdown at most ``worst_slack`` above that with the first pair, the one with the least
    turnaround; all are means over the seeds. With several machines of which the user does not
    know which one theirs is like: on each of them at most ``harm_slack`` above the first pair's
    makespan and turnaround, and the worst job as above; of these the least product of turnarounds.

    Attributes:
        makespan_slack: as a part.
        worst_slack: as a part.
        harm_slack: as a part.
    """

    makespan_slack: float = 0.05
    worst_slack: float = 0.5
    harm_slack: float = 0.03


Means = Mapping[str, Mapping[str, float]]
"""The means of a machine: by pair, by measure. The first pair is the one to compare with."""


def pick(means: Means, criterion: Criterion) -> str:
    """The pair to pick on one machine."""
    least_s = min(each["makespan_s"] for each in means.values())
    most_s = least_s * (1.0 + criterion.makespan_slack)
    fitting = [
        pair
        for pair, each in means.items()
        if each["makespan_s"] <= most_s and _is_bearable(means, pair, criterion)
    ]
    return min(fitting, key=lambda pair: means[pair]["turnaround_s"], default="")


def pick_everywhere(places: Mapping[str, Means], criterion: Criterion) -> str:
    """The pair to pick for all machines; empty: none is fit."""
    pairs = next(iter(places.values()))
    fitting = [pair for pair in pairs if is_harmless(places, pair, criterion)]
    return min(fitting, key=lambda pair: _product(places, pair), default="")


def is_harmless(places: Mapping[str, Means], pair: str, criterion: Criterion) -> bool:
    """Whether nowhere it costs more than the criterion allows."""
    most = 1.0 + criterion.harm_slack
    return all(
        relative(means, pair, "makespan_s") <= most
        and relative(means, pair, "turnaround_s") <= most
        and _is_bearable(means, pair, criterion)
        for means in places.values()
    )


def relative(means: Means, pair: str, measure: str) -> float:
    """A measure relative to that of the first pair; 1 where that one's is 0."""
    first = next(iter(means.values()))[measure]
    return means[pair][measure] / first if first else 1.0


def _is_bearable(means: Means, pair: str, criterion: Criterion) -> bool:
    return relative(means, pair, "worst") <= 1.0 + criterion.worst_slack


def _product(places: Mapping[str, Means], pair: str) -> float:
    product = 1.0
    for means in places.values():
        product *= relative(means, pair, "turnaround_s")
    return product


def _io_slowdown(jobs: Iterable[Job], work: Sequence[Piece]) -> float:
    alone_s = sum(piece.io_alone_s for piece in work)
    ran_s = sum(_end_s(job) - _start_s(job) for job in jobs)
    io_s = ran_s - sum(piece.compute_s for piece in work)
    return equilibrio_io_slowdown(io_s, alone_s) if alone_s > 0.0 else 0.0


def _faults(result: Result, completed: Sequence[Job], platform: Platform) -> Row:
    return {
        "jobs": len(result.jobs),
        "not_completed": len(result.jobs) - len(completed),
        "overdue": sum(_is_overdue(job) for job in completed),
        "overcommitted": overcommitted(result.jobs, platform),
    }


def _is_overdue(job: Job) -> bool:
    walltime_s = job.spec.walltime_s
    ran_s = _end_s(job) - _start_s(job) - job.suspended_io_s
    return walltime_s is not None and ran_s > walltime_s * (1.0 + 1e-9)


def overcommitted(jobs: Iterable[Job], platform: Platform) -> int:
    """At how many instants more slots of a partition are held than it has."""
    changes: list[tuple[float, int, PartitionId]] = []
    for job in jobs:
        if job.partition is not None and job.started_s is not None:
            changes.append((job.started_s, job.spec.cpus, job.partition))
            if job.ended_s is not None:
                changes.append((job.ended_s, -job.spec.cpus, job.partition))
    held = dict.fromkeys((partition.id for partition in platform.partitions), 0)
    faults = 0
    for _, change, partition_id in sorted(changes):
        held[partition_id] += change
        faults += held[partition_id] > len(platform.partition(partition_id).slots)
    return faults


def _start_s(job: Job) -> float:
    return job.submitted_s if job.started_s is None else job.started_s


def _end_s(job: Job) -> float:
    return _start_s(job) if job.ended_s is None else job.ended_s


OURS: Final = "adaptive"
"""The regulation of the shipped default."""
DEFAULT: Final = f"easy+{OURS}"
"""What is shipped as the default."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One pair on the jobs of one seed."""

    seed: int
    place: str
    admission: str
    regulation: str

    @property
    def pair(self) -> str:
        """As in the table."""
        return f"{self.admission}+{self.regulation}"


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """The crossing.

    Attributes:
        admission: rules, or names of tables in a machine's ``rules``; with the first of both
            the others are compared.
        regulation: likewise.
        queue: of servers that have none of their own.
        servers: machines, each with its jobs.
        clusters: likewise.
        criterion: which pair is picked.
        until_s: virtual time at which a run is cut off, for a pair that ends no job.
    """

    admission: tuple[str, ...] = ("fcfs", "easy", "io_budget", "equilibrio", "pack")
    regulation: tuple[str, ...] = ("none", "dynamic", OURS)
    queue: Queue | None = None
    servers: tuple[Server, ...] = ()
    clusters: tuple[Site, ...] = ()
    criterion: Criterion = Criterion()
    until_s: float = 365 * 86400.0

    def __post_init__(self) -> None:
        """Refuse what is not there or there twice."""
        if not self._places:
            raise ValueError("no machine: give servers, or clusters, or both")
        for server in self.servers:
            if server.queue is None and self.queue is None:
                raise ValueError(f"server {server.id!r} has no jobs: give it a queue, or the study")
        for key, names in (
            ("servers and clusters", [place.id for place in self._places]),
            ("admission", self.admission),
            ("regulation", self.regulation),
        ):
            for name, count in Counter(names).items():
                if count > 1:
                    raise ValueError(f"{key}: {name!r} is there twice")
        if not self.admission or not self.regulation:
            raise ValueError("admission and regulation list at least one rule each")

    # -- the protocol -------------------------------------------------------------------------

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """A run each of every pair, machine and seed.

        Raises:
            ConfigError: a rule does not take its parameters.
        """
        for place in self._places:
            for admission in self.admission:
                for regulation in self.regulation:
                    rules_of(place, admission, regulation)
        return [
            Task(seed=seed, place=place.id, admission=admission, regulation=regulation)
            for seed in seeds
            for place in self._places
            for admission in self.admission
            for regulation in self.regulation
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """One row."""
        (place,) = (each for each in self._places if each.id == task.place)
        work = place.work(task.seed)
        rules = rules_of(place, task.admission, task.regulation)
        row: Row = {
            "kind": "run",
            "seed": task.seed,
            "machine": task.place,
            "pair": task.pair,
        }
        return [{**row, **sums(self._simulate(place, rules, work), work, place.platform())}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Faults of all runs, and what picks and the default are worth.

        ``MACHINE.default`` and ``MACHINE.pick`` are turnarounds relative to the first pair's,
        ``MACHINE.harm`` the largest mean makespan with regulation ``adaptive`` relative to
        the same admission without, ``everywhere`` the pick for all machines as that product of
        turnarounds' mean, ``default-is-harmless`` 1 or 0.
        """
        places = _means(rows)
        found: dict[str, float | None] = {
            "not-completed": sum(numbers(rows, "not_completed")),
            "overcommitted": sum(numbers(rows, "overcommitted")),
        }
        for name, means in places.items():
            best = pick(means, self.criterion)
            found[f"{name}.pick"] = _value(means, best)
            found[f"{name}.default"] = _value(means, DEFAULT)
            found[f"{name}.harm"] = self._harm(means)
        best = pick_everywhere(places, self.criterion)
        found["everywhere"] = (
            mean([relative(means, best, "turnaround_s") for means in places.values()])
            if best
            else None
        )
        found["default-is-harmless"] = (
            float(is_harmless(places, DEFAULT, self.criterion))
            if DEFAULT in next(iter(places.values()))
            else None
        )
        return found

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """For each machine: turnaround and makespan of every pair, relative to the first."""
        return [
            self._figure(rows, place, measure)
            for place in _means(rows)
            for measure in ("turnaround_s", "makespan_s", "slowdown")
        ]

    # -- beyond the protocol ------------------------------------------------------------------

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row a machine and pair: means over the seeds, the range of the turnaround, picks."""
        places = _means(rows)
        everywhere = pick_everywhere(places, self.criterion)
        made: list[Row] = []
        for place, means in places.items():
            best = pick(means, self.criterion)
            for pair, each in means.items():
                ratios = _ratios(rows, place, pair, "turnaround_s")
                words = [
                    word for word, name in (("here", best), ("all", everywhere)) if name == pair
                ]
                made.append(
                    {
                        "kind": "summary",
                        "machine": place,
                        "pair": pair,
                        "pick": " ".join(words),
                        **{measure: each[measure] for measure in (*MEASURES, "overdue")},
                        "turnaround_vs_first": _range_words(ratios),
                    }
                )
        return made

    @property
    def _places(self) -> tuple[Place, ...]:
        servers = (
            msgspec.structs.replace(server, queue=server.queue or self.queue)
            for server in self.servers
        )
        return (*servers, *self.clusters)

    def _simulate(self, place: Place, rules: Rules, work: Sequence[Piece]) -> Result:
        return simulate(
            place.platform(),
            rules,
            [piece.submission for piece in work],
            model=place.model(),
            until_s=self.until_s,
        )

    def _harm(self, means: Means) -> float | None:
        """What regulation as in the default adds to the makespan where it adds most."""
        if not {"none", OURS}.issubset(self.regulation):
            return None
        return max(
            means[f"{name}+{OURS}"]["makespan_s"] / means[f"{name}+none"]["makespan_s"]
            for name in self.admission
        )

    def _figure(self, rows: Sequence[Row], place: str, measure: str) -> Figure:
        words = measure.removesuffix("_s")
        return Figure(
            name=f"{place}-{words}",
            title=f"{place}: mean {words} of all pairs; mean, lowest and highest seed",
            x_label="admission",
            y_label=f"relative to {self.admission[0]}+{self.regulation[0]}",
            kind="bar",
            series=tuple(self._series(rows, place, name, measure) for name in self.regulation),
            line_y=1.0,
        )

    def _series(self, rows: Sequence[Row], place: str, regulation: str, measure: str) -> Series:
        found = {
            admission: _ratios(rows, place, f"{admission}+{regulation}", measure)
            for admission in self.admission
        }
        return ranged(regulation, found)


def _value(means: Means, pair: str) -> float | None:
    return relative(means, pair, "turnaround_s") if pair in means else None


def _means(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """By machine, pair and measure, in the order of the tasks."""
    return {
        place: {
            pair: {measure: mean(numbers(own, measure)) for measure in (*MEASURES, "overdue")}
            for pair, own in group(here, "pair").items()
        }
        for place, here in group(rows, "machine").items()
    }


def _ratios(rows: Sequence[Row], place: str, pair: str, measure: str) -> list[float]:
    """Of a pair to the first one, by seed."""
    here = where(rows, machine=place)
    first = {row["seed"]: float(row[measure]) for row in where(here, pair=here[0]["pair"])}
    return [
        float(row[measure]) / base if (base := first[row["seed"]]) else 1.0
        for row in where(here, pair=pair)
    ]


def _range_words(ratios: Sequence[float]) -> str:
    return f"{mean(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
