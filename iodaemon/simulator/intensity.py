"""I/O intensity of what runs (S) and of all that is there (W) over time, and how far apart.

Source: EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025): the intensity of a job is the part of its
time in I/O times its bandwidth then; S is the mean over the running jobs, W over those that run or
wait. Both change only when a job comes, starts or ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from iodaemon.core.measure import mean


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """A job's time in the system.

    Attributes:
        submit_s: when it came.
        start_s: when it started, not before that.
        end_s: when it ended, not before that.
        intensity_bytes_per_s: as it really is, whatever was known of it.
        weight: how much it counts in a mean.
    """

    submit_s: float
    start_s: float
    end_s: float
    intensity_bytes_per_s: float
    weight: float = 1.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What holds from a time until the next moment.

    Attributes:
        at_s: since when.
        system_bytes_per_s: S; 0 when nothing runs.
        workload_bytes_per_s: W; 0 when nothing is there.
        running: how many jobs run.
    """

    at_s: float
    system_bytes_per_s: float
    workload_bytes_per_s: float
    running: int


class _Mean:
    """A weighted mean that jobs enter and leave. Invariant: nobody is in it, its sums are 0."""

    def __init__(self) -> None:
        self.count = 0
        self._weight = 0.0
        self._sum = 0.0

    def add(self, stay: Stay, sign: int) -> None:
        """The job comes (1) or goes (-1)."""
        self.count += sign
        self._weight += sign * stay.weight
        self._sum += sign * stay.weight * stay.intensity_bytes_per_s
        if self.count == 0:  # what rounding has left
            self._weight = self._sum = 0.0

    @property
    def value(self) -> float:
        """The mean; 0 for none."""
        return max(0.0, self._sum / self._weight) if self.count else 0.0


def intensity_course(stays: Iterable[Stay]) -> tuple[Moment, ...]:
    """S and W over time, one moment each time that a job comes, starts or ends."""
    changes: dict[float, list[tuple[int, int, Stay]]] = {}
    for stay in stays:
        changes.setdefault(stay.submit_s, []).append((0, 1, stay))
        changes.setdefault(stay.start_s, []).append((1, 0, stay))
        changes.setdefault(stay.end_s, []).append((-1, -1, stay))
    system, workload = _Mean(), _Mean()
    course = []
    for at_s in sorted(changes):
        for in_system, in_workload, stay in changes[at_s]:
            if in_system:
                system.add(stay, in_system)
            if in_workload:
                workload.add(stay, in_workload)
        course.append(
            Moment(
                at_s=at_s,
                system_bytes_per_s=system.value,
                workload_bytes_per_s=workload.value,
                running=system.count,
            )
        )
    return tuple(course)


def mean_distance_bytes_per_s(course: Sequence[Moment]) -> float:
    """The mean of |S - W| over the time in which at least one job runs, bytes/s; 0 for none.

    Source: EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025), "mean distance".
    """
    total = lasted_s = 0.0
    for moment, after in pairwise(course):
        if moment.running:
            span_s = after.at_s - moment.at_s
            total += abs(moment.system_bytes_per_s - moment.workload_bytes_per_s) * span_s
            lasted_s += span_s
    return total / lasted_s if lasted_s else 0.0


def mean_distance_of_moments(course: Iterable[Moment]) -> float:
    """The mean of |S - W| over the moments at which a job runs, however long each lasts, bytes/s.

    The slides do not say of what "average distance" is an average.
    """
    distances = [
        abs(moment.system_bytes_per_s - moment.workload_bytes_per_s)
        for moment in course
        if moment.running
    ]
    return mean(distances)


def mean_running(course: Sequence[Moment]) -> float:
    """How many jobs run, on average over the time in which at least one does; 0 for none."""
    total = lasted_s = 0.0
    for moment, after in pairwise(course):
        if moment.running:
            total += moment.running * (after.at_s - moment.at_s)
            lasted_s += after.at_s - moment.at_s
    return total / lasted_s if lasted_s else 0.0


def in_bins(course: Sequence[Moment], count: int) -> tuple[Moment, ...]:
    """The same in so many bins of equal length: each the mean over its time, to be drawn.

    Args:
        course: at least two moments.
        count: at least 1; ``running`` is that at the end of a bin.
    """
    from_s, to_s = course[0].at_s, course[-1].at_s
    width_s = (to_s - from_s) / count
    sums = [[0.0, 0.0] for _ in range(count)]
    running = [0] * count
    for moment, after in pairwise(course):
        first = _bin(moment.at_s, from_s, width_s, count)
        last = _bin(after.at_s, from_s, width_s, count)
        for number in range(first, last + 1):
            begin_s = max(moment.at_s, from_s + number * width_s)
            end_s = min(after.at_s, from_s + (number + 1) * width_s)
            part = max(0.0, end_s - begin_s) / width_s if width_s else 0.0
            sums[number][0] += part * moment.system_bytes_per_s
            sums[number][1] += part * moment.workload_bytes_per_s
            running[number] = moment.running
    return tuple(
        Moment(
            at_s=from_s + (number + 0.5) * width_s,
            system_bytes_per_s=system,
            workload_bytes_per_s=workload,
            running=running[number],
        )
        for number, (system, workload) in enumerate(sums)
    )


def _bin(at_s: float, from_s: float, width_s: float, count: int) -> int:
    return min(count - 1, int((at_s - from_s) / width_s)) if width_s else 0
