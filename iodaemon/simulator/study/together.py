"""Admission and regulation at once: every rule of the one with every rule of the other.

On servers and clusters in simulation, through the daemon's own controller with its samples. Every
pair meets the same jobs, once a seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import mean
from iodaemon.core.rule import Rules
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.mixed import Piece, Queue
from iodaemon.simulator.pair import (
    MEASURES,
    Criterion,
    Means,
    is_harmless,
    pick,
    pick_everywhere,
    relative,
    sums,
)
from iodaemon.simulator.run import Result, simulate
from iodaemon.simulator.series import ranged
from iodaemon.simulator.site import Place, Server, Site, rules_of
from iodaemon.simulator.table import group, numbers, where

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
