"""Jobs' directories on the disks of tiers, which the supervisor makes, measures and removes.

A disk that hangs delays only its own jobs: the supervisor's helper (``supervisor.scratch``) has a
deadline for each wish.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from iodaemon.core import event as ev
from iodaemon.core.backend import Timeline
from iodaemon.core.decision import Free
from iodaemon.core.job import Job, JobId, JobState, Share
from iodaemon.node.outcome import read_report
from iodaemon.node.supervisor_client import SupervisorClient, start_task
from iodaemon.supervisor import disk_trouble
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Message
from iodaemon.supervisor.scratch import STORE

log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.1
"""Until a removal continues that ran out of time, or whose helper was killed."""
_FIRST_RETRY_S: Final = 5.0
_LAST_RETRY_S: Final = 600.0
"""Between attempts to remove a directory, doubled each time."""
_FIRST_MEASURE_S: Final = 1.0
_MEASURE_S: Final = 5.0
_TRIES: Final = 3
"""To make a directory: its helper may be killed."""
_REST: Final = 50
"""Measuring pauses for so many times its duration: 2 % of a CPU."""


class ScratchError(Exception):
    """A directory cannot be made. ``disk`` is the disk that no job can use now, or None."""

    def __init__(self, problem: str, disk: str | None) -> None:
        super().__init__(problem)
        self.disk = disk


class Scratch:
    """One task for each attempt that has directories.

    Args:
        state_dir: the daemon's; its name makes directories of two daemons on one disk distinct.
        outputs: the directory of the jobs' reports.

    Attributes:
        ends_over: whether a job that uses more space than it asked for is ended.
    """

    def __init__(
        self,
        client: SupervisorClient,
        state_dir: Path,
        outputs: Path,
        job_of: Callable[[JobId], Job | None],
        timeline: Timeline,
        post: Callable[[ev.Event], None],
    ) -> None:
        self._client = client
        self._tag = hashlib.sha256(os.fsencode(os.path.realpath(state_dir))).hexdigest()[:12]
        self._outputs = outputs
        self._job_of = job_of
        self._timeline = timeline
        self._post = post
        self._tasks: dict[JobId, asyncio.Task[None]] = {}
        self._filesystems: dict[tuple[Key, str], int] = {}
        self._unmade: set[tuple[Key, str]] = set()
        self.ends_over = False

    def paths(self, key: Key, shares: Sequence[Share]) -> list[str]:
        """An attempt's directories, the largest, which takes the input, first."""
        in_order = sorted(shares, key=lambda share: -share.size_bytes)
        return [os.path.join(_path(share), STORE, self._name(key)) for share in in_order]

    async def make(self, key: Key, uid: int, shares: Sequence[Share], numbers: Message) -> None:
        """Make an attempt's directories for this user; ScratchError if one cannot be made.

        ``numbers`` are the known numbers of the disks' file systems, by path.
        """
        self._unmade |= {(key, share.disk) for share in shares}
        for share in shares:
            if (number := numbers.get(share.disk)) is not None:
                self._filesystems[key, share.disk] = number
            for _ in range(_TRIES):
                answer = await self._ask("make", key, share, uid=uid)
                if answer.get("done") or answer.get("is_disk"):
                    break
            if not answer.get("done"):
                problem = _words_of(share, answer) or "no process could be had for it"
                if answer.get("is_disk"):
                    raise ScratchError(problem, share.disk)
                raise ScratchError(f"scratch space cannot be had: {problem}", None)
            self._unmade.discard((key, share.disk))
            if type(answer.get("filesystem")) is int:
                self._filesystems[key, share.disk] = answer["filesystem"]

    def follow(self, key: Key, shares: Sequence[Share]) -> None:
        """Measure the directories of a running attempt repeatedly."""
        self._begin(JobId(key.job), self._measure(key, shares))

    def free(self, free: Free) -> None:
        """Remove the directories of an ended attempt, however long it takes."""
        self._begin(free.job_id, self._remove(free))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _name(self, key: Key) -> str:
        return f"{key.job}-{key.attempt}-{self._tag}"

    def _begin(self, job_id: JobId, work: Coroutine[Any, Any, None]) -> None:
        if (before := self._tasks.get(job_id)) is not None:
            before.cancel()
        task = self._tasks[job_id] = start_task(work)

        def drop(_: object) -> None:
            if self._tasks.get(job_id) is task:
                del self._tasks[job_id]

        task.add_done_callback(drop)

    async def _ask(self, do: str, key: Key, share: Share, **more: object) -> Message:
        if (number := self._filesystems.get((key, share.disk))) is not None:
            more["filesystem"] = number
        name = self._name(key)
        return await self._client.ask_scratch(do=do, disk=_path(share), name=name, **more)

    async def _measure(self, key: Key, shares: Sequence[Share]) -> None:
        was_over, wait_s = False, _FIRST_MEASURE_S
        while True:
            await asyncio.sleep(wait_s)
            began_s = asyncio.get_running_loop().time()
            used, is_over, is_all = 0, False, True
            for share in shares:
                answer = await self._ask("measure", key, share)
                found = int(answer.get("used_bytes", 0))
                is_hidden = bool(answer.get("problem")) and not answer.get("is_disk")  # by a mount
                is_over |= found > share.size_bytes or is_hidden
                used, is_all = used + found, is_all and bool(answer.get("is_all"))
            wait_s = max(_MEASURE_S, _REST * (asyncio.get_running_loop().time() - began_s))
            if is_over != was_over:
                was_over = is_over
                self._tell(
                    ev.ScratchUsed,
                    key,
                    used_bytes=used,
                    is_over=is_over,
                    ends=self.ends_over,
                    is_all=is_all,
                )

    async def _remove(self, free: Free) -> None:
        key, retry_s = Key(free.job_id, free.attempt), _FIRST_RETRY_S
        while True:
            need = "" if free.is_wanted else self._find_need(free.job_id, free.attempt)
            if need and not await self._are_empty(key, free.shares):
                problem = f"{need}; it lies in {' and '.join(self.paths(key, free.shares))}"
                self._tell(ev.ScratchKept, key, problem=problem, is_result=True)
            else:
                problems = await self._remove_once(key, free.shares)
                if not problems:
                    self._tell(ev.ScratchRemoved, key)
                    return
                if not any(problems):
                    await asyncio.sleep(_AGAIN_S)
                    continue  # there is more, and time for another turn
                problem = "; ".join(filter(None, problems))
                self._tell(ev.ScratchKept, key, problem=problem, is_result=False)
            await asyncio.sleep(retry_s)
            retry_s = min(2.0 * retry_s, _LAST_RETRY_S)

    async def _remove_once(self, key: Key, shares: Sequence[Share]) -> list[str]:
        """A problem for each directory that is left; an empty one if only time ran out."""
        problems = []
        for share in shares:
            answer = await self._ask("remove", key, share)
            was_never = (key, share.disk) in self._unmade and answer.get("is_disk")  # of no use
            if not (answer.get("done") or was_never):
                problems.append(_words_of(share, answer))
        if not problems:
            for share in shares:
                self._unmade.discard((key, share.disk))
                self._filesystems.pop((key, share.disk), None)
        return problems

    async def _are_empty(self, key: Key, shares: Sequence[Share]) -> bool:
        for share in shares:
            answer = await self._ask("measure", key, share)
            if answer.get("used_bytes") or not answer.get("is_all"):
                return False
        return True

    def _find_need(self, job_id: JobId, attempt: int) -> str:
        """Why the files of the attempt are still needed; empty if they are not."""
        job = self._job_of(job_id)
        request = None if job is None else job.spec.scratch
        if job is None or request is None or request.output_path is None:
            return ""
        staged, report = job.staged, read_report(self._outputs, job_id, attempt)
        if staged is not None and (staged.has_gone or staged.has_come is False):
            return ""
        if job.state is JobState.COMPLETED or (report is None and job.started_s is None):
            return ""
        step = "out" if report is None else report.step  # nobody knows how far one came
        if step in (None, "in"):
            return ""  # the command never began
        if request.output_on == "success" and step == "run":
            was_seen = report is not None and report.status is not None
            if was_seen or job.state not in (JobState.FAILED, JobState.LOST):
                return ""  # it failed, or was ended
        need = f"what the job left was not copied to {request.output_path}"
        failure = None if report is None else report.failure
        return need if failure is None else f"{need}: {failure[1]}"

    def _tell(
        self,
        event: type[ev.ScratchUsed | ev.ScratchKept | ev.ScratchRemoved],
        key: Key,
        **fields: Any,
    ) -> None:
        now_s, job_id = self._timeline.now_s, JobId(key.job)
        self._post(event(at_s=now_s, job_id=job_id, attempt=key.attempt, **fields))


def _path(share: Share) -> str:
    return os.path.abspath(share.disk)


def _words_of(share: Share, answer: Message) -> str:
    """The problem of an answer; empty if only time ran out."""
    problem = str(answer.get("problem", ""))
    if problem and answer.get("is_disk"):
        return disk_trouble.sentence(share.disk, problem, share.tier)
    return problem
