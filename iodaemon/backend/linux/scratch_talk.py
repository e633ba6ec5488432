"""Have the keeper measure and remove jobs' directories on tier disks; post what it finds.

A disk that does not answer holds the keeper's helper, and with it one of the few places that each
disk has here: so no helpers pile up, and jobs on other disks are served as always.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from iodaemon import disk_trouble
from iodaemon.backend.linux.link import KeeperLink
from iodaemon.backend.linux.protocol import Message
from iodaemon.core import event as ev
from iodaemon.core.decision import Free
from iodaemon.core.job import JobId
from iodaemon.core.scratch import Share
from iodaemon.core.timeline import Timeline
from iodaemon.errors import BackendError

log = logging.getLogger(__name__)

_MOST_OF_A_DISK: Final = {"remove": 2, "measure": 1}
"""Helpers at one time."""
_SILENT_S: Final = 30.0
"""A helper that has not answered for so long never will while its disk does not answer."""
_FIRST_RETRY_S: Final = 5.0
_LAST_RETRY_S: Final = 600.0
"""Between attempts at what cannot be removed, twice as long each time."""
_LOOK_S: Final = 0.5
"""Between looks at a job that has ended and of which a process is left."""
_FIRST_MEASURE_S: Final = 1.0
_MEASURE_S: Final = 5.0
_REST: Final = 50
"""Times as long as measuring took, at least, until the next time: 2 % of a CPU."""


class ScratchTalk:
    """One task for each attempt that has directories.

    Attributes:
        ends_over: a job that has more in its space than it asked for is ended.
    """

    def __init__(
        self, link: KeeperLink, timeline: Timeline, post: Callable[[ev.Event], None]
    ) -> None:
        self._link = link
        self._timeline = timeline
        self._post = post
        self._tasks: dict[JobId, asyncio.Task[None]] = {}
        self._busy = Counter[tuple[str, str]]()
        self._freed = asyncio.Condition()
        self._asks = set[asyncio.Task[Message]]()
        self.ends_over = False

    def follow(self, job_id: JobId, attempt: int, shares: Iterable[Share]) -> None:
        """Measure the directories of an attempt that runs."""
        self._begin(job_id, self._measure(job_id, attempt, _disks_of(shares)))

    def free(self, free: Free) -> None:
        """Remove the directories of an attempt that has ended, however long it takes."""
        self._begin(free.job_id, self._remove(free, _disks_of(free.shares)))

    def close(self) -> None:
        """Ask no more."""
        for task in [*self._tasks.values(), *self._asks]:
            task.cancel()
        self._tasks.clear()

    def _begin(self, job_id: JobId, work: Coroutine[Any, Any, None]) -> None:
        if (before := self._tasks.pop(job_id, None)) is not None:
            before.cancel()
        task = self._tasks[job_id] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._done(job_id, done))

    def _done(self, job_id: JobId, task: asyncio.Task[None]) -> None:
        """A task that failed is a bug: the loop's exception handler stops the daemon."""
        if self._tasks.get(job_id) is task:
            del self._tasks[job_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "scratch task failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _measure(self, job_id: JobId, attempt: int, disks: list[str]) -> None:
        was_over, wait_s = False, _FIRST_MEASURE_S
        while True:
            await asyncio.sleep(wait_s)
            report = await self._ask("measure", job_id, attempt, disks, measure=True)
            wait_s = max(_MEASURE_S, _REST * report["took_s"])
            if report.get("state") == "held" and report["is_over"] != was_over:
                was_over = report["is_over"]
                event = ev.ScratchUsed(
                    at_s=self._timeline.now_s,
                    job_id=job_id,
                    attempt=attempt,
                    used_bytes=report["used_bytes"],
                    is_over=was_over,
                    ends=self.ends_over,
                    is_all=report["is_all"],
                )
                self._post(event)

    async def _remove(self, free: Free, disks: list[str]) -> None:
        job_id, attempt, retry_s = free.job_id, free.attempt, _FIRST_RETRY_S
        loop = asyncio.get_running_loop()
        while True:
            silent = loop.call_later(_SILENT_S, self._tell_silent, free, disks)
            try:
                report = await self._ask("remove", job_id, attempt, disks, free=free.is_wanted)
            finally:
                silent.cancel()
            at_s = self._timeline.now_s
            match report.get("state"):
                case "removed":
                    self._post(ev.ScratchRemoved(at_s=at_s, job_id=job_id, attempt=attempt))
                    return
                case "kept":
                    because = str(report["because"])
                    self._keep(free, because, is_result=report.get("is_result"))
                case "silent":
                    self._tell_silent(free, disks)
                case "unfinished":
                    continue
                case _:  # a process of the job is left, or the helper was killed
                    await asyncio.sleep(_LOOK_S)
                    continue
            await asyncio.sleep(retry_s)
            retry_s = min(2.0 * retry_s, _LAST_RETRY_S)

    def _tell_silent(self, free: Free, disks: list[str]) -> None:
        names = " and ".join(disks)
        self._keep(free, disk_trouble.sentence(names, disk_trouble.SILENT), is_result=None)

    def _keep(self, free: Free, problem: str, *, is_result: bool | None) -> None:
        event = ev.ScratchKept(
            at_s=self._timeline.now_s,
            job_id=free.job_id,
            attempt=free.attempt,
            problem=problem,
            is_result=is_result,
        )
        self._post(event)

    async def _ask(
        self, work: str, job_id: JobId, attempt: int, disks: list[str], **what: bool
    ) -> Message:
        """What the keeper reports, once there was a place on all of the disks.

        A place is held until the helper has ended, whoever still waits for it.
        """
        task = asyncio.get_running_loop().create_task(
            self._ask_in_place(
                [(work, disk) for disk in disks],
                _MOST_OF_A_DISK[work],
                job=job_id,
                attempt=attempt,
                **what,
            )
        )
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)
        return await asyncio.shield(task)

    async def _ask_in_place(
        self, places: list[tuple[str, str]], most: int, **fields: int | bool
    ) -> Message:
        async with self._freed:
            await self._freed.wait_for(lambda: all(self._busy[each] < most for each in places))
            self._busy.update(places)
        began_s = asyncio.get_running_loop().time()
        try:
            report = await self._link.ask("scratch", **fields)
        except BackendError as error:
            log.warning("event=scratch_unknown job=%d problem=%s", fields["job"], error)
            report = {"state": "kept", "because": str(error)}
        finally:
            async with self._freed:
                self._busy.subtract(places)
                self._freed.notify_all()
        return {**report, "took_s": asyncio.get_running_loop().time() - began_s}


def _disks_of(shares: Iterable[Share]) -> list[str]:
    return sorted({str(share.disk) for share in shares})
