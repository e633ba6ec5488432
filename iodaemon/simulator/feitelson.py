"""The workload model of Feitelson (1996): sizes, run times, repetitions and arrivals of jobs.

1. A size of n nodes has a weight of n ** -1.5; powers of two have ``power_of_two`` times as much.
2. Run times have two stages, exponential with means of 1 and 7 units; the short one has a
   probability of 0.95 - 0.20 n / N, so larger jobs are longer.
3. A job is run r times with a weight of r ** -2.5; it comes again as soon as it has ended.
4. New jobs arrive at random (Poisson), one every ``gap_s`` in the mean.

The model has no seconds: ``unit_s`` is one unit, and run times are cut to a range. Its table of
sizes, made by hand, is not at hand; ``power_of_two`` is in its place.

Source: Feitelson, "Packing Schemes for Gang Scheduling", JSSPP 1996.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

SIZE_EXPONENT: Final = -1.5
RUNS_EXPONENT: Final = -2.5
SHORT_FIRST: Final = 0.95
SHORT_FALL: Final = 0.20
LONG_MEAN: Final = 7.0
"""In means of the short stage."""


class Feitelson(msgspec.Struct, frozen=True, kw_only=True):
    """The model's parameters.

    Attributes:
        jobs: how many runs there are, repetitions counted.
        most_runs: of one job.
        gap_s: between two arrivals of new jobs, in the mean.
        unit_s: the mean of the short stage.
        run_s: run times are cut to this range.
        power_of_two: these sizes are so many times as likely; 1 is a size of one node too.
    """

    jobs: int = 500
    most_runs: int = 2
    gap_s: float = 500.0
    unit_s: float = 10800.0
    run_s: tuple[float, float] = (1800.0, 86400.0)
    power_of_two: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what makes no workload."""
        if self.jobs < 1 or self.most_runs < 1:
            raise ValueError("jobs and most_runs are at least 1")
        if not (0.0 <= self.gap_s < math.inf and 0.0 < self.unit_s < math.inf):
            raise ValueError("gap_s is 0 or more, unit_s above 0")
        if not 0.0 < self.run_s[0] <= self.run_s[1] < math.inf:
            raise ValueError("run_s: from above 0, to no less")
        if not self.power_of_two > 0.0:
            raise ValueError("power_of_two is above 0")


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the model.

    Attributes:
        arrive_s: when it comes first.
        nodes: its size.
        run_s: one run of it.
        runs: how often it is run, one after the other.
    """

    arrive_s: float
    nodes: int
    run_s: float
    runs: int


def draw_jobs(model: Feitelson, nodes: int, rng: random.Random) -> tuple[Drawn, ...]:
    """Jobs of the model on a machine of so many nodes, ordered by arrival."""
    sizes = range(1, nodes + 1)
    by_size = list(accumulate(size_weight(model, size) for size in sizes))
    counts = range(1, model.most_runs + 1)
    by_count = list(accumulate(count**RUNS_EXPONENT for count in counts))
    found: list[Drawn] = []
    left, now_s = model.jobs, 0.0
    while left:
        size = _pick(sizes, by_size, rng)
        run_s = _draw_run_s(model, size / nodes, rng)
        runs = min(left, _pick(counts, by_count, rng))
        found.append(Drawn(arrive_s=now_s, nodes=size, run_s=run_s, runs=runs))
        left -= runs
        now_s += rng.expovariate(1.0) * model.gap_s
    return tuple(found)


def size_weight(model: Feitelson, size: int) -> float:
    """How likely the size is, beside others."""
    is_power = size & (size - 1) == 0
    return float(size**SIZE_EXPONENT * (model.power_of_two if is_power else 1.0))


def _draw_run_s(model: Feitelson, part: float, rng: random.Random) -> float:
    """A run of a job that takes this part of the machine, s."""
    is_short = rng.random() < SHORT_FIRST - SHORT_FALL * part
    mean_s = model.unit_s * (1.0 if is_short else LONG_MEAN)
    low_s, high_s = model.run_s
    return min(high_s, max(low_s, rng.expovariate(1.0) * mean_s))


def _pick(values: Sequence[int], cumulated: Sequence[float], rng: random.Random) -> int:
    return rng.choices(values, cum_weights=cumulated)[0]
