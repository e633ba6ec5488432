"""What a run was worth: one function a definition, each with its source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from iodaemon.core.job import Job


def makespan_s(jobs: Iterable[Job]) -> float:
    """Last end minus first submit, s; 0 for no jobs. Only finished jobs count."""
    ended = [job for job in jobs if job.ended_s is not None]
    if not ended:
        return 0.0
    return max(job.ended_s or 0.0 for job in ended) - min(job.submitted_s for job in ended)


def turnaround_s(job: Job) -> float | None:
    """End minus submit, s; None while the job is not finished."""
    return None if job.ended_s is None else job.ended_s - job.submitted_s


def mean_turnaround_s(jobs: Iterable[Job]) -> float:
    """Mean of end minus submit over the finished jobs, s; 0 for none."""
    return mean([t for job in jobs if (t := turnaround_s(job)) is not None])


def stretch(turnaround: float, alone_s: float) -> float:
    """Turnaround / time alone on the idle machine, at least 1 in theory.

    Args:
        turnaround: s.
        alone_s: s, above 0; measured or computed alone, never the observed run time.
    """
    return turnaround / alone_s


def lv_throughput_per_s(job_count: int, workload_s: float) -> float:
    """N / T_workload, jobs/s. Source: Lv et al. 2014, section 4.1, eq. 3."""
    return job_count / workload_s


def lv_slowdown(alone_s: Sequence[float], shared_s: Sequence[float]) -> float:
    """Sum over jobs of T_alone / T_shared; higher is better. Source: Lv et al. 2014, eq. 4.

    Args:
        alone_s: run time of each job alone, s.
        shared_s: run time of the same jobs among the others, s, above 0, same order.
    """
    return sum(alone / shared for alone, shared in zip(alone_s, shared_s, strict=True))


def lv_average_runtime_s(run_times_s: Sequence[float]) -> float:
    """Mean of the jobs' start-to-end times, s. Source: Lv et al. 2014, eq. 5."""
    return mean(run_times_s)


def jain_index(values: Sequence[float]) -> float:
    """Fairness of a distribution: 1 when all are equal, 1/n when one has all.

    Source: Jain, Chiu, Hawe, DEC-TR-301, 1984. An empty or all-zero distribution is fair (1).
    """
    squares = sum(value * value for value in values)
    if squares == 0.0:
        return 1.0
    total = sum(values)
    return total * total / (len(values) * squares)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios, all above 0; 1 for none. Source: Carretero et al. 2020, footnote 6."""
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else 1.0


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 for no values."""
    return sum(values) / len(values) if values else 0.0
