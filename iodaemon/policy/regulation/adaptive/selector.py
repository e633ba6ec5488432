"""Who stands still so that a limit holds, and who comes back first.

1. For the memory: whoever started first runs to its end. To load a working set again costs more
   than anybody gains by taking turns, and whoever started last has loaded least.
2. For a device: whoever puts most on it stands still first, because that relieves the most for the
   fewest jobs; among those that put as much on it whoever started last.
3. Users take turns: the first job of each in that order goes before the second of any, so that to
   stand still is shared by users and not by jobs.
4. Nobody is stopped who asked not to be, who is protected by the controller, whose I/O is unknown,
   or who has run for less than a timeslice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from iodaemon.core.job import Job, JobId, JobKind
from iodaemon.core.view import View
from iodaemon.policy.regulation.adaptive.contender import MEMORY

_A_SLICE = 0.9
"""Of a timeslice: timers being what they are."""


class RunOrder:
    """The order in which jobs keep running at each resource; asked within one decision."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._heaviness: dict[JobKind, int] = {}

    def in_order(self, resource: str, jobs: Iterable[Job]) -> list[Job]:
        """The jobs, whoever is to run on first."""
        if resource == MEMORY:
            return _in_turns(sorted(jobs, key=_arrival))
        weighed = sorted(
            jobs, key=lambda job: (self._weight(self._view.kind(job.id)), *_arrival(job))
        )
        return _in_turns(weighed)

    def may_stop(self, job: Job, timeslice_s: float) -> bool:
        """Whether the job may be stopped now."""
        view = self._view
        if job.spec.no_suspend or job.is_immune(view.now_s) or view.bandwidth(job.id) is None:
            return False
        return job.run_s_at(view.now_s) >= _A_SLICE * timeslice_s

    def _weight(self, kind: JobKind) -> int:
        """Bytes/s of a job of this kind in the mean, as a power of two: less is no difference."""
        if not self._heaviness:
            self._weigh()
        return self._heaviness.get(kind, 0)

    def _weigh(self) -> None:
        moved: dict[JobKind, float] = {}
        ran_s: dict[JobKind, float] = {}
        for job in self._view.live:
            kind, counters = self._view.kind(job.id), self._view.counters(job.id)
            if counters is not None:
                moved[kind] = moved.get(kind, 0.0) + (counters.moved_bytes or 0)
                ran_s[kind] = ran_s.get(kind, 0.0) + job.run_s_at(self._view.now_s)
        self._heaviness = {
            kind: round(math.log2(max(1.0, size / max(1.0, ran_s[kind]))))
            for kind, size in moved.items()
        }


def _arrival(job: Job) -> tuple[float, int]:
    return job.started_s or 0.0, job.id


def _in_turns(jobs: Sequence[Job]) -> list[Job]:
    """One job of each user, in the order in which they come, then another one of each."""
    places: Counter[int] = Counter()
    turns: dict[JobId, int] = {}
    for job in jobs:
        turns[job.id] = places[job.uid]
        places[job.uid] += 1
    return sorted(jobs, key=lambda job: turns[job.id])
