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


def wait_s(job: Job) -> float | None:
    """Start minus submit, s; None while it has not started. Of a requeued job: its last start."""
    return None if job.started_s is None else job.started_s - job.submitted_s


def mean_wait_s(jobs: Iterable[Job]) -> float:
    """Mean of start minus submit over the jobs that have started, s; 0 for none."""
    return mean([w for job in jobs if (w := wait_s(job)) is not None])


def stretch(turnaround: float, alone_s: float) -> float:
    """Turnaround / time alone on the idle machine, at least 1 in theory.

    Args:
        turnaround: s.
        alone_s: s, above 0; measured or computed alone, never the observed run time.
    """
    return turnaround / alone_s


def bounded_slowdown(turnaround: float, run_s: float, *, bound_s: float = 10.0) -> float:
    """max(1, turnaround / max(run, bound)): short jobs count as if they ran for the bound.

    Source: Feitelson, JSSPP 2001, Metrics for Parallel Job Scheduling and Their Convergence.

    Args:
        turnaround: wait and run time, s.
        run_s: from start to end, s; the time alone where contention is to be seen.
        bound_s: above 0.
    """
    return max(1.0, turnaround / max(run_s, bound_s))


def equilibrio_job_slowdown(run_s: float, alone_s: float) -> float:
    """How much longer a job takes than in isolation, as a part of that: 0 for no longer.

    Source: EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025), "job slowdown", printed in percent.

    Args:
        run_s: from its start to its end, s; its wait is no part of it.
        alone_s: the same alone on the machine, s, above 0.
    """
    return run_s / alone_s - 1.0


def equilibrio_io_slowdown(io_s: float, io_alone_s: float) -> float:
    """How much longer the I/O of a job takes than in isolation, as a part of that.

    Source: EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025), "I/O slowdown", printed in percent.

    Args:
        io_s: time that it spent in I/O, s.
        io_alone_s: the same alone on the machine, s, above 0.
    """
    return io_s / io_alone_s - 1.0


def equilibrio_utilisation(run_s: float, io_s: float) -> float:
    """The part (0 to 1) of a job's time that it spends on anything but I/O.

    Source: EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025), "utilization".

    Args:
        run_s: from its start to its end, s, above 0.
        io_s: time in I/O of that, s.
    """
    return (run_s - io_s) / run_s


def displacements(starts_s: Sequence[float]) -> tuple[int, ...]:
    """How many places each job starts away from its place in the order of arrival.

    Of jobs that start at one time the earlier one is first: nobody is displaced by that. Source:
    EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025), "displacement".

    Args:
        starts_s: when each job started, s, in the order of arrival.
    """
    order = sorted(range(len(starts_s)), key=lambda place: (starts_s[place], place))
    found = [0] * len(starts_s)
    for place, arrived in enumerate(order):
        found[arrived] = abs(place - arrived)
    return tuple(found)


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


def cohens_d(values: Sequence[float], base: Sequence[float]) -> float | None:
    """How far the means are apart: (mean - base's mean) / pooled standard deviation.

    Source: Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, equation 2.5.1.

    Returns:
        None where there is no deviation, or too few values for one.
    """
    count = len(values) + len(base) - 2
    if not values or not base or count < 1:
        return None
    means = mean(values), mean(base)
    squares = sum((x - means[0]) ** 2 for x in values) + sum((x - means[1]) ** 2 for x in base)
    if squares == 0.0:
        return None
    return (means[0] - means[1]) / math.sqrt(squares / count)


def standard_deviation(values: Sequence[float]) -> float:
    """Of these values as a sample; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios, all above 0; 1 for none. Source: Carretero et al. 2020, footnote 6."""
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else 1.0


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 for no values."""
    return sum(values) / len(values) if values else 0.0
