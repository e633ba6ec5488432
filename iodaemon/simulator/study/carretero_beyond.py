"""What Carretero et al., ICS 2020, leave as future work (section 7), on their own workloads.

Run on the fast engine: packs by :mod:`iodaemon.simulator.kernel.run`, jobs without packs by
:mod:`iodaemon.simulator.kernel.unpacked`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import mean, stretch
from iodaemon.policy.packing import Pack, assign
from iodaemon.registry import nearest
from iodaemon.simulator.carretero import (
    Application,
    Generator,
    Law,
    Loads,
    LoadTask,
    draw_workloads,
    io_load,
    load_tasks,
)
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.kernel.run import Engine, shared_finish_times
from iodaemon.simulator.kernel.unpacked import (
    Admission,
    Backfilled,
    Life,
    WithoutBarrier,
    run_unpacked,
)
from iodaemon.simulator.packed import (
    Setting,
    Strategy,
    batch_of,
    makespan_by_lpt_s,
    pack_applications,
    parse_strategy,
    run_packs,
)
from iodaemon.simulator.packed_rows import load_figure, mean_of, pair_up, ratio_of, value_of

BASE: Final = "first-fit/fifo"
PACKED: Final = "fifo"
SHARED: Final = "shared"
NO_BARRIER: Final = "no-barrier"
BACKFILL: Final = "backfill"
FORMS: Final = (PACKED, SHARED, NO_BARRIER, BACKFILL)


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """The paper's packs beside other ways to run the same jobs.

    Attributes:
        policies: as ``PACKING/FORM``. PACKING: ``first-fit``, ``load`` or S. FORM: ``fifo`` (packs
            with exclusive I/O, as published), ``shared`` (packs with equal shares of the
            bandwidth), ``no-barrier`` (no packs: each job as soon as nodes and bandwidth allow) or
            ``backfill`` (packs, and small jobs of later ones where they fit).
        losses: of bandwidth while two or more share it; each is run with ``shared``.
        partition_nodes: P, compute nodes of one I/O node.
        io_nodes: how many.
        loads: how the list of alpha_gen goes on.
        workloads: of each load and seed.
        law: of the number of nodes of an application.
        sigma: standard deviation of v / w.
        engine: how the packs are run.
    """

    policies: tuple[str, ...]
    losses: tuple[float, ...] = (0.0,)
    partition_nodes: int = 2048
    io_nodes: tuple[int, ...] = (1, 3, 5)
    loads: Loads = "integer"
    workloads: int = 10
    law: Law = "binomial"
    sigma: float = 0.1
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        """Refuse ways that do not exist."""
        for name in self.policies:
            packing, _, form = name.partition("/")
            if form not in FORMS:
                raise ValueError(f"policies: {name!r}: unknown form; {nearest(form, FORMS)}")
            try:
                parse_strategy(f"{packing}/fifo")
            except ValueError as error:
                raise ValueError(f"policies: {error}") from error
        if not self.losses or not all(0.0 <= loss < 1.0 for loss in self.losses):
            raise ValueError(f"losses is {list(self.losses)}; each is from 0 to below 1")
        if not self.io_nodes or min(self.io_nodes) < 1:
            raise ValueError(f"io_nodes is {list(self.io_nodes)}; each is at least 1")
        if self.workloads < 1:
            raise ValueError(f"workloads is {self.workloads}; it must be at least 1")
        self._generator()

    def tasks(self, seeds: Sequence[int]) -> Sequence[LoadTask]:
        """Every load of every seed."""
        return load_tasks(seeds, self.loads)

    def run(self, task: LoadTask) -> Sequence[Row]:
        """One row a workload and way; the workloads are those of ``carretero_packs``."""
        rows: list[Row] = []
        for where, jobs in draw_workloads(task, self._generator(), self.workloads):
            for name in dict.fromkeys((BASE, *self.policies)):
                for label, columns in self._columns(name, jobs).items():
                    rows.append({**where, "policy": label, **columns})
        return rows

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Of each way: makespans relative to First-Fit by I/O nodes, and the stretch of jobs.

        Ids are ``WAY@3`` for the makespan on 3 I/O nodes and ``WAY:stretch``.
        """
        found: dict[str, float] = {}
        for label, pairs in pair_up(rows, BASE).items():
            for count in self.io_nodes:
                found[f"{label}@{count}"] = mean_of(pairs, ratio_of(f"makespan_{count}_s"))
            found[f"{label}:stretch"] = mean_of(pairs, value_of("stretch"))
        return found

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Makespan over the load for each count of I/O nodes, and the stretch of jobs."""
        pairs = pair_up(rows, BASE)
        others = {label: each for label, each in pairs.items() if label != BASE}
        made = [
            load_figure(
                f"makespan-{count}",
                f"Makespan on {count} I/O nodes",
                "makespan / First-Fit",
                {label: (each, ratio_of(f"makespan_{count}_s")) for label, each in others.items()},
            )
            for count in self.io_nodes
        ]
        lines = {label: (each, value_of("stretch")) for label, each in pairs.items()}
        return [*made, load_figure("stretch", "Stretch of the jobs", "mean stretch", lines)]

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The measures, a row a way."""
        values = self.measure(rows)
        return [
            {
                "kind": "summary",
                "policy": label,
                **{f"makespan_{count}": values[f"{label}@{count}"] for count in self.io_nodes},
                "stretch": values[f"{label}:stretch"],
            }
            for label in pair_up(rows, BASE)
        ]

    def _generator(self) -> Generator:
        return Generator(partition_nodes=self.partition_nodes, law=self.law, sigma=self.sigma)

    def _columns(self, name: str, jobs: Sequence[Application]) -> dict[str, Row]:
        """What comes of one way, by label: of a shared one, one for each loss."""
        packing, _, form = name.partition("/")
        strategy = parse_strategy(f"{packing}/fifo")
        if form in (NO_BARRIER, BACKFILL):
            return {name: self._unpacked(form, jobs, strategy)}
        setting = Setting(partition_nodes=self.partition_nodes, engine=self.engine)
        packs = pack_applications(jobs, strategy, setting)
        if form == PACKED:
            return {name: self._packed(packs, run_packs(jobs, packs, strategy.order, setting))}
        batch, columns = batch_of(jobs, packs)
        made: dict[str, Row] = {}
        for loss in self.losses:
            ends_s = shared_finish_times(batch, loss=loss, engine=self.engine)
            label = f"{name}-{loss:g}" if loss else name
            made[label] = self._packed(packs, [[ends_s[c] for c in pack] for pack in columns])
        return made

    def _packed(self, packs: Sequence[Pack], ends_s: Sequence[Sequence[float]]) -> Row:
        ideal_s, real_s = [pack.alone_s for pack in packs], [max(each) for each in ends_s]
        stretches = [
            stretch(end, item.alone_s)
            for pack, ends in zip(packs, ends_s, strict=True)
            for item, end in zip(pack.items, ends, strict=True)
        ]
        makespans = {n: makespan_by_lpt_s(ideal_s, real_s, n) for n in self.io_nodes}
        return _row(makespans, stretches)

    def _unpacked(self, form: str, jobs: Sequence[Application], strategy: Strategy) -> Row:
        makespans: dict[int, float] = {}
        stretches: list[float] = []
        for count in self.io_nodes:
            lives = run_unpacked(
                jobs,
                self._admission(form, jobs, strategy, count),
                partition_nodes=self.partition_nodes,
                io_nodes=count,
            )
            makespans[count] = max(life.end_s for life in lives)
            if count == self.io_nodes[0]:
                stretches = _stretches(lives, jobs)
        return _row(makespans, stretches)

    def _admission(
        self, form: str, jobs: Sequence[Application], strategy: Strategy, io_nodes: int
    ) -> Admission:
        bound = strategy.bound
        bound = io_load(jobs, self.partition_nodes) if bound is None else bound
        if form == NO_BARRIER:
            return WithoutBarrier(jobs, bound)
        setting = Setting(partition_nodes=self.partition_nodes)
        packs = pack_applications(jobs, strategy, setting)
        places = assign([pack.alone_s for pack in packs], io_nodes)
        return Backfilled(jobs, bound, [[item.id for item in pack.items] for pack in packs], places)


def _stretches(lives: Sequence[Life], jobs: Sequence[Application]) -> list[float]:
    """From start to end, as with packs, whose jobs start with the pack."""
    return [
        stretch(life.end_s - life.start_s, job.alone_s)
        for life, job in zip(lives, jobs, strict=True)
    ]


def _row(makespans_s: Mapping[int, float], stretches: Sequence[float]) -> Row:
    return {
        **{f"makespan_{count}_s": makespan_s for count, makespan_s in makespans_s.items()},
        "stretch": mean(stretches),
        "worst_stretch": max(stretches),
    }
