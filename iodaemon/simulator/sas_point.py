"""One run of an experiment with SAS: a workload, a cluster, a way to choose tiers; its measures."""

from __future__ import annotations

import random
from typing import Final, Literal

import msgspec

from iodaemon.core.measure import mean
from iodaemon.core.scratch import ScratchRequest
from iodaemon.policy.admission import storage_aware
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.sas import FAST, GB, SLOW, Load, SasJob, Site, draw_workload
from iodaemon.simulator.sas_run import Asking, Lived, World, hold_bytes_s

SAS: Final = "sas"
RANDOM: Final = "random"
SILENT: Final = "silent"
"""SAS, told nothing of what jobs move."""
Way = Literal["sas", "random", "silent"]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work.

    Attributes:
        seed: of the workload.
        gb: what the fast tier holds.
        way: who chooses the tiers.
        p: with ``random``: a job is on the fast tier with this probability.
        k: bandwidth of the staging in parts of that of the slow tier.
        theta: with ``sas``: relative standard deviation of what is said of a job.
        draw: repetition, of what is drawn beside the workload.
        space: what is asked for with ``theta``: what is needed, or what follows from what is said.
    """

    seed: int
    gb: float
    way: Way = SAS
    p: float = 0.0
    k: float = 5.0
    theta: float = 0.0
    draw: int = 0
    space: Literal["needed", "said"] = "needed"


def site_of(site: Site, point: Point) -> Site:
    """The cluster of a run."""
    return msgspec.structs.replace(site, fast_bytes=round(point.gb * GB), stage_ratio=point.k)


def run_point(load: Load, site: Site, point: Point, rule: storage_aware.Rule) -> Row:
    """The measures of a run."""
    here = site_of(site, point)
    jobs = draw_workload(load, here, point.seed)
    lives = World(here, rule, jobs, asking_of(load, here, point)).run()
    where = msgspec.structs.asdict(point)
    del where["space"]  # the same in all rows of a study
    return {"kind": "run", **where, **measures(here, lives)}


def asking_of(load: Load, site: Site, point: Point) -> Asking:
    """What is said of each job.

    What is drawn is the same for every p and theta of a draw: a job that is on the fast tier with
    one p is so with a larger one, unless it is too large for it.
    """
    rng = random.Random(f"sas {point.seed} {point.draw}")  # noqa: S311 - for simulations
    count = load.model.jobs
    if point.way == RANDOM:
        lots = [rng.random() for _ in range(count)]

        def at_random(job: SasJob, number: int) -> ScratchRequest:
            fits = job.space_bytes <= site.fast_bytes
            return job.asks(FAST if fits and lots[number] < point.p else SLOW)

        return at_random
    if point.way == SILENT:
        return lambda job, _: job.asks(None, (0.0, 0.0, 0.0))
    errors = [(rng.gauss(), rng.gauss(), rng.gauss()) for _ in range(count)]

    def told(job: SasJob, number: int) -> ScratchRequest:
        first, second, third = (max(0.0, 1.0 + point.theta * e) for e in errors[number])
        return job.asks(None, (first, second, third), space_follows=point.space == "said")

    return told


def measures(site: Site, lives: tuple[Lived, ...]) -> Row:
    """Of a run: times, what was used of what there was, how many jobs were on each tier."""
    makespan_s = max(life.end_s for life in lives) - min(life.submit_s for life in lives)
    fast = sum(life.tier == FAST for life in lives)
    return {
        "makespan_s": makespan_s,
        "turnaround_s": mean([life.end_s - life.submit_s for life in lives]),
        "node_s": sum(life.job.nodes * (life.nodes_s - life.start_s) for life in lives),
        "of_node_s": makespan_s * site.nodes,
        "byte_s": sum(map(hold_bytes_s, lives)),
        "of_byte_s": makespan_s * site.fast_bytes,
        "fast_jobs": fast,
        "slow_jobs": len(lives) - fast,
    }
