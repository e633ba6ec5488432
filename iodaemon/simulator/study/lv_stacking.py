"""Lv et al., section 2 and figure 14: CMP stacking, memory in use, and paced readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.job import JobSpec
from iodaemon.core.measure import lv_average_runtime_s, makespan_s, mean
from iodaemon.core.rule import Rules
from iodaemon.model.profile import Profile, Read
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.lv import Load, Piece, Server, Workload, draw_job
from iodaemon.simulator.lv_run import FULL, Way, run_lv
from iodaemon.simulator.lv_stacked import measured, stacking_figures
from iodaemon.simulator.run import Submission, simulate

RULES: Final = Rules(
    name="none",
    admission=fcfs.Rule(),
    placement=least_io.Rule(),
    regulation=none.Rule(),
    max_suspend_s=None,
)
PACED_BYTES_PER_JOB_S: Final = 60.0
"""A paced reader alone takes so long."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one experiment.

    Attributes:
        seed: of the jobs.
        what: ``stack``: so many full CMPs; ``memory``: a full machine with that part of its memory
            in use; ``paced``: so many CMPs of paced readers.
        label: of the curve.
        sockets: CMPs.
        value: part of the memory, or MB/s of a CMP.
    """

    seed: int
    what: Literal["stack", "memory", "paced"]
    label: str
    sockets: int
    value: float = 0.0


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Stacking up CMPs, without regulation.

    Attributes:
        load: the applications.
        curves: workloads of table 2, in their order; ``jobs`` says nothing: every core has one.
        uses: parts of the memory of figure 8.
        memory_app: whose working set is made so large.
        period_s: sampling period of figure 8.
        groups_mb: of figure 14: what the eight readers of a CMP move together, MB/s.
        steps: numbers of CMPs of figures 1, 5, 6, 7.
        server: the machine.
    """

    load: Load
    curves: tuple[Workload, ...]
    uses: tuple[float, ...]
    memory_app: str
    groups_mb: tuple[float, ...]
    period_s: float = 30_000.0
    steps: tuple[int, ...] = (1, 2, 4, 8)
    server: Server = Server()

    def __post_init__(self) -> None:
        """Refuse applications that are not there, and steps that are none."""
        for workload in self.curves:
            self.load.check(workload)
        if self.memory_app not in self.load.apps:
            raise ValueError(f"memory_app: there is no {self.memory_app!r}")
        if not self.curves or not self.steps or min(self.steps) < 1:
            raise ValueError("curves and steps list at least one each, steps from 1 on")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """Every step; nothing of the paced readers is drawn, so they are run once."""
        made = [
            Task(seed=seed, what="stack", label=f"#{curve.index}", sockets=step)
            for seed in seeds
            for curve in self.curves
            for step in self.steps
        ]
        full = self.server.sockets
        made += [
            Task(seed=seed, what="memory", label="use", sockets=full, value=use)
            for seed in seeds
            for use in self.uses
        ]
        return made + [
            Task(seed=seeds[0], what="paced", label=f"{rate:g}", sockets=number, value=rate)
            for rate in self.groups_mb
            for number in range(1, full + 1)
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """One row."""
        run: Mapping[str, Any] = {
            "stack": self._stack,
            "memory": self._memory,
            "paced": self._paced,
        }
        head: Row = {
            "kind": task.what,
            "seed": task.seed,
            "label": task.label,
            "sockets": task.sockets,
            "value": task.value,
        }
        return [{**head, **run[task.what](task)}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Run times, latencies and where they begin to rise (``lv_stacked``)."""
        return measured(rows)

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 1, 5 to 8 and 14."""
        return stacking_figures(rows)

    def _stack(self, task: Task) -> Row:
        curve = next(each for each in self.curves if f"#{each.index}" == task.label)
        full = msgspec.structs.replace(curve, jobs=task.sockets * self.server.slots)
        work = self.load.draw(full, self.server, task.seed)
        outcome = self._watched(work, curve.timeslice_s, task)
        keys = ("runtime_s", "waiting_ms", "serving_ms", "contended", "not_completed")
        first = outcome.jobs[: self.server.slots * min(self.steps)]
        row: Row = {key: outcome.sums[key] for key in keys}
        return {**row, "first_s": lv_average_runtime_s([float(job["run_s"]) for job in first])}

    def _memory(self, task: Task) -> Row:
        jobs = self.server.sockets * self.server.slots
        app = msgspec.structs.replace(
            self.load.apps[self.memory_app],
            resident_bytes=round(task.value * self.server.memory_bytes / jobs),
        )
        key = f"lv memory {task.value} {task.seed}"
        work = [
            draw_job(self.memory_app, app, self.load, self.server, key, number)
            for number in range(1, jobs + 1)
        ]
        outcome = self._watched(work, 20.0, task)
        seen = [look for look in outcome.looks if look.at_s <= self.period_s]
        return {
            "contended": mean([float(look.busy >= FULL) for look in seen]),
            "runtime_s": outcome.sums["runtime_s"],
        }

    def _watched(self, work: Sequence[Piece], timeslice_s: float, task: Task) -> Any:
        return run_lv(
            self.server,
            work,
            Way(label="none", rules=RULES, counting="kernel"),
            timeslice_s=timeslice_s,
            seed=task.seed,
            until_s=365 * 86400.0,
            sockets=task.sockets,
        )

    def _paced(self, task: Task) -> Row:
        """Readers that hold themselves to a rate; each reads its file once."""
        rate = task.value * 1e6 / self.server.slots
        read = Read(round(rate * PACED_BYTES_PER_JOB_S), cap_bytes_per_s=rate)
        jobs: list[Submission] = [
            (0.0, JobSpec(command=("paced",)), Profile(steps=(read,)))
            for _ in range(task.sockets * self.server.slots)
        ]
        platform, model = self.server.platform(task.sockets), self.server.model("kernel")
        result = simulate(platform, RULES, jobs, model=model, sampling=False)
        times = [(job.ended_s or 0.0) - (job.started_s or 0.0) for job in result.jobs]
        return {"runtime_s": lv_average_runtime_s(times), "makespan_s": makespan_s(result.jobs)}
