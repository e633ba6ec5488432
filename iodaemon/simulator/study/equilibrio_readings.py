"""EquilibrIO: how far the mean distance falls under other readings of what the slides do not say.

Each reading changes the base in a few points and is run with alpha 0 and 0.5. The table says what
comes nearest to the published fall from 0.78 to 0.07 GB/s, and to a median I/O slowdown that falls
from 64 to 3.6 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.measure import mean
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.equilibrio import Arrivals, Mix
from iodaemon.simulator.equilibrio_rows import by_seed, of_kind
from iodaemon.simulator.equilibrio_run import Bound, Delta, Setup, run_columns, setup_of
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.run import StepPer
from iodaemon.simulator.study.equilibrio_alpha import BALANCED, FIRST, PUBLISHED

BASE: Final = "base"
"""The reading of the experiments, nothing changed."""
COLUMNS: Final = (
    "distance_gb_per_s",
    "distance_by_nodes_gb_per_s",
    "distance_of_events_gb_per_s",
    "io_slowdown_percent",
    "running",
    "backfilled",
)
_OF_CLUSTER: Final = ("weights", "caps")
_OF_RULE: Final = ("bound", "intensity_delta", "step_per")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What is different from the base; what is left out is as there.

    Attributes:
        name: in words.
        load, arrivals, batch, peak_s, scale, run_s, low_io, high_nodes, high_run_s, high_share,
            high_bytes_per_s: of the mix.
        weights, caps: of the cluster.
        bound, intensity_delta: of the rule.
    """

    name: str
    load: float | None = None
    arrivals: Arrivals | None = None
    batch: float | None = None
    peak_s: float | None = None
    scale: int | None = None
    run_s: tuple[float, float] | None = None
    low_io: float | None = None
    high_nodes: tuple[int, ...] | None = None
    high_run_s: tuple[float, float] | None = None
    high_share: tuple[float, float] | None = None
    high_bytes_per_s: tuple[float, float] | None = None
    weights: Literal["equal", "nodes"] | None = None
    caps: Literal["own", "network"] | None = None
    bound: Bound | None = None
    intensity_delta: Delta | None = None
    step_per: StepPer | None = None

    def applied(self, base: Setup) -> Setup:
        """The base with the changes."""
        changes = msgspec.structs.asdict(self)
        del changes["name"]
        changes = {key: value for key, value in changes.items() if value is not None}
        of_cluster = _taken(changes, _OF_CLUSTER)
        of_rule = _taken(changes, _OF_RULE)
        replace = msgspec.structs.replace
        return replace(
            base,
            mix=replace(base.mix, **changes),
            cluster=replace(base.cluster, **of_cluster),
            **of_rule,
        )


def _taken(changes: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: changes.pop(key) for key in keys if key in changes}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    seed: int
    reading: Reading
    alpha: float


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Alpha 0 and 0.5 under every reading.

    Attributes:
        readings: each with a name of its own; the base is run in any case.
        mix: of the base.
        cluster: of the base.
        records: a CSV file of real jobs for those with low to medium I/O; empty: from laws.
        bound: of the base.
        intensity_delta: of the base.
        step_per: of the base.
    """

    readings: tuple[Reading, ...] = ()
    mix: Mix = Mix()
    cluster: Cluster = Cluster()
    records: str = ""
    bound: Bound = "max"
    intensity_delta: Delta = "system"
    step_per: StepPer = "instant"

    def __post_init__(self) -> None:
        """Refuse two of one name, and what makes no workload."""
        names = [BASE, *(reading.name for reading in self.readings)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"readings: {twice!r} is there twice; each has its own name")
        for reading in self.readings:
            try:
                reading.applied(setup_of(self))
            except ValueError as error:
                raise ValueError(f"readings: {reading.name!r}: {error}") from error

    def remarks(self) -> Sequence[str]:
        """On the file of records."""
        return setup_of(self).remarks()

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """Both alphas of every reading of every seed."""
        return [
            Task(seed=seed, reading=reading, alpha=alpha)
            for seed in seeds
            for reading in (Reading(name=BASE), *self.readings)
            for alpha in (FIRST, BALANCED)
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """The measures of a run."""
        setup = task.reading.applied(setup_of(self))
        lives = setup.live(setup.jobs(task.seed), alpha=task.alpha, seed=task.seed)
        measured = run_columns(lives)
        where: Row = {"seed": task.seed, "reading": task.reading.name, "alpha": task.alpha}
        return [{"kind": "run", **where, **{key: measured[key] for key in COLUMNS}}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """The factor of the distance by reading, and the largest of all."""
        factors = {str(row["reading"]): float(row["factor"]) for row in self.summary(rows)}
        return {**factors, "largest": max(factors.values())}

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Means over the seeds, a line a reading, the nearest to what is published first."""
        names = dict.fromkeys(str(row["reading"]) for row in rows)
        lines = [_line(name, [row for row in rows if row["reading"] == name]) for name in names]
        return sorted(lines, key=_gap)

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Both distances by reading, with what is printed; names are in the table."""
        lines = self.summary(rows)
        places = tuple(float(number) for number in range(1, len(lines) + 1))
        ours = [
            Series(label=f"alpha {alpha:g}", x=places, y=tuple(float(line[key]) for line in lines))
            for alpha, key in ((FIRST, "distance_at_0"), (BALANCED, "at_0.5"))
        ]
        printed = [
            Series(
                label=f"alpha {alpha:g}",
                x=(0.0, places[-1] + 1.0),
                y=(PUBLISHED[alpha],) * 2,
                is_published=True,
            )
            for alpha in (FIRST, BALANCED)
        ]
        return [
            Figure(
                name="readings",
                title="Mean distance of S and W by reading; means over seeds",
                x_label="line of the table of readings, the nearest to the slides first",
                y_label="mean distance, GB/s",
                kind="point",
                series=(*ours, *printed),
                log_y=True,
            )
        ]


def _line(name: str, rows: Sequence[Row]) -> Row:
    """A reading: means over the seeds at both alphas, and their ratios."""

    def both(column: str) -> tuple[float, float]:
        seeds = by_seed(of_kind(rows, "run"), "alpha", column).values()
        first, balanced = (mean([each[alpha] for each in seeds]) for alpha in (FIRST, BALANCED))
        return first, balanced

    distance, io = both("distance_gb_per_s"), both("io_slowdown_percent")
    return {
        "kind": "summary",
        "reading": name,
        "distance_at_0": distance[0],
        "at_0.5": distance[1],
        "factor": _ratio(distance),
        "factor_by_nodes": _ratio(both("distance_by_nodes_gb_per_s")),
        "factor_of_events": _ratio(both("distance_of_events_gb_per_s")),
        "I/O_slowdown_at_0": io[0],
        "I/O_at_0.5": io[1],
        "running": both("running")[1],
        "backfilled": both("backfilled")[1],
    }


def _ratio(pair: tuple[float, float]) -> float:
    return pair[0] / pair[1] if pair[1] else math.inf


def _gap(line: Row) -> float:
    """How far both distances are from the published, as logarithms together."""
    pairs = ((line["distance_at_0"], PUBLISHED[FIRST]), (line["at_0.5"], PUBLISHED[BALANCED]))
    return sum(abs(math.log(max(float(ours), 1e-9) / printed)) for ours, printed in pairs)
