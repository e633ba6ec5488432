"""What a job's I/O was in the end, and how far from that it was expected to be."""

from __future__ import annotations

import math
from typing import Final

from iodaemon.core.job import Job, JobState
from iodaemon.core.prediction import Prediction

FLOOR_BYTES_PER_S: Final = 1000.0
"""Rates far below this are all alike to any storage: added to both sides of a ratio, so that
nothing against nothing is 1, and nothing against 1 kB/s is no infinity."""
LEAST_RUN_S: Final = 0.1
"""Of a shorter run the start of its program is the most that there is."""
TELLING: Final = frozenset({JobState.COMPLETED, JobState.TIMEOUT})
"""Ends of runs that did what they were to do. One that failed or was cancelled may have ended
before its I/O; one that came to its walltime moved what it moves, for as long as it was let."""


def moved_bytes_per_s(job: Job) -> float | None:
    """What an ended job moved as a mean over the time it ran; None: not known, or hardly ran."""
    total_bytes = job.io.total_bytes
    if total_bytes is None or job.run_s < LEAST_RUN_S:
        return None
    return max(0, total_bytes) / job.run_s


def told_bytes_per_s(job: Job) -> float | None:
    """The same of a job whose end says what such jobs do; None: it says nothing."""
    return moved_bytes_per_s(job) if job.state in TELLING else None


def ratio(expected: Prediction, moved_rate: float) -> float:
    """The expected rate over the true one, bytes/s; 1: just so, 2: expected twice as much."""
    return (expected.rate_bytes_per_s + FLOOR_BYTES_PER_S) / (moved_rate + FLOOR_BYTES_PER_S)


def hindsight(job: Job) -> float | None:
    """How right the expectation of an ended job was, as ``ratio``; None: that cannot be said."""
    moved_rate = told_bytes_per_s(job)
    if moved_rate is None or job.expected is None or not job.expected.is_known:
        return None
    return ratio(job.expected, moved_rate)


def doublings(rate: float) -> float:
    """A rate in bytes/s on the scale on which rates are averaged: log2 above the floor."""
    return math.log2(rate + FLOOR_BYTES_PER_S)


def from_doublings(value: float) -> float:
    """The rate again, bytes/s, at least 0."""
    return max(0.0, float(2.0**value) - FLOOR_BYTES_PER_S)
