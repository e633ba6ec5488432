"""What the daemon knows of jobs' I/O from earlier runs, and how it comes to know it again.

The journal's finished jobs are the only record of what was learned: at a start the newest of them
are looked through at once, the rest in the background, from the newest to the oldest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from iodaemon.core.forecast import Outlook, Recollection, Trace
from iodaemon.core.job import Job
from iodaemon.core.similarity import Key
from iodaemon.daemon.journal.record import Batch, Forgotten, Restored
from iodaemon.daemon.journal.store import MOST_TRACES
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import JournalError

log = logging.getLogger(__name__)

MOST_PAST: Final = 100_000
"""Finished jobs that are looked through after a start; older ones have faded, or were followed."""
_PAGE: Final = 500
_AT_ONCE: Final = 50
"""Jobs learned from between two looks at what else there is to do: 2 ms."""
_PAUSE_S: Final = 0.02
"""Between pages, so that the past takes less than half of a CPU."""

Identity = tuple[int, str, str]


class Knowledge:
    """The recollection, and what of it is durable by itself: imported runs, forgotten keys."""

    def __init__(self) -> None:
        self.recollection = Recollection()
        self._imported_s: dict[Identity, float] = {}
        self._cursor: tuple[float, int] | None = None
        self._now_s = 0.0

    # -- at a start ----------------------------------------------------------------------------

    def recall(self, restored: Restored, now_s: float) -> None:
        """Know again what was imported and forgotten, and what the newest jobs taught.

        No job ended in the future: what the next ones teach would count for nothing until then.
        """
        self._now_s = now_s
        for each in restored.forgotten:
            self.recollection.forget(each.key, each.at_s)
        for trace in restored.traces:
            self._take(trace)
        finished = sorted(
            ((job.ended_s, job.id, job) for job in restored.jobs if job.ended_s is not None),
            reverse=True,
        )
        for ended_s, job_id, job in finished:
            self.recollection.learn(self._in_the_past(job))
            self._cursor = (ended_s, job_id)

    async def learn_the_past(self, journal: Journal, outlook: Outlook) -> int:
        """Look through the finished jobs before those of ``recall``; how many there were.

        What is damaged there ends it with a line in the log: hints are no reason to stop.
        """
        seen = 0
        while self._cursor is not None and seen < MOST_PAST:
            try:
                page = await asyncio.to_thread(journal.list_finished, _PAGE, after=self._cursor)
            except JournalError as error:
                log.warning("event=past_unread problem=%s", error)
                break
            for place, job in enumerate(page):
                if place % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
                outlook.learn(self._in_the_past(job))
            seen += len(page)
            last = page[-1] if len(page) == _PAGE else None
            self._cursor = None if last is None or last.ended_s is None else (last.ended_s, last.id)
            await asyncio.sleep(_PAUSE_S)
        return seen

    def _in_the_past(self, job: Job) -> Job:
        if job.ended_s is None or job.ended_s <= self._now_s:
            return job
        return msgspec.structs.replace(job, ended_s=self._now_s)

    # -- while it runs -------------------------------------------------------------------------

    async def take(self, traces: Sequence[Trace], journal: Journal, outlook: Outlook) -> int:
        """Learn of runs elsewhere, once that is durable; how many were not known before.

        Raises:
            JournalError: it cannot be made durable now; nothing was learned.
        """
        new = list({_identity(t): t for t in traces if not self._is_known(t)}.values())
        await journal.commit(Batch(traces=tuple(new)))
        for trace in new:
            outlook.renew(self._take(trace))
        return len(new)

    async def forget(
        self, keys: Sequence[Key], at_s: float, journal: Journal, outlook: Outlook
    ) -> list[Key]:
        """Let what runs until then taught of these keys count no more; those that were known.

        Of the others nothing is written: there is no end of keys that nobody has.

        Raises:
            JournalError: it cannot be made durable now; nothing was forgotten.
        """
        found = [Forgotten(key=key, at_s=at_s) for key in keys if self.recollection.knows(key)]
        await journal.commit(Batch(forgotten=tuple(found)))
        known = [each.key for each in found if self.recollection.forget(each.key, at_s)]
        outlook.renew(known)
        return known

    def _take(self, trace: Trace) -> tuple[Key, ...]:
        identity = _identity(trace)
        self._imported_s.pop(identity, None)
        self._imported_s[identity] = trace.imported_s
        if len(self._imported_s) > MOST_TRACES:
            del self._imported_s[next(iter(self._imported_s))]
        return self.recollection.take(trace)

    def _is_known(self, trace: Trace) -> bool:
        """It was imported before, and nothing of it was forgotten since."""
        imported_s = self._imported_s.get(_identity(trace))
        if imported_s is None:
            return False
        return not any(self.recollection.is_forgotten(key, imported_s) for key in trace.keys)


def _identity(trace: Trace) -> Identity:
    return (trace.uid, trace.name, trace.log)
