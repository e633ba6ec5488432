"""Random workloads: the same seed, the same jobs."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from iodaemon.core.job import JobSpec
from iodaemon.model.node import Compute, Profile, Read, Step, Write
from iodaemon.simulator.run import Submission

MB: Final = 1_000_000


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """What a random workload consists of; ranges are drawn from uniformly, both ends included.

    Attributes:
        jobs: how many.
        mean_gap_s: mean time between two submits (exponential). 0: all at once.
        cpus: slots that a job asks for.
        steps: steps of a profile.
        compute_s: length of a compute step.
        transfer_bytes: size of a read or write step.
        io_ratio: probability that a step is one of I/O.
        write_ratio: probability that an I/O step is a write.
        direct_ratio: probability that a write goes past the page cache.
        declared_ratio: probability that a job declares its mean I/O rate when alone.
        walltime_ratio: probability that a job has a walltime; some are too short.
        no_suspend_ratio: probability that a job must not be suspended.
        hides_io_ratio: probability that a job's I/O cannot be read.
        speaks_ratio: probability that a job tells of its I/O and waits for its turn.
        io_alone_bytes_per_s: rate that the declarations and walltimes reckon with.
    """

    jobs: int = 20
    mean_gap_s: float = 5.0
    cpus: tuple[int, int] = (1, 2)
    steps: tuple[int, int] = (1, 6)
    compute_s: tuple[float, float] = (0.5, 20.0)
    transfer_bytes: tuple[int, int] = (1 * MB, 2_000 * MB)
    io_ratio: float = 0.5
    write_ratio: float = 0.5
    direct_ratio: float = 0.25
    declared_ratio: float = 0.3
    walltime_ratio: float = 0.3
    no_suspend_ratio: float = 0.1
    hides_io_ratio: float = 0.0
    speaks_ratio: float = 0.0
    io_alone_bytes_per_s: float = 500e6

    def __post_init__(self) -> None:
        """Refuse ranges that are none, and what is negative or no probability."""
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; it must be at least 1")
        ranges = {"cpus": 1, "steps": 1, "compute_s": 0, "transfer_bytes": 1}
        for field, least in ranges.items():
            low, high = getattr(self, field)
            if not least <= low <= high:
                raise ValueError(f"{field} is {low} to {high}; it must be {least} or more, rising")
        for field in self.__struct_fields__:
            if field.endswith("_ratio") and not 0.0 <= getattr(self, field) <= 1.0:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be 0 to 1")
        if self.mean_gap_s < 0.0 or self.io_alone_bytes_per_s <= 0.0:
            raise ValueError("mean_gap_s must not be below 0, io_alone_bytes_per_s above 0")


WALLTIME_FACTORS: Final = (0.5, 10.0)
"""Walltime / time alone: people mostly ask for far too much, and at times for too little."""


def random_workload(mix: Mix, seed: int) -> tuple[Submission, ...]:
    """Jobs drawn from the mix, ordered by submit time."""
    rng = random.Random(seed)  # noqa: S311 - for experiments, not for secrets
    submit_s = 0.0
    jobs: list[Submission] = []
    for number in range(1, mix.jobs + 1):
        profile = _random_profile(mix, rng)
        jobs.append((submit_s, _random_spec(mix, rng, profile, number), profile))
        if mix.mean_gap_s > 0.0:
            submit_s += rng.expovariate(1.0 / mix.mean_gap_s)
    return tuple(jobs)


def _random_profile(mix: Mix, rng: random.Random) -> Profile:
    steps = tuple(_random_step(mix, rng) for _ in range(rng.randint(*mix.steps)))
    hides_io = rng.random() < mix.hides_io_ratio
    # Nothing is drawn where no job speaks: a mix without has the jobs that it always had.
    speaks = mix.speaks_ratio > 0.0 and rng.random() < mix.speaks_ratio
    return Profile(steps=steps, hides_io=hides_io, speaks=speaks)


def _random_step(mix: Mix, rng: random.Random) -> Step:
    if rng.random() >= mix.io_ratio:
        return Compute(rng.uniform(*mix.compute_s))
    size_bytes = rng.randint(*mix.transfer_bytes)
    if rng.random() >= mix.write_ratio:
        return Read(size_bytes)
    return Write(size_bytes, direct=rng.random() < mix.direct_ratio)


def _random_spec(mix: Mix, rng: random.Random, profile: Profile, number: int) -> JobSpec:
    moved_bytes = sum(step.size_bytes for step in profile.steps if not isinstance(step, Compute))
    compute_s = sum(step.seconds for step in profile.steps if isinstance(step, Compute))
    alone_s = compute_s + moved_bytes / mix.io_alone_bytes_per_s
    declares = rng.random() < mix.declared_ratio
    has_walltime = rng.random() < mix.walltime_ratio
    factor = rng.uniform(*WALLTIME_FACTORS)
    return JobSpec(
        command=("simulated",),
        name=f"random-{number}",
        cpus=rng.randint(*mix.cpus),
        walltime_s=alone_s * factor if has_walltime else None,
        io_rate_bytes_per_s=moved_bytes / alone_s if declares else None,
        no_suspend=rng.random() < mix.no_suspend_ratio,
    )
