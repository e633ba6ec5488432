"""The wall clock may be set between two daemons of one boot: no job lasts longer for that, or less.

A daemon counts on from the wall clock's reading at its start, by the monotonic clock; the journal
has its jobs' times and that reading less the monotonic clock's (the anchor). Where the next daemon
reads another difference, the clock was set meanwhile, and the jobs' times are set likewise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from iodaemon.core.decision import Lesson
from iodaemon.core.job import Job
from iodaemon.core.life import shifted
from iodaemon.daemon.batch import Batch, Restored
from iodaemon.daemon.journal import Journal
from iodaemon.daemon.lesson_book import Known
from iodaemon.errors import JournalError

log = logging.getLogger(__name__)

STEP_S: Final = 1.0
"""Two readings differ by less without anybody having set the clock."""


def keep_time(
    journal: Journal, restored: Restored, anchor_s: float, *, same_boot: bool
) -> Restored:
    """What was restored, with the times of lessons and unfinished jobs on the present clock.

    It is durable on return, all of it or nothing.

    Raises:
        JournalError: it cannot be made so.
    """
    before_s = restored.anchor_s if same_boot else None
    step_s = 0.0 if before_s is None else anchor_s - before_s
    if before_s is not None and abs(step_s) < STEP_S:
        return restored
    if step_s:
        log.warning("event=clock_was_set by_s=%.1f", step_s)
        jobs = tuple(shifted(j, step_s) if _is_timed(j) else j for j in restored.jobs)
        lessons = tuple((kind, _moved(lesson, step_s)) for kind, lesson in restored.lessons)
        restored = msgspec.structs.replace(restored, jobs=jobs, lessons=lessons)
    moved = tuple(job for job in restored.jobs if step_s and _is_timed(job))
    learned = dict(restored.lessons) if step_s else {}
    errors: list[JournalError | None] = []
    journal.write(Batch(jobs=moved, lessons=learned, anchor_s=anchor_s), errors.append)
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
