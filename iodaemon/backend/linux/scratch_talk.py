"""What the keeper tells of jobs' directories on tiers' disks, as events.

The keeper is asked once for each attempt that has some, and answers when their state changes: so
it is while the job runs, and after its end until they are gone. It removes them by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from iodaemon.backend.linux.link import KeeperLink
from iodaemon.backend.linux.protocol import Message
from iodaemon.core import event as ev
from iodaemon.core.decision import Free
from iodaemon.core.job import JobId
from iodaemon.core.timeline import Timeline
from iodaemon.errors import BackendError, Unsupported

log = logging.getLogger(__name__)

_AGAIN_S: Final = 30.0
"""Until a keeper that could not answer is asked again."""
Wish = Mapping[str, bool]
"""``free`` what was kept, or ``copy`` it out first."""
_NONE: Final[Wish] = {"free": False}


class ScratchTalk:
    """One question for each attempt is under way at most.

    Attributes:
        ends_over: a job that has more in its space than it asked for is to be ended.
    """

    def __init__(
        self, link: KeeperLink, timeline: Timeline, post: Callable[[ev.Event], None]
    ) -> None:
        """Nothing is asked yet."""
        self._link = link
        self._timeline = timeline
        self._post = post
        self._tasks: dict[JobId, asyncio.Task[None]] = {}
        self.ends_over = False

    def follow(self, job_id: JobId, attempt: int) -> None:
        """Tell of the directories of an attempt that has been started."""
        self._begin(job_id, attempt, known="held", wish=_NONE)

    def free(self, free: Free) -> None:
        """Tell when they are gone; if that is wanted those go as well that had to be kept."""
        known = "kept" if free.is_wanted or free.copies else ""
        wish = {"free": free.is_wanted, **({"copy": True} if free.copies else {})}
        self._begin(free.job_id, free.attempt, known=known, wish=wish)

    def close(self) -> None:
        """Ask no more."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _begin(self, job_id: JobId, attempt: int, *, known: str, wish: Wish) -> None:
        if (before := self._tasks.pop(job_id, None)) is not None:
            before.cancel()
        talk = self._talk(job_id, attempt, known, wish)
        task = self._tasks[job_id] = asyncio.get_running_loop().create_task(talk)
        task.add_done_callback(lambda done: self._done(job_id, done))

    def _done(self, job_id: JobId, task: asyncio.Task[None]) -> None:
        """A task that failed is a bug: the loop's exception handler stops the daemon."""
        if self._tasks.get(job_id) is task:
            del self._tasks[job_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "scratch task failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _talk(self, job_id: JobId, attempt: int, known: str, wish: Wish) -> None:
        while True:
            asked = {"job": job_id, "attempt": attempt, "known": known, **wish}
            try:
                report = await self._link.ask("scratch", **asked)
            except Unsupported:
                report = {"state": "removed"}  # it never made any
            except BackendError as error:
                log.warning("event=scratch_unknown job=%d problem=%s", job_id, error)
                await asyncio.sleep(_AGAIN_S)
                continue
            wish, known = _NONE, str(report["state"])
            if (event := self._event(job_id, attempt, report)) is not None:
                self._post(event)
            if known == "removed":
                return

    def _event(self, job_id: JobId, attempt: int, report: Message) -> ev.Event | None:
        about: dict[str, Any] = {
            "at_s": self._timeline.now_s,
            "job_id": job_id,
            "attempt": attempt,
        }
        match report["state"]:
            case "removed":
                return ev.ScratchRemoved(**about)
            case "kept":
                is_result, why = report.get("is_result"), str(report["because"])
                is_open = bool(report.get("is_open"))  # a keeper of before does not say it
                return ev.ScratchKept(**about, problem=why, is_result=is_result, is_open=is_open)
            case "held" | "over" as state:
                used = int(report.get("used_bytes") or 0)
                return ev.ScratchUsed(
                    **about,
                    used_bytes=used,
                    is_over=state == "over",
                    ends=self.ends_over,
                    is_all=bool(report.get("is_all", True)),
                )
            case _:
                return None
