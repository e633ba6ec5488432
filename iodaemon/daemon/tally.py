"""Totals since the daemon's start that the state does not hold: fed by each plan, read at a scrape.

The state knows what is; only the steps say how often and for how long. Prometheus takes a restart
of a total in its stride, so nothing here is durable.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Final, get_args

from iodaemon.core.decision import Decision, Plan, Transition
from iodaemon.core.job import FINAL, SUSPENDED, Job, JobId, Reason

BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the duration histograms: from a step with nothing to do to a stuck disk."""


class Durations:
    """How often something took how long: a histogram, and the sum."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.sum_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._begun_s: float | None = None

    def begin(self) -> None:
        """It begins now; if it is under way already, that goes on."""
        if self._begun_s is None:
            self._begun_s = self._clock()

    def end(self) -> float | None:
        """It is over: how long it took; None, and not counted, if it never began."""
        if self._begun_s is None:
            return None
        took_s = self._clock() - self._begun_s
        self.add(took_s)
        self._begun_s = None
        return took_s

    def add(self, duration_s: float) -> None:
        """Count one that took so long."""
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    def cumulative(self) -> list[tuple[str, float]]:
        """Per bound how many took at most that long; the last, ``+Inf``, is all of them."""
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class Tally:
    """Counts what plans say.

    Invariant: no total ever falls, whatever order the steps' times are in.

    Attributes:
        decisions: by kind, in lower case; every kind is there.
        finished: ended jobs by end state; every end state is there.
        suspensions: steps into a suspended state, by the reason's code.
        journal_failures: batches that the disk did not take.
        step: the controller's steps.
    """

    def __init__(self, jobs: Iterable[Job], now_s: float) -> None:
        """Begin now, with these jobs as they are."""
        kinds = (kind.__name__.lower() for kind in get_args(Decision))
        self.decisions: Counter[str] = Counter(dict.fromkeys(kinds, 0))
        self.finished: Counter[str] = Counter(dict.fromkeys(sorted(map(str, FINAL)), 0))
        self.suspensions: Counter[str] = Counter()
        self.journal_failures = 0
        self.step = Durations()
        self._suspended_s: defaultdict[str, float] = defaultdict(float)
        self._standing: dict[JobId, tuple[str, float]] = {
            job.id: (_code(job.reason), now_s) for job in jobs if job.state in SUSPENDED
        }

    def take(self, plan: Plan) -> None:
        """Count what this step decided and which steps jobs made in it."""
        self.decisions.update(type(decision).__name__.lower() for decision in plan.decisions)
        for step in plan.transitions:
            self._take_step(step)

    def suspended_s(self, now_s: float) -> Mapping[str, float]:
        """Seconds that jobs stood still, by the reason's code; those that still do until now."""
        for job_id in list(self._standing):
            self._book(job_id, now_s)
        return self._suspended_s

    def _take_step(self, step: Transition) -> None:
        self._book(step.job_id, step.at_s)
        self._standing.pop(step.job_id, None)
        if step.after in SUSPENDED:
            code = _code(step.reason)
            self.suspensions[code] += 1
            self._suspended_s[code] += 0.0
            self._standing[step.job_id] = (code, step.at_s)
        elif step.after.is_final:
            self.finished[str(step.after)] += 1

    def _book(self, job_id: JobId, until_s: float) -> None:
        """Add what is not yet counted; an end told after a scrape may lie before that scrape."""
        if job_id in self._standing:
            code, since_s = self._standing[job_id]
            self._suspended_s[code] += max(0.0, until_s - since_s)
            self._standing[job_id] = (code, max(until_s, since_s))


def _code(reason: Reason | None) -> str:
    return "Unknown" if reason is None else reason.code
