"""Wall time. The wall clock may be wrong or set: no job lasts longer for that, nothing goes sooner.

The journal has its jobs' times and the anchor that they are counted from. Where the next daemon of
the same boot reads another one, the clock was set meanwhile, and the jobs' times are set likewise.

What is kept for a time is kept while that time provably passes, by CLOCK_BOOTTIME from one look of
a daemon to the next within one boot. A record may go once its time is before all that the daemon's
clock showed in the last ``retain`` (docs/design.md, State and journal).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from iodaemon.core.backend import Timer
from iodaemon.core.decision import Lesson
from iodaemon.core.job import Job, JobId
from iodaemon.core.lifecycle import shifted
from iodaemon.daemon.journal.record import Batch, Known, Passed, Reading, Restored, Span
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import JournalError
from iodaemon.supervisor.ledger import read_boot_id

log = logging.getLogger(__name__)

STEP_S: Final = 1.0
"""Two readings differ by less without anybody having set the clock."""
SPAN_S: Final = 3600.0
"""How long a span is at least, and"""
SPANS: Final = 1000
"""how many there are at most in what is kept for longest."""


class WallTimeline:
    """The event loop's monotonic clock, shifted to the wall clock's reading at the start.

    ``anchor_s`` is that shift; two daemons of one boot differ in it by how the wall clock was set.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.anchor_s = time.time() - loop.time()

    @property
    def now_s(self) -> float:
        """Seconds since 1970, as if nobody had set the clock since the start."""
        return self._loop.time() + self.anchor_s

    def call_at(self, time_s: float, call: Callable[[], None]) -> Timer:
        """Make the call in the event loop at that time."""
        return self._loop.call_at(time_s - self.anchor_s, call)


# -- time that has passed ------------------------------------------------------------------------


def read_clocks(now_s: float) -> Reading:
    """What the daemon's clock shows, beside the clock that nobody sets."""
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Reading(at_s=now_s, boot_id=read_boot_id(), uptime_s=uptime_s)


def count_on(passed: Passed | None, reading: Reading, retain_s: float) -> Passed:
    """What has passed by this reading, and what the clock showed, for as long as records are kept.

    ``passed`` is what had passed by the reading before; None: nothing is known.
    """
    if passed is None:
        return Passed(last=reading, spans=(Span(until_s=0.0, least_s=reading.at_s),))
    last = passed.last
    is_same_boot = last.boot_id == reading.boot_id
    more_s = max(0.0, reading.uptime_s - last.uptime_s) if is_same_boot else 0.0
    *spans, newest = passed.spans
    # Records have the time of the daemon before or, where it counted them, of this one, which gives
    # a job that ended while none ran the time at which it did.
    least_s = min(last.at_s, reading.at_s - more_s)
    span = Span(until_s=newest.until_s + more_s, least_s=least_s)
    if spans and newest.until_s - spans[-1].until_s < max(SPAN_S, retain_s / SPANS):
        span = msgspec.structs.replace(span, least_s=min(span.least_s, newest.least_s))
    else:
        spans.append(newest)
    spans.append(span)
    over = sum(each.until_s <= span.until_s - retain_s for each in spans)
    return Passed(last=reading, spans=tuple(spans[max(0, over - 1) :]))


def expired_before_s(passed: Passed, retain_s: float) -> float:
    """Records with a time before this one are older than that.

    It is minus infinity until so much time has passed.
    """
    since_s = passed.spans[-1].until_s - retain_s
    if passed.spans[0].until_s > since_s:
        return -math.inf
    shown = (span.least_s for span in passed.spans if span.until_s > since_s)
    return min(shown, default=passed.last.at_s)


# -- a daemon starts -----------------------------------------------------------------------------


def keep_time(
    journal: Journal, restored: Restored, anchor_s: float, reading: Reading, *, same_boot: bool
) -> Restored:
    """What was restored, with the times of lessons and unfinished jobs on the present clock.

    In another boot only what ended jobs keep for a time is as old as when it was last looked at.
    It is durable on return, all of it or nothing.

    Raises:
        JournalError: it cannot be made so.
    """
    before_s = restored.anchor_s if same_boot else None
    step_s = 0.0 if before_s is None else anchor_s - before_s
    if before_s is not None and abs(step_s) < STEP_S:
        return restored
    passed, lessons, away_s = restored.passed, restored.lessons, None
    if step_s:
        log.warning("event=clock_was_set by_s=%.1f", step_s)
        lessons = tuple((kind, _moved(lesson, step_s)) for kind, lesson in lessons)
    elif not same_boot and passed is not None:
        away_s = reading.at_s - passed.last.at_s
        passed = count_on(passed, reading, math.inf)
    moved: dict[JobId, Job] = {}
    for job in filter(_is_timed, restored.jobs):
        by_s = step_s if away_s is None else _kept_on_s(job, away_s, reading.at_s)
        if by_s:
            moved[job.id] = shifted(job, by_s)
    learned = dict(lessons) if step_s else {}
    jobs = tuple(moved.get(job.id, job) for job in restored.jobs)
    restored = msgspec.structs.replace(restored, jobs=jobs, lessons=lessons, passed=passed)
    errors: list[JournalError | None] = []
    meta = {"anchor_s": anchor_s, "passed": passed}
    batch = Batch(jobs=tuple(moved.values()), lessons=learned, meta=meta)
    journal.write(batch, errors.append)
    journal.flush()
    for error in filter(None, errors):
        raise error
    return restored


def not_after(lessons: Iterable[Known], now_s: float) -> tuple[Known, ...]:
    """The lessons, none of them of the future: between two boots the clock may be set as well."""
    return tuple((kind, _moved(each, min(0.0, now_s - each.at_s))) for kind, each in lessons)


def _moved(lesson: Lesson, step_s: float) -> Lesson:
    return msgspec.structs.replace(lesson, at_s=lesson.at_s + step_s)


def _is_timed(job: Job) -> bool:
    """Whether something is to happen to it after a time."""
    return not job.state.is_final or job.scratch_kept_since_s is not None


def _kept_on_s(job: Job, away_s: float, now_s: float) -> float:
    """By how much the time moves from which an ended job's result is kept; never past now."""
    since_s = job.scratch_kept_since_s
    return 0.0 if since_s is None or not job.state.is_final else min(away_s, now_s - since_s)
