"""S2: the sweeps of Carretero et al., compiled, plain, and beside SimPy on the same model.

Times are of the processor, not of the wall: nothing here waits for anything.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench_figure import Check, Section, Series, alternate
from bench_plan import Plan

from iodaemon.policy.list_order import ORDERS
from iodaemon.simulator.kernel import Batch, Engine, finish_times
from iodaemon.simulator.study.carretero_packs import Study

simpy: Any = None
with contextlib.suppress(ImportError):
    import simpy

JOBS = 60
"""In the pack that is run by every engine: packs have 1 to 95 jobs."""
PACK_ORDERS = ("fifo", "longest_remaining")
"""Those that the study uses."""


class Ran(NamedTuple):
    """One pack."""

    events_per_s: float
    finish_s: list[float]


def _pack(*, is_quick: bool) -> Batch:
    rng = random.Random(60)
    batch = Batch()
    for _ in range(JOBS):
        compute_s = rng.uniform(10.0, 100.0)
        iterations = rng.randint(25, 100) if is_quick else rng.randint(250, 1000)
        batch.add_job(compute_s, rng.uniform(0.01, 1.0) * compute_s, iterations)
    batch.end_pack()
    return batch


def _run_ours(batch: Batch, order: str, engine: Engine) -> Ran:
    began_s = time.process_time()
    finish_s = finish_times(batch, ORDERS[order], engine=engine)
    return Ran(batch.events / (time.process_time() - began_s), finish_s)


def _run_simpy(batch: Batch, order: str) -> Ran:
    """Processes and a resource, as one would write them."""
    environment = simpy.Environment()
    is_fifo = order == "fifo"
    io_node = (simpy.Resource if is_fifo else simpy.PriorityResource)(environment)
    finish_s = [0.0] * len(batch.io_s)

    def job(number: int, compute_s: float, io_s: float, iterations: int) -> Iterator[Any]:
        for left in range(iterations, 0, -1):
            yield environment.timeout(compute_s)
            rank = {} if is_fifo else {"priority": compute_s - left * (compute_s + io_s)}
            with io_node.request(**rank) as request:
                yield request
                yield environment.timeout(io_s)
        finish_s[number] = environment.now

    columns = zip(batch.compute_s, batch.io_s, batch.iterations, strict=True)
    for number, phases in enumerate(columns):
        environment.process(job(number, *phases))
    began_s = time.process_time()
    environment.run()
    return Ran(batch.events / (time.process_time() - began_s), finish_s)


def measure_pack(plan: Plan) -> Section:
    """S2, one pack on every engine."""
    batch = _pack(is_quick=plan.is_quick)
    variants: dict[str, Callable[[], Ran]] = {}
    for order in PACK_ORDERS:
        _run_ours(batch, order, "compiled")  # compiles
        for engine in ("compiled", "plain"):
            variants[f"{engine}, {order}"] = lambda o=order, e=engine: _run_ours(batch, o, e)
        if simpy is not None:
            variants[f"SimPy, {order}"] = lambda o=order: _run_simpy(batch, o)
    found = alternate(variants, plan.rounds, plan.tell("S2"))
    for order in PACK_ORDERS:
        ends = [runs[0].finish_s for name, runs in found.items() if name.endswith(order)]
        if any(each != ends[0] for each in ends):
            raise RuntimeError(f"{order}: the engines end the jobs at different times")
    return Section(
        title=f"S2: one pack of {JOBS} jobs with exclusive I/O, {batch.events:,} events",
        series=[
            Series(
                name,
                [run.events_per_s for run in runs],
                "events/s",
                is_peer=name.startswith("SimPy"),
            )
            for name, runs in found.items()
        ],
        checks=[],
        notes=[
            "an event is a request for I/O or its end",
            "all engines end every job at the same time, to the last bit",
        ],
    )


def measure_study(plan: Plan) -> Section:
    """S2, figures 10 to 15: 390 workloads, four strategies, 1, 3 and 5 I/O nodes."""
    workloads = 1 if plan.is_quick else 10
    compiled, plain = (
        Study(loads="quarter", workloads=workloads, engine=engine)
        for engine in ("compiled", "plain")
    )
    compiled.run(compiled.tasks([1])[0])  # compiles
    variants = {"compiled": lambda: _study_s(compiled)}
    found = alternate(variants, plan.rounds, plan.tell("S2, the study"))
    found["plain Python"] = [_study_s(plain)]
    part = workloads / 10
    return Section(
        title=f"S2: the whole study, {len(compiled.tasks([1])) * workloads} workloads, one core",
        series=[Series(name, values, "s") for name, values in found.items()],
        checks=[
            Check("compiled", statistics.median(found["compiled"]), 3.0 * part, "s"),
            Check("plain Python", found["plain Python"][0], 60.0 * part, "s"),
        ],
        notes=["making the workloads, packing them and all rows of the study included"],
    )


def _study_s(study: Study) -> float:
    began_s = time.process_time()
    for task in study.tasks([1]):
        study.run(task)
    return time.process_time() - began_s
