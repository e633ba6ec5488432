"""Totals since the daemon's start that the state does not hold: fed by each plan, read at a scrape.

The state knows what is; only the steps say how often and for how long. Prometheus takes a restart
of a total in its stride, so nothing here is durable.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Final, get_args

from iodaemon.core.decision import Decision, Plan
from iodaemon.core.hindsight import hindsight
from iodaemon.core.job import FINAL, SUSPENDED, Job, JobId, JobState, Reason
from iodaemon.core.prediction import UNKNOWN

RATIO_BOUNDS: Final = (0.1, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 10.0)
"""Of what was expected over what came: 0.8 to 1.25 is as good as right, 10 as good as wrong."""
SOURCES: Final = ("declared", "learned", "imported")
"""Of what was expected before a start."""
RULE_KINDS: Final = ("admission", "allocation", "placement", "regulation")
"""Of rules that may fail."""
STANDSTILLS: Final = ("Contention", "IoBound", "IoTurn", "Suspended")
"""Codes of the reasons for which jobs are suspended. A user's own rule may have others."""
BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the duration histograms: from a step with nothing to do to a stuck disk."""


class Histogram:
    """How many values were at most so large, and their sum.

    Args:
        bounds: ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Count one more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Per bound how many were at most that large; the last, ``+Inf``, is all of them."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class Durations:
    """How often something took how long, measured by a clock.

    Attributes:
        histogram: in s.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.histogram = Histogram(BOUNDS_S)
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
        self.histogram.add(duration_s)

    @property
    def sum_s(self) -> float:
        """Of all of them."""
        return self.histogram.sum

    def cumulative(self) -> list[tuple[str, float]]:
        """Per bound how many took at most that long; the last, ``+Inf``, is all of them."""
        return self.histogram.cumulative()


class Spells:
    """How often jobs stood still and for how long, by the code of the reason.

    Invariant: no total ever falls, whatever order the times are in.

    Attributes:
        counts: how often one began; the codes of the shipped rules and of people are there.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(STANDSTILLS, 0))
        self._seconds: defaultdict[str, float] = defaultdict(float, dict.fromkeys(STANDSTILLS, 0.0))
        self._standing: dict[JobId, tuple[str, float]] = {}

    def stands_already(self, job_id: JobId, code: str, now_s: float) -> None:
        """One that began before anybody counted."""
        self._standing[job_id] = (code, now_s)

    def begin(self, job_id: JobId, code: str, at_s: float) -> None:
        """The job stands still from now on."""
        self.counts[code] += 1
        self._seconds[code] += 0.0
        self._standing[job_id] = (code, at_s)

    def end(self, job_id: JobId, at_s: float) -> None:
        """It goes on, if it stood still."""
        self._book(job_id, at_s)
        self._standing.pop(job_id, None)

    def seconds(self, now_s: float) -> Mapping[str, float]:
        """Those that still stand are counted until now."""
        for job_id in list(self._standing):
            self._book(job_id, now_s)
        return self._seconds

    def _book(self, job_id: JobId, until_s: float) -> None:
        """Add what is not yet counted; an end told after a scrape may lie before that scrape."""
        if job_id in self._standing:
            code, since_s = self._standing[job_id]
            self._seconds[code] += max(0.0, until_s - since_s)
            self._standing[job_id] = (code, max(until_s, since_s))


class Tally:
    """Counts what plans say.

    Attributes:
        decisions: by kind, in lower case; every kind is there.
        finished: ended jobs by end state; every end state is there.
        suspended: what jobs stood still.
        shadow: what they would have stood still for the regulation, had it been on.
        expectations: started jobs, by where it was known from what their I/O would be.
        hindsight: of ended jobs, what was expected over what they moved, by the same.
        trials: what was tried of how many jobs should contend, by resource and verdict.
        rule_faults: rules that were set aside, by kind; every kind is there.
        journal_failures: batches that the disk did not take.
        step: the controller's steps.
    """

    def __init__(self, jobs: Iterable[Job], now_s: float) -> None:
        """Begin now, with these jobs as they are."""
        kinds = (kind.__name__.lower() for kind in get_args(Decision))
        self.decisions: Counter[str] = Counter(dict.fromkeys(kinds, 0))
        self.finished: Counter[str] = Counter(dict.fromkeys(sorted(map(str, FINAL)), 0))
        self.suspended = Spells()
        self.shadow = Spells()
        self.expectations: Counter[str] = Counter(dict.fromkeys((*SOURCES, "unknown"), 0))
        self.hindsight = {source: Histogram(RATIO_BOUNDS) for source in SOURCES}
        self.trials: Counter[tuple[str, str]] = Counter()
        self.rule_faults: Counter[str] = Counter(dict.fromkeys(RULE_KINDS, 0))
        self.journal_failures = 0
        self.step = Durations()
        for job in jobs:
            if job.state in SUSPENDED:
                self.suspended.stands_already(job.id, _code(job.reason), now_s)

    def take(self, plan: Plan, jobs: Mapping[JobId, Job] = MappingProxyType({})) -> None:
        """Count what this step decided and which steps jobs made in it.

        Args:
            plan: of the step.
            jobs: as they are after it.
        """
        self.rule_faults.update(fault.kind for fault in plan.faults)
        self.trials.update((t.resource, t.verdict) for t in plan.trials if not t.is_shadow)
        self.decisions.update(type(decision).__name__.lower() for decision in plan.decisions)
        for step in plan.transitions:
            self.suspended.end(step.job_id, step.at_s)
            if step.after in SUSPENDED:
                self.suspended.begin(step.job_id, _code(step.reason), step.at_s)
            elif step.after.is_final:
                self.finished[str(step.after)] += 1
                self._look_back(jobs.get(step.job_id))
            elif step.after is JobState.STARTING and (job := jobs.get(step.job_id)) is not None:
                self.expectations[(job.expected or UNKNOWN).source] += 1
        for shadow in plan.shadow:
            self.shadow.end(shadow.job_id, shadow.at_s)
            if shadow.verdict == "suspend":
                self.shadow.begin(shadow.job_id, _code(shadow.reason), shadow.at_s)

    def _look_back(self, job: Job | None) -> None:
        ratio = None if job is None else hindsight(job)
        if job is not None and job.expected is not None and ratio is not None:
            self.hindsight[job.expected.source].add(ratio)


def _code(reason: Reason | None) -> str:
    return "Unknown" if reason is None else reason.code
