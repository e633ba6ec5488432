"""Totals that only the steps of the controller tell, from the daemon's start.

Nothing here is durable: ``rate()`` takes a restart of a total for what it is. Every series that is
known beforehand is there from the start, at 0, because ``rate()`` does not see how one began.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from iodaemon.core.decision import Plan
from iodaemon.core.forecast import hindsight
from iodaemon.core.job import FINAL, SUSPENDED, UNKNOWN, Job, JobId, JobState, Reason

log = logging.getLogger(__name__)

PREFIX: Final = "iodaemon_"
RATIO_BOUNDS: Final = (0.1, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 10.0)
"""Of what was expected over what came: 0.8 to 1.25 is as good as right, 10 as good as wrong."""
BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the durations: from a step with nothing to do to a stuck disk."""
SOURCES: Final = ("declared", "learned", "imported")
"""Of what was expected before a start."""
STANDSTILLS: Final = ("Contention", "IoBound", "IoTurn", "Suspended")
"""Codes of the reasons for which jobs are suspended. A user's own rule may have others."""
MOST_REASONS: Final = 32
"""More codes, of an administrator's own rule, are counted together as ``other``."""
SLOW_READINGS: Final = 3
"""So many readings in a row, each longer than a timeslice: no hiccup of a disk or of the CPU."""


class Spells:
    """How long jobs stood still, by the code of the reason.

    Invariant: no total ever falls, whatever order the times are in.
    """

    def __init__(self, seconds: Counter) -> None:
        self._seconds = seconds
        self._codes = set(STANDSTILLS)
        self._standing: dict[JobId, tuple[str, float]] = {}

    def begin(self, job_id: JobId, reason: Reason | None, at_s: float) -> None:
        """The job stands still from now on, for this reason."""
        code = "Unknown" if reason is None else reason.code
        if code not in self._codes and len(self._codes) >= MOST_REASONS:
            code = "other"
        self._codes.add(code)
        self._seconds.labels(code)
        self._standing[job_id] = (code, at_s)

    def end(self, job_id: JobId, at_s: float) -> None:
        """It goes on, if it stood still."""
        self._book(job_id, at_s)
        self._standing.pop(job_id, None)

    def count_until(self, now_s: float) -> None:
        """Count also what those have stood that still stand."""
        for job_id in self._standing:
            self._book(job_id, now_s)

    def _book(self, job_id: JobId, until_s: float) -> None:
        """Add what is not yet counted; an end told after a scrape may lie before that scrape."""
        if job_id in self._standing:
            code, since_s = self._standing[job_id]
            self._seconds.labels(code).inc(max(0.0, until_s - since_s))
            self._standing[job_id] = (code, max(until_s, since_s))


class Counts:
    """Counts what plans say.

    Attributes:
        registry: all of it, to be collected.
        step: what the controller's steps take.
        sampling: what readings of the counters take.
    """

    def __init__(self, jobs: Iterable[Job] = (), now_s: float = 0.0) -> None:
        """Begin now, with these jobs as they are."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # series that nothing reads
        self.registry = CollectorRegistry()
        self._finished = self._counter(
            "jobs_finished", "Ended jobs, by final state.", "state", sorted(map(str, FINAL))
        )
        suspended_s = self._counter(
            "suspended_seconds",
            "Time that jobs were suspended, summed over jobs, by reason code.",
            "reason",
            STANDSTILLS,
        )
        shadow_s = self._counter(
            "shadow_suspended_seconds",
            "Time that regulation in shadow would have suspended jobs, by reason code.",
            "reason",
            STANDSTILLS,
        )
        self._suspended, self._shadow = Spells(suspended_s), Spells(shadow_s)
        self._expectations = self._counter(
            "job_io_expectations",
            "Started jobs, by the source of their expected I/O.",
            "source",
            [*SOURCES, "unknown"],
        )
        self._hindsight = Histogram(
            f"{PREFIX}job_io_expected_ratio",
            "Expected over actual mean I/O rate of ended jobs, 1 kB/s added to both, by source.",
            ["source"],
            registry=self.registry,
            buckets=RATIO_BOUNDS,
        )
        for source in SOURCES:
            self._hindsight.labels(source)
        self.step = self._durations(
            "step_duration_seconds",
            "Time that the controller takes to decide on the events of one instant.",
        )
        self.sampling = self._durations(
            "sampling_duration_seconds", "Time from asking for a sample to receiving it."
        )
        for job in jobs:
            if job.state in SUSPENDED:
                self._suspended.begin(job.id, job.reason, now_s)

    def take(self, plan: Plan, jobs: Mapping[JobId, Job]) -> None:
        """Count what jobs did in this step.

        Args:
            plan: of the step.
            jobs: as they are after it.
        """
        for step in plan.transitions:
            self._suspended.end(step.job_id, step.at_s)
            if step.after in SUSPENDED:
                self._suspended.begin(step.job_id, step.reason, step.at_s)
            elif step.after.is_final:
                self._finished.labels(str(step.after)).inc()
                self._look_back(jobs.get(step.job_id))
            elif step.after is JobState.STARTING and (job := jobs.get(step.job_id)) is not None:
                self._expectations.labels((job.expected or UNKNOWN).source).inc()
        for shadow in plan.shadow:
            self._shadow.end(shadow.job_id, shadow.at_s)
            if shadow.verdict == "suspend":
                self._shadow.begin(shadow.job_id, shadow.reason, shadow.at_s)

    def count_until(self, now_s: float) -> None:
        """Count also the standstills that are not over."""
        self._suspended.count_until(now_s)
        self._shadow.count_until(now_s)

    def _look_back(self, job: Job | None) -> None:
        ratio = None if job is None else hindsight(job)
        if job is not None and job.expected is not None and ratio is not None:
            self._hindsight.labels(job.expected.source).observe(ratio)

    def _counter(self, name: str, text: str, label: str, known: Sequence[str]) -> Counter:
        counter = Counter(PREFIX + name, text, [label], registry=self.registry)
        for value in known:
            counter.labels(value)
        return counter

    def _durations(self, name: str, text: str) -> Histogram:
        return Histogram(PREFIX + name, text, registry=self.registry, buckets=BOUNDS_S)


class Pace:
    """Holds each reading's duration against the timeslice.

    A slow one is nobody's fault but the timeslice's: instants are skipped meanwhile, never queued
    up, and the regulation goes on with what it gets.

    Attributes:
        timeslice_s: that in force at the last reading's end; None before it.
        last_s: how long the last reading took; None before its end.
        problem: one line for people while sampling is too slow; else empty. It is logged once.
    """

    def __init__(
        self, durations: Histogram, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.timeslice_s: float | None = None
        self.last_s: float | None = None
        self.problem = ""
        self._durations = durations
        self._clock = clock
        self._begun_s: float | None = None
        self._slow = 0
        self._longest_s = 0.0
        self._warned = False

    def begin(self) -> None:
        """A reading is asked for; one that is still under way goes on."""
        if self._begun_s is None:
            self._begun_s = self._clock()

    def end(self, timeslice_s: float) -> None:
        """A reading is there; one is asked for every ``timeslice_s``."""
        if self._begun_s is None:
            return
        took_s, self._begun_s = self._clock() - self._begun_s, None
        self._durations.observe(took_s)
        self.timeslice_s, self.last_s = timeslice_s, took_s
        if took_s <= timeslice_s:
            self._slow, self._longest_s, self.problem = 0, 0.0, ""
            return
        self._slow += 1
        self._longest_s = max(self._longest_s, took_s)
        if self._slow < SLOW_READINGS:
            return
        self.problem = (
            f"reading the counters takes {self._longest_s:.2g} s, longer than the timeslice of "
            f'{timeslice_s:g} s; write timeslice = "{math.ceil(2.0 * self._longest_s)} s" under '
            "[regulation]"
        )
        if not self._warned:
            self._warned = True
            log.warning('event=sampling_too_slow text="%s"', self.problem)

    def report(self, skipped: int) -> dict[str, Any]:
        """For ``iod node``."""
        return {
            "timeslice_s": self.timeslice_s,
            "last_s": self.last_s,
            "skipped": skipped,
            "problem": self.problem,
        }
