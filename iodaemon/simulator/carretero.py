"""The workloads of Carretero et al.: periodic applications, and the generator of random ones.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, sections 4.1 (platform), 4.2
(applications) and 6.2.2 (generator, I/O load). The bandwidth of an I/O node is 1, so the volume
of a phase is its length when alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from iodaemon.simulator.experiment import Row

LARGEST_EXPONENT: Final = 11
"""Applications have 2^0 to 2^11 nodes (section 6.2.2)."""
Loads = Literal["integer", "quarter"]
"""How the list "0.5, 0.75, 1 ... 10" goes on after 1: by 1 (12 values) or by 0.25 (39 values)."""


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic application.

    Attributes:
        compute_s: w, length of one compute phase.
        io_s: v / b, length of one I/O phase when alone.
        iterations: n.
        nodes: Q, compute nodes that it holds.
    """

    compute_s: float
    io_s: float
    iterations: int
    nodes: int = 1

    def __post_init__(self) -> None:
        """Refuse what no application can be."""
        for key in ("compute_s", "io_s"):
            if not 0.0 <= getattr(self, key) < math.inf:
                raise ValueError(f"{key} is {getattr(self, key):g}; a length cannot be negative")
        for key in ("iterations", "nodes"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if self.compute_s + self.io_s <= 0.0:
            raise ValueError("compute and io are both 0; an application must do something")

    @property
    def alone_s(self) -> float:
        """T, its length without contention."""
        return self.iterations * (self.compute_s + self.io_s)

    @property
    def volume(self) -> float:
        """V, all its I/O, in seconds of an I/O node."""
        return self.iterations * self.io_s


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """Section 6.2.2: random workloads around a wanted I/O load.

    Attributes:
        partition_nodes: P.
        sigma: standard deviation of v / w; 0.316 is the printed "variance 0.1" taken by the word.
        applications: how many in a workload, both ends included, as in all ranges.
        iterations: of an application.
        compute_s: w.
        low_io_ratio: mean of v / w of applications with little I/O (mu_1).
        high_io_ratio: and of those with much (mu_2).
    """

    partition_nodes: int = 2048
    sigma: float = 0.1
    applications: tuple[int, int] = (25, 100)
    iterations: tuple[int, int] = (250, 1000)
    compute_s: tuple[float, float] = (10.0, 100.0)
    low_io_ratio: float = 0.1
    high_io_ratio: float = 0.9

    def __post_init__(self) -> None:
        """Refuse ranges that are none, and applications larger than the partition."""
        if self.partition_nodes < 2**LARGEST_EXPONENT:
            raise ValueError(
                f"partition_nodes is {self.partition_nodes}; an application may need "
                f"{2**LARGEST_EXPONENT} nodes"
            )
        for key, least in (("applications", 1), ("iterations", 1), ("compute_s", 0.0)):
            low, high = getattr(self, key)
            if not least <= low <= high:
                raise ValueError(f"{key} is [{low}, {high}]; write [from, to], at least {least}")
        if self.sigma < 0.0:
            raise ValueError(f"sigma is {self.sigma:g}; it must not be negative")
        for key in ("low_io_ratio", "high_io_ratio"):
            if not 0.0 < getattr(self, key) <= 1.0:
                raise ValueError(f"{key} is {getattr(self, key):g}; it must be above 0, at most 1")

    def workload(self, load: float, rng: random.Random) -> tuple[Application, ...]:
        """Applications whose I/O load is about ``load`` (alpha_gen)."""
        low_share = rng.random()
        mean_ratio = low_share * self.low_io_ratio + (1.0 - low_share) * self.high_io_ratio
        mean_nodes = self.partition_nodes * mean_ratio / (load * (1.0 + mean_ratio))
        weights = node_weights(mean_nodes)
        sizes = [2**exponent for exponent in range(LARGEST_EXPONENT + 1)]
        made = []
        for _ in range(rng.randint(*self.applications)):
            is_low = rng.random() < low_share
            ratio = self._ratio(self.low_io_ratio if is_low else self.high_io_ratio, rng)
            compute_s = rng.uniform(*self.compute_s)
            made.append(
                Application(
                    compute_s=compute_s,
                    io_s=ratio * compute_s,
                    iterations=rng.randint(*self.iterations),
                    nodes=rng.choices(sizes, weights)[0],
                )
            )
        return tuple(made)

    def _ratio(self, mean_ratio: float, rng: random.Random) -> float:
        """Normal, truncated to (0, 1]."""
        while True:
            drawn = rng.gauss(mean_ratio, self.sigma)
            if 0.0 < drawn <= 1.0:
                return drawn


def io_load(applications: Iterable[Application], partition_nodes: int) -> float:
    """Alpha, the I/O load that a workload has on one partition. Source: equation 6."""
    held = list(applications)
    volume = sum(application.volume for application in held)
    return partition_nodes * volume / sum(each.nodes * each.alone_s for each in held)


def load_list(loads: Loads) -> tuple[float, ...]:
    """The values of alpha_gen."""
    if loads == "integer":
        return (0.5, 0.75, *(float(load) for load in range(1, 11)))
    return tuple(quarters / 4 for quarters in range(2, 41))


class LoadTask(msgspec.Struct, frozen=True):
    """A piece of work of a study: all workloads of one load and one seed."""

    seed: int
    load: float


def load_tasks(seeds: Iterable[int], loads: Loads) -> list[LoadTask]:
    """One for each seed and load, seed by seed."""
    return [LoadTask(seed=seed, load=load) for seed in seeds for load in load_list(loads)]


def draw_workloads(
    task: LoadTask, generator: Generator, count: int
) -> Iterator[tuple[Row, tuple[Application, ...]]]:
    """The workloads of a load and seed, each with the columns that tell it from others.

    Each has a generator of random numbers of its own, so that it is the same in every study.
    """
    for number in range(count):
        rng = random.Random(f"{task.seed} {task.load} {number}")  # noqa: S311 - no secret
        applications = generator.workload(task.load, rng)
        yield (
            {
                "kind": "workload",
                "seed": task.seed,
                "wanted_load": task.load,
                "number": number,
                "load": io_load(applications, generator.partition_nodes),
                "applications": len(applications),
            },
            applications,
        )


def node_weights(mean_nodes: float) -> tuple[float, ...]:
    """Probabilities of 2^0, 2^1 ... 2^11 nodes with this mean (between 1 and 2048; else the end).

    The paper gives only the mean. The exponent is binomial(11, q), q = mean^(1/11) - 1.
    """
    wanted = min(max(mean_nodes, 1.0), 2.0**LARGEST_EXPONENT)
    q = wanted ** (1.0 / LARGEST_EXPONENT) - 1.0
    return tuple(
        math.comb(LARGEST_EXPONENT, j) * q**j * (1.0 - q) ** (LARGEST_EXPONENT - j)
        for j in range(LARGEST_EXPONENT + 1)
    )
