"""Carretero et al., ICS 2020, section 6.2: packs on 1, 3 and 5 I/O nodes (figures 10 to 15)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import geometric_mean, mean
from iodaemon.simulator.carretero import (
    Generator,
    Loads,
    LoadTask,
    draw_workloads,
    load_tasks,
)
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.kernel import Engine
from iodaemon.simulator.packed import (
    PackOrder,
    Setting,
    parse_strategy,
    run_strategies,
)
from iodaemon.simulator.table import group, numbers, printed, ranged, where

EDGES: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Bounds of the classes of realised I/O load in which lines are drawn and claims are read. Below 1
the I/O node has room for all, and nothing depends on the load."""
WORKLOAD: Final = ("seed", "wanted_load", "number")
"""What tells one workload from the others."""


class Pair(msgspec.Struct, frozen=True):
    """What a strategy made of a workload, and what the base made of it."""

    row: Row
    base: Row

    def ratio(self, key: str) -> float:
        """Of a column, relative to the base."""
        return float(self.row[key]) / float(self.base[key])


Value = Callable[[Pair], float]


def ratio_of(key: str) -> Value:
    """A column, relative to the base."""
    return lambda pair: pair.ratio(key)


def value_of(key: str) -> Value:
    """A column as it is."""
    return lambda pair: float(pair.row[key])


def pair_up(rows: Iterable[Row], base: str) -> dict[str, list[Pair]]:
    """Every strategy's rows beside those of the base, by its name; the base is there too."""
    held = where(rows, kind="workload")
    bases = {_workload(row): row for row in where(held, policy=base)}
    return {
        policy: [Pair(row, bases[_workload(row)]) for row in own]
        for policy, own in group(held, "policy").items()
    }


def mean_of(pairs: Iterable[Pair], value: Value) -> float:
    """The geometric mean, as everywhere with ratios."""
    return geometric_mean([value(pair) for pair in pairs])


def by_seed(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """One list a seed."""
    found: dict[object, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.row["seed"], []).append(pair)
    return list(found.values())


def by_class(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """One list a class of load, by rising load; empty classes are left out."""
    classes: list[list[Pair]] = [[] for _ in range(len(EDGES) + 1)]
    for pair in pairs:
        load = float(pair.row["load"])
        classes[sum(load >= edge for edge in EDGES)].append(pair)
    return [each for each in classes if each]


def class_means(pairs: Iterable[Pair], value: Value) -> list[float]:
    """The mean in each class."""
    return [mean_of(each, value) for each in by_class(pairs)]


def steps(pairs: Iterable[Pair], value: Value) -> list[float]:
    """From class to class of each seed: the next mean relative to the one before.

    All below 1: it falls with the load on every seed; all above: it rises.
    """
    return [
        after / before
        for seed in by_seed(pairs)
        for before, after in itertools.pairwise(class_means(seed, value))
    ]


def line(label: str, pairs: Sequence[Pair], value: Value) -> Series:
    """Means by class of load over all seeds, and the range of the seeds' own means."""
    x, y, low, high = [], [], [], []
    for each in by_class(pairs):
        of_seeds = [mean_of(seed, value) for seed in by_seed(each)]
        x.append(geometric_mean([float(pair.row["load"]) for pair in each]))
        y.append(mean_of(each, value))
        low.append(min(of_seeds))
        high.append(max(of_seeds))
    return Series(label=label, x=tuple(x), y=tuple(y), low=tuple(low), high=tuple(high))


def load_figure(
    name: str, title: str, y_label: str, lines: Mapping[str, tuple[Sequence[Pair], Value]]
) -> Figure:
    """Lines over the realised load, with the base at 1."""
    return Figure(
        name=name,
        title=title,
        x_label="I/O load (alpha)",
        y_label=y_label,
        kind="line",
        series=tuple(line(label, *drawn) for label, drawn in lines.items()),
        log_x=True,
        line_y=1.0,
    )


def _workload(row: Row) -> tuple[str | int | float, ...]:
    return tuple(row[key] for key in WORKLOAD)


BASE: Final = "first-fit/fifo"
"""What everything is relative to: "globally referred to as First-Fit" (section 6.2.3)."""
BOUNDED: Final = "1/fifo"
BY_LOAD: Final = "load/fifo"
LONGEST: Final = "1/longest_remaining"
PUBLISHED: Final = {1: 1.09, 3: 0.71, 5: 0.53}
"""Geometric means of figure 15 by I/O nodes, as the text prints them (section 6.2.4)."""

_makespan = ratio_of("makespan_1_s")
_stretch = ratio_of("stretch")
_packs = ratio_of("packs")


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Random workloads, each packed and run by every strategy.

    Attributes:
        policies: strategies as ``BOUND/ORDER``; BOUND is ``first-fit``, ``load`` (S = alpha) or S.
            First-Fit with FIFO is run in any case, all is relative to it.
        partition_nodes: P, compute nodes of one I/O node.
        io_nodes: how many; the packs are the same, their places differ.
        loads: how the list of alpha_gen goes on.
        workloads: of each load and seed.
        sigma: standard deviation of v / w.
        applications: in a workload, from and to.
        iterations: of an application, from and to.
        compute_s: of a compute phase, from and to.
        pack_order: in which order packs are looked at.
        engine: how the packs are run.
    """

    policies: tuple[str, ...] = (BOUNDED, BY_LOAD, LONGEST)
    partition_nodes: int = 2048
    io_nodes: tuple[int, ...] = (1, 3, 5)
    loads: Loads = "integer"
    workloads: int = 10
    sigma: float = 0.1
    applications: tuple[int, int] = (25, 100)
    iterations: tuple[int, int] = (250, 1000)
    compute_s: tuple[float, float] = (10.0, 100.0)
    pack_order: PackOrder = "best-fit"
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        """Refuse strategies that do not exist, and what the generator refuses."""
        for name in self.policies:
            try:
                parse_strategy(name)
            except ValueError as error:
                raise ValueError(f"policies: {error}") from error
        if self.workloads < 1:
            raise ValueError(f"workloads is {self.workloads}; it must be at least 1")
        if 1 not in self.io_nodes or min(self.io_nodes) < 1:
            raise ValueError(f"io_nodes is {list(self.io_nodes)}; it must have 1, and nothing less")
        self._generator()

    def tasks(self, seeds: Sequence[int]) -> Sequence[LoadTask]:
        """Every load of every seed."""
        return load_tasks(seeds, self.loads)

    def run(self, task: LoadTask) -> Sequence[Row]:
        """One row a workload and strategy."""
        names = tuple(dict.fromkeys((BASE, *self.policies)))
        strategies = [parse_strategy(name) for name in names]
        rows: list[Row] = []
        for head, applications in draw_workloads(task, self._generator(), self.workloads):
            outcomes = run_strategies(applications, strategies, self._setting())
            for name, outcome in zip(names, outcomes, strict=True):
                rows.append({**head, "policy": name, **outcome})
        return rows

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Targets C2, for the strategies that were run. What holds of seeds holds of every one."""
        pairs = pair_up(rows, BASE)
        found: dict[str, float] = {
            "C2e": max(_real_by_ideal(pair) for pair in pairs[BASE]),
            "C2e-pack": max(float(pair.row["worst_ratio"]) for pair in pairs[BASE]),
        }
        if BOUNDED in pairs:
            found |= _makespans(pairs[BOUNDED], self.io_nodes) | _bounded(pairs[BOUNDED])
            found |= _split_of_time(pairs[BOUNDED])
        if BY_LOAD in pairs:
            makespans = class_means(pairs[BY_LOAD], _makespan)
            counts = class_means(pairs[BY_LOAD], _packs)
            found |= {"C2g-load-least": min(counts), "C2g-load-most": max(counts)}
            found |= {"C2h-least": min(makespans), "C2h-most": max(makespans)}
        if BOUNDED in pairs and LONGEST in pairs:
            for key, value in (("C2j", _makespan), ("C2j-stretch", _stretch)):
                longest, fifo = (mean_of(pairs[name], value) for name in (LONGEST, BOUNDED))
                found[key] = abs(longest / fifo - 1.0)
        return found

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 10 to 15."""
        pairs = pair_up(rows, BASE)
        others = {name: each for name, each in pairs.items() if name != BASE}
        fifo = {name: each for name, each in pairs.items() if name.endswith("/fifo")}

        def relative(name: str, title: str, what: str, value: Value) -> Figure:
            lines = {label: (each, value) for label, each in others.items()}
            return load_figure(name, title, f"{what} / First-Fit", lines)

        made = [
            relative("figure-10", "Makespan, 1 I/O node (Fig. 10)", "makespan", _makespan),
            relative("figure-11", "Stretch (Fig. 11)", "stretch", _stretch),
            relative("figure-12", "Number of packs (Fig. 12)", "packs", _packs),
            load_figure(
                "figure-13",
                "Real length of the packs, all together (Fig. 13)",
                "real / ideal length",
                {label: (each, _real_by_ideal) for label, each in fifo.items()},
            ),
            _split_figure(fifo),
        ]
        if BOUNDED in pairs:
            made.append(_io_node_figure(pairs[BOUNDED], self.io_nodes))
        return made

    def _generator(self) -> Generator:
        return Generator(
            partition_nodes=self.partition_nodes,
            sigma=self.sigma,
            applications=self.applications,
            iterations=self.iterations,
            compute_s=self.compute_s,
        )

    def _setting(self) -> Setting:
        return Setting(
            partition_nodes=self.partition_nodes,
            io_nodes=self.io_nodes,
            pack_order=self.pack_order,
            engine=self.engine,
        )


def _real_by_ideal(pair: Pair) -> float:
    return float(pair.row["real_s"]) / float(pair.row["ideal_s"])


def _makespans(pairs: Sequence[Pair], io_nodes: Sequence[int]) -> dict[str, float]:
    """C2a to C2c: means over all, and what holds on every seed."""
    one = _of_seeds(pairs, 1)
    found = {"C2a": geometric_mean(one), "C2a-least": min(one)}
    if {3, 5} <= set(io_nodes):
        three, five = _of_seeds(pairs, 3), _of_seeds(pairs, 5)
        found |= {"C2b": geometric_mean(three), "C2b-most": max(three)}
        gains = [b / a for a, b in zip(three, five, strict=True)]
        found |= {"C2c": geometric_mean(five), "C2c-most": max(gains)}
    return found


def _of_seeds(pairs: Sequence[Pair], io_nodes: int) -> list[float]:
    """Makespan on so many I/O nodes relative to the base: the mean of each seed."""
    return [mean_of(each, ratio_of(f"makespan_{io_nodes}_s")) for each in by_seed(pairs)]


def _bounded(pairs: Sequence[Pair]) -> dict[str, float]:
    """C2d, C2f and C2g of S = 1."""
    real = [_real_by_ideal(pair) for pair in pairs]
    return {
        "C2d": geometric_mean(real),
        "C2d-most": max(real),
        "C2d-printed": max(real),
        "C2f": max(steps(pairs, _stretch)),
        "C2f-stretch": mean_of(pairs, value_of("stretch")),
        "C2g": min(steps(pairs, _packs)),
    }


def _split_of_time(pairs: Sequence[Pair]) -> dict[str, float]:
    """C2i: what is moved between delay and idle, in parts of the base's whole time."""
    ours, base = (_parts([getattr(pair, which) for pair in pairs]) for which in ("row", "base"))
    whole = sum(base.values())
    delay, idle = ((ours[key] - base[key]) / whole for key in ("delay", "idle"))
    return {
        "C2i": -delay,
        "C2i-idle": idle + delay,
        "C2i-total": sum(ours.values()) / whole,
    }


def _parts(rows: Iterable[Row]) -> dict[str, float]:
    held = list(rows)
    keys = ("exec", "delay", "idle")
    return {key: mean(numbers(held, f"{key}_node_s")) for key in keys}


def _split_figure(pairs: Mapping[str, Sequence[Pair]]) -> Figure:
    parts = {name: _parts(pair.row for pair in each) for name, each in pairs.items()}
    whole = sum(parts[BASE].values())
    series = (
        Series(label=key, x=tuple(parts), y=tuple(part[key] / whole for part in parts.values()))
        for key in ("exec", "delay", "idle")
    )
    return Figure(
        name="figure-14",
        title="What the nodes do (Fig. 14)",
        x_label="",
        y_label="node time / that of First-Fit",
        kind="stack",
        series=tuple(series),
    )


def _io_node_figure(pairs: Sequence[Pair], io_nodes: Sequence[int]) -> Figure:
    of_seeds = {count: _of_seeds(pairs, count) for count in io_nodes}
    return Figure(
        name="figure-15",
        title="Makespan on more I/O nodes (Fig. 15)",
        x_label="I/O nodes",
        y_label="makespan / First-Fit, geometric mean",
        kind="line",
        series=(ranged("S = 1", of_seeds, geometric_mean), printed("figure 15", PUBLISHED)),
        line_y=1.0,
    )
