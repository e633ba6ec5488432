"""The cluster and the jobs of the experiments with a storage-aware scheduler (SAS).

A job reads its input, computes and writes checkpoints in between, and writes its output. On the
fast tier its input is staged in before and its output staged out after.

Sizes, run times, repetitions and arrivals are those of Feitelson's model (1996):

1. A size of n nodes has a weight of n ** -1.5; powers of two have ``power_of_two`` times as much.
2. Run times have two stages, exponential with means of 1 and 7 units; the short one has a
   probability of 0.95 - 0.20 n / N, so larger jobs are longer.
3. A job is run r times with a weight of r ** -2.5; it comes again as soon as it has ended.
4. New jobs arrive at random (Poisson), one every ``gap_s`` in the mean.

The model has no seconds: ``unit_s`` is one unit, and run times are cut to a range. Its table of
sizes, made by hand, is not at hand; ``power_of_two`` is in its place.

Source: Lackner, Fard, Wolf, CCGRID 2019, section IV; Feitelson, "Packing Schemes for Gang
Scheduling", JSSPP 1996. What they leave open is a field each, of ``Site``, ``Load`` and
``Feitelson``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Literal

import msgspec

from iodaemon.core.job import DiskId, ScratchRequest, TierName
from iodaemon.core.platform import Platform
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier
from iodaemon.model.node import default_platform

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


GB: Final = 1e9
FAST: Final = TierName("hps")
SLOW: Final = TierName("lps")
CheckpointLaw = Literal["whole", "least", "drawn"]
"""How many checkpoints: as many whole ones as fill the share; one at least; of a drawn share."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster.

    Attributes:
        nodes: that compute.
        node_bytes: memory of one, which is its part of a checkpoint.
        slow_bytes_per_s: between all nodes and the slow tier.
        fast_ratio: the fast tier is so many times as fast.
        stage_ratio: likewise the staging between the two.
        fast_bytes: what the fast tier holds.
        nodes_while_staging: whether a job keeps its nodes while its output is staged out.
    """

    nodes: int = 128
    node_bytes: int = 16_000_000_000
    slow_bytes_per_s: float = 0.4e9
    fast_ratio: float = 15.0
    stage_ratio: float = 5.0
    fast_bytes: int = 4_096_000_000_000
    nodes_while_staging: Literal["held", "freed"] = "held"

    def __post_init__(self) -> None:
        """Refuse a cluster without nodes, links or space."""
        if self.nodes < 1 or self.node_bytes < 1 or self.fast_bytes < 1:
            raise ValueError("nodes, node_bytes and fast_bytes are at least 1")
        for key in ("slow_bytes_per_s", "fast_ratio", "stage_ratio"):
            if not 0.0 < getattr(self, key) < math.inf:
                raise ValueError(f"{key} is {getattr(self, key):g}; it must be above 0")

    def platform(self) -> Platform:
        """One partition."""
        return Platform(partitions=default_platform(1, self.nodes).partitions)

    def tiers(self) -> tuple[Tier, ...]:
        """The fast one, of one disk, and the slow one, which nobody counts."""
        fast = self.slow_bytes_per_s * self.fast_ratio
        disk = Disk(
            id=DiskId("hps0"),
            capacity_bytes=self.fast_bytes,
            read_bytes_per_s=fast,
            write_bytes_per_s=fast,
        )
        storage = Storage(nodes=(StorageNode(id="hps", disks=(disk,)),))
        staging = self.slow_bytes_per_s * self.stage_ratio
        return (
            Tier(
                name=FAST, storage=storage, bandwidth_bytes_per_s=fast, staging_bytes_per_s=staging
            ),
            Tier(name=SLOW, storage=None, bandwidth_bytes_per_s=self.slow_bytes_per_s),
        )


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are made.

    Attributes:
        model: sizes, run times, repetitions, arrivals.
        io_share: mean of the part of a run that reads its input from the slow tier, and of that
            which writes its output; normal, not below 0.
        io_share_sd: its standard deviation, in parts of the mean.
        checkpoint_share: the part of a run that writes checkpoints to the slow tier; 0: none.
        checkpoint_law: how many these are.
        checkpoint_from_s: shorter runs write none.
        space: whether jobs without checkpoints ask for the space of one all the same.
    """

    model: Feitelson = Feitelson()
    io_share: float = 0.025
    io_share_sd: float = 0.4
    checkpoint_share: float = 0.1
    checkpoint_law: CheckpointLaw = "whole"
    checkpoint_from_s: float = 3600.0
    space: Literal["always", "needed"] = "always"

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        if not (0.0 <= self.io_share < 0.5 and 0.0 <= self.checkpoint_share < 1.0):
            raise ValueError("io_share is 0 to 0.5, checkpoint_share 0 to 1")
        if not 0.0 <= self.io_share_sd < math.inf:
            raise ValueError("io_share_sd is 0 or more")


class SasJob(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a job, as it is on the slow tier when nobody else moves anything.

    Attributes:
        arrive_s: when it comes.
        nodes: how many it holds.
        walltime_s: how long it takes.
        compute_s: what of that is computing.
        input_bytes: read at its beginning.
        output_bytes: written at its end.
        checkpoint_bytes: of one checkpoint.
        checkpoints: how many, spread evenly.
        space_bytes: what it asks for of the fast tier.
        again: so many runs of the same follow, each when the one before has ended.
    """

    arrive_s: float
    nodes: int
    walltime_s: float
    compute_s: float
    input_bytes: int
    output_bytes: int
    checkpoint_bytes: int
    checkpoints: int
    space_bytes: int
    again: int = 0

    @property
    def data_bytes(self) -> int:
        """What it writes in between."""
        return self.checkpoint_bytes * self.checkpoints

    def asks(
        self,
        tier: TierName | None,
        told: tuple[float, float, float] = (1.0, 1.0, 1.0),
        *,
        space_follows: bool = False,
    ) -> ScratchRequest:
        """What its user says of it.

        Args:
            tier: that is named. None: the scheduler's choice.
            told: input, output and data in parts of what is true.
            space_follows: the space that is asked for is that of what is said, not the true one.
        """
        volumes = (self.input_bytes, self.output_bytes, self.data_bytes)
        given = [round(part * size) for part, size in zip(told, volumes, strict=True)]
        space_bytes = self.space_bytes
        if space_follows:
            kept = self.space_bytes - max(self.input_bytes, self.output_bytes)
            space_bytes = max(1, max(given[0], given[1]) + round(told[2] * kept))
        return ScratchRequest(
            size_bytes=space_bytes,
            tier=tier,
            input_bytes=given[0],
            output_bytes=given[1],
            data_bytes=given[2],
        )


def draw_workload(load: Load, site: Site, seed: int) -> tuple[SasJob, ...]:
    """The jobs of a seed, ordered by arrival; those that come again once."""
    rng = random.Random(f"sas {seed}")  # noqa: S311 - for simulations, not for secrets
    drawn = draw_jobs(load.model, site.nodes, rng)
    return tuple(
        _made(load, site, each.nodes, each.run_s, each.arrive_s, each.runs - 1, rng)
        for each in drawn
    )


def _made(
    load: Load,
    site: Site,
    nodes: int,
    run_s: float,
    arrive_s: float,
    again: int,
    rng: random.Random,
) -> SasJob:
    rate = site.slow_bytes_per_s
    spread = load.io_share * load.io_share_sd
    shares = [max(0.0, rng.gauss(load.io_share, spread)) for _ in range(2)]
    part = 2.0 * rng.random()
    input_bytes, output_bytes = (round(share * run_s * rate) for share in shares)
    size = site.node_bytes * nodes
    share = load.checkpoint_share * (part if load.checkpoint_law == "drawn" else 1.0)
    count = 0
    if run_s >= load.checkpoint_from_s and load.checkpoint_share > 0.0:
        count = int(share * run_s * rate / size)
        if load.checkpoint_law == "least":
            count = max(1, count)
    moved_s = (input_bytes + output_bytes + count * size) / rate
    keeps = size if count or load.space == "always" else 0
    return SasJob(
        arrive_s=arrive_s,
        nodes=nodes,
        walltime_s=max(run_s, moved_s),
        compute_s=max(0.0, run_s - moved_s),
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        checkpoint_bytes=size,
        checkpoints=count,
        space_bytes=max(1, max(input_bytes, output_bytes) + keeps),
        again=again,
    )
