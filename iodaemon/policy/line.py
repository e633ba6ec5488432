"""The queue by arrival, one column for each thing that is looked at, carried from turn to turn."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import attrgetter

from iodaemon.core.job import Job

Intensity = Callable[[Job], float | None]
"""What is known of a job's I/O intensity; None: nothing."""

_BY_ARRIVAL = attrgetter("queued_s")


class Line:
    """The queue by arrival; who starts leaves it.

    Attributes:
        jobs: ordered by arrival, equal ones as they came in.
        arrivals_s: when each came, rising.
        cpus: slots that each asks for.
        walltimes_s: infinite where there is none.
        intensities: None where nothing is known.
        known: those that are known, rising.
    """

    __slots__ = ("arrivals_s", "cpus", "intensities", "jobs", "known", "walltimes_s")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.arrivals_s: list[float] = []
        self.cpus: list[int] = []
        self.walltimes_s: list[float] = []
        self.intensities: list[float | None] = []
        self.known: list[float] = []

    def copy(self) -> Line:
        """The same line, to be changed."""
        other = Line()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name).copy())
        return other

    def append(self, job: Job, intensity: float | None) -> None:
        """A job that came no earlier than the last."""
        self.jobs.append(job)
        self.arrivals_s.append(job.queued_s)
        self.cpus.append(job.spec.cpus)
        walltime_s = job.spec.walltime_s
        self.walltimes_s.append(math.inf if walltime_s is None else walltime_s)
        self.intensities.append(intensity)
        if intensity is not None:
            insort(self.known, intensity)

    def remove(self, place: int) -> None:
        """The job at this place has left."""
        intensity = self.intensities[place]
        if intensity is not None:
            del self.known[bisect_left(self.known, intensity)]
        del self.jobs[place], self.arrivals_s[place], self.cpus[place]
        del self.walltimes_s[place], self.intensities[place]

    def only(self, places: list[int]) -> Line:
        """The line of the jobs at these places, which rise."""
        other = Line()
        for name in ("jobs", "arrivals_s", "cpus", "walltimes_s", "intensities"):
            column = getattr(self, name)
            setattr(other, name, [column[place] for place in places])
        other.known = sorted(x for x in other.intensities if x is not None)
        return other

    def place_of(self, job: Job) -> int:
        """Where the job, which is in it, stands."""
        place = bisect_left(self.arrivals_s, job.queued_s)
        while self.jobs[place].id != job.id:
            place += 1
        return place


def line_of(jobs: Iterable[Job], intensity_of: Intensity) -> Line:
    """The line of jobs in queue order."""
    line = Line()
    for job in sorted(jobs, key=_BY_ARRIVAL):
        line.append(job, intensity_of(job))
    return line


def brought_forward(line: Line, jobs: list[Job], intensity_of: Intensity) -> Line:
    """The line of these jobs, by way of an earlier one; the very same where nothing changed.

    Args:
        line: of before; left as it is.
        jobs: in queue order.
        intensity_of: gives what it gave when the line was made.
    """
    count = len(line.jobs)
    if jobs[:count] != line.jobs:
        return line_of(jobs, intensity_of)
    new = jobs[count:]
    if not new:
        return line
    arrivals_s = [*line.arrivals_s[-1:], *(job.queued_s for job in new)]
    if any(late < early for early, late in pairwise(arrivals_s)):
        return line_of(jobs, intensity_of)
    longer = line.copy()
    for job in new:
        longer.append(job, intensity_of(job))
    return longer
