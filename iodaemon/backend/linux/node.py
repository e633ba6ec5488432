"""The real server as a backend: starts, freezes and ends jobs through the keeper, reads counters.

It owns the pids. Decisions come in by ``perform``; everything it learns goes out as events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, assert_never

from iodaemon.backend.linux import outcome, protocol
from iodaemon.backend.linux.link import KeeperLink
from iodaemon.backend.linux.notice import Notices
from iodaemon.backend.linux.protocol import Message, job_key
from iodaemon.backend.linux.reading import NodeReader
from iodaemon.backend.linux.track import Track
from iodaemon.core import event as ev
from iodaemon.core.decision import Decision, Grant, Kill, Reject, Resume, Start, Stop, Suspend
from iodaemon.core.job import Job, JobId, JobState
from iodaemon.core.platform import Platform
from iodaemon.core.timeline import Timeline
from iodaemon.errors import BackendError

log = logging.getLogger(__name__)

_BLOCKED_S: Final = 5.0
"""Starts pause this long after one failed for a reason of the machine, not of the job."""
_KILL_PATIENCE_S: Final = 5.0
"""A job that still has processes this long after SIGKILL gets a reason that names them."""
_SIGTERM: Final = 15
_SIGKILL: Final = 9

Launch = Mapping[str, Any]


class LinuxNode:
    """One Linux server. Use from one event loop; counters are read in a thread of their own."""

    offers = frozenset({Start, Suspend, Resume, Stop, Kill, Reject, Grant})

    def __init__(
        self,
        *,
        platform: Platform,
        timeline: Timeline,
        post: Callable[[ev.Event], None],
        launch_of: Callable[[Start], Launch],
        state: Path,
        keeper_socket: Path,
        grace_s: float,
        means: str = "auto",
    ) -> None:
        """Make the backend; ``open`` brings it up.

        Args:
            platform: as read by ``topology`` and ``devices``.
            timeline: wall time.
            post: takes every event; called in the event loop.
            launch_of: what to run for a start: command, environment, files, CPUs.
            state: the state directory; job directories are below ``jobs/``.
            keeper_socket: where the keeper listens.
            grace_s: how long the keeper waits for a daemon before it thaws everything.
            means: ``auto``, or ``signals`` to do without cgroups.
        """
        self._platform = platform
        self._timeline = timeline
        self._post = post
        self._launch_of = launch_of
        self._jobs_directory = state / "jobs"
        self._tracks: dict[JobId, Track] = {}
        self._attempts: dict[JobId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.reader = NodeReader(Path("/"), platform.devices)
        self._notices = Notices(protocol.STATUS_FILE)
        self._reading: asyncio.Future[None] | None = None
        self.samples_skipped = 0
        self.link = KeeperLink(
            state=state,
            socket=keeper_socket,
            grace_s=grace_s,
            means=means,
            on_connected=lambda: self._spawn(self._agree_with_keeper()),
            on_trouble=self._block,
        )

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        return self._platform

    async def open(self) -> None:
        """Reach or start the keeper.

        Raises:
            BackendError: none can be had.
        """
        await self.link.open()

    async def close(self) -> None:
        """Let go of everything; running jobs run on, none is left standing still."""
        thaws = [
            self.link.ask("thaw", job=track.job_id, attempt=track.attempt)
            for track in self._tracks.values()
        ]
        await asyncio.wait(
            [asyncio.ensure_future(asyncio.gather(*thaws, return_exceptions=True))], timeout=5.0
        )
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reading is not None:
            await self._reading
        self._notices.close()
        for track in self._tracks.values():
            track.close()
        await self.link.close(leave=True)
        self.reader.close()

    def pids(self, job_id: JobId) -> list[int]:
        """The job's processes; empty for a job that does not run."""
        track = self._tracks.get(job_id)
        return [] if track is None else track.pids()

    # -- decisions -------------------------------------------------------------------------------

    def perform(self, decision: Decision) -> None:
        """Begin to carry the decision out; an event answers."""
        match decision:
            case Start():
                self._attempts[decision.job_id] = decision.attempt
                self._spawn(self._start(decision))
            case Suspend():
                self._spawn(self._suspend(decision.job_id))
            case Resume():
                self._spawn(self._resume(decision.job_id))
            case Stop():
                self._spawn(self._signal(decision.job_id, _SIGTERM))
            case Kill():
                self._spawn(self._kill(decision.job_id))
            case Reject() | Grant():
                pass
            case _:
                assert_never(decision)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """A failed task is a bug: the loop's exception handler stops the daemon."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "backend task failed", "exception": error}
            )

    async def _start(self, decision: Start) -> None:
        try:
            there = await self.link.ask(
                "start",
                job=decision.job_id,
                attempt=decision.attempt,
                launch=self._launch_of(decision),
            )
        except BackendError as error:
            self._fail_start(decision.job_id, decision.attempt, str(error))
            return
        self._take_in(decision.job_id, decision.attempt, there)

    def _take_in(self, job_id: JobId, attempt: int, there: Message) -> None:
        """Act on what the keeper says of an attempt that was started, now or earlier."""
        if "status" in there:
            self._end(job_id, attempt, there["status"])
        elif "never_ran" in there:
            self._fail_start(job_id, attempt, "the keeper died before it could start it")
        elif "absent" in there:
            self._lose(job_id, attempt, "its directory is gone; it may or may not have run")
        else:
            self._track(job_id, attempt, there["shim"])

    def _fail_start(self, job_id: JobId, attempt: int, problem: str) -> None:
        self._attempts.pop(job_id, None)
        self._pause_starts(problem)
        now_s = self._timeline.now_s
        self._post(ev.StartFailed(at_s=now_s, job_id=job_id, attempt=attempt, problem=problem))

    def _pause_starts(self, problem: str) -> None:
        self._block(problem)
        self._timeline.call_at(self._timeline.now_s + _BLOCKED_S, lambda: self._block(""))

    def _block(self, problem: str) -> None:
        self._post(ev.StartsBlocked(at_s=self._timeline.now_s, problem=problem))

    async def _suspend(self, job_id: JobId) -> None:
        now_frozen = await self._ask_about(job_id, "freeze", frozen=False)
        if now_frozen:
            self._post(ev.JobSuspended(at_s=self._timeline.now_s, job_id=job_id))

    async def _resume(self, job_id: JobId) -> None:
        now_frozen = await self._ask_about(job_id, "thaw", frozen=True)
        if now_frozen is False:
            self._post(ev.JobResumed(at_s=self._timeline.now_s, job_id=job_id))

    async def _ask_about(self, job_id: JobId, verb: str, *, frozen: bool) -> bool | None:
        """Whether the job stands still afterwards; None when it has ended or could not be asked."""
        track = self._tracks.get(job_id)
        if track is None:
            return None
        try:
            answer = await self.link.ask(verb, job=job_id, attempt=track.attempt)
        except BackendError as error:
            if job_id in self._tracks:
                self._post(
                    ev.SuspendFailed(
                        at_s=self._timeline.now_s,
                        job_id=job_id,
                        frozen=frozen,
                        problem=str(error),
                    )
                )
            return None
        return bool(answer["frozen"])

    async def _signal(self, job_id: JobId, number: int) -> None:
        attempt = self._attempts.get(job_id)
        if attempt is None:
            return
        try:
            await self.link.ask("kill", job=job_id, attempt=attempt, signal=number)
        except BackendError as error:
            self._delay_stop(job_id, str(error))
        else:
            self._post(ev.JobResumed(at_s=self._timeline.now_s, job_id=job_id))

    def _delay_stop(self, job_id: JobId, problem: str) -> None:
        now_s = self._timeline.now_s
        self._post(ev.StopDelayed(at_s=now_s, job_id=job_id, problem=problem))

    async def _kill(self, job_id: JobId) -> None:
        await self._signal(job_id, _SIGKILL)
        await asyncio.sleep(_KILL_PATIENCE_S)
        track = self._tracks.get(job_id)
        if track is not None:
            self._delay_stop(job_id, track.describe_left())

    # -- jobs and their ends ---------------------------------------------------------------------

    def _track(self, job_id: JobId, attempt: int, shim: Message) -> None:
        track = Track(job_id, attempt, shim)
        self._tracks[job_id] = track
        self._attempts[job_id] = attempt
        self.reader.add(track)
        self._post(outcome.began(job_id, attempt, shim, self._timeline.now_s))
        if track.shim_fd is None:
            self._on_shim_exit(track)
            return
        asyncio.get_running_loop().add_reader(track.shim_fd, self._on_shim_exit, track)
        directory = str(self._directory(track))
        track.watch = self._notices.add(directory, lambda: self._find_end(track))
        self._find_end(track)  # it may have come before it was looked out for

    def _on_shim_exit(self, track: Track) -> None:
        if track.shim_fd is not None:
            asyncio.get_running_loop().remove_reader(track.shim_fd)
        if not self._find_end(track):
            track.is_bereaved = True
            self._spawn(self._outlive(track))

    def _find_end(self, track: Track) -> bool:
        """Act on its status, if there is one: the job has ended, and its shim is about to."""
        status = protocol.read_json(str(self._directory(track) / protocol.STATUS_FILE))
        if status is not None:
            self._forget(track)
            self._end(track.job_id, track.attempt, status)
        return status is not None

    async def _outlive(self, track: Track) -> None:
        """The shim was killed: wait for the job's processes, then say what the kernel knows.

        Without its shim nobody would thaw the job if the keeper died: it is not held any more.
        """
        job_id, attempt = track.job_id, track.attempt
        if await self._ask_about(job_id, "thaw", frozen=True) is False:
            self._post(ev.JobResumed(at_s=self._timeline.now_s, job_id=job_id))
        end = await track.gone()
        totals = self.reader.known_totals(job_id)
        self._forget(track)
        self._post(outcome.orphaned(job_id, attempt, end, totals, self._timeline.now_s))
        try:
            await self.link.ask("tidy", job=job_id, attempt=attempt)
        except BackendError as error:
            log.warning("event=not_tidied job=%d problem=%s", job_id, error)

    def _forget(self, track: Track) -> None:
        self._tracks.pop(track.job_id, None)
        self._attempts.pop(track.job_id, None)
        self.reader.remove(track.job_id)
        self._notices.remove(track.watch)
        if track.shim_fd is not None:
            asyncio.get_running_loop().remove_reader(track.shim_fd)
        track.close()

    def _end(self, job_id: JobId, attempt: int, status: Message) -> None:
        self._attempts.pop(job_id, None)
        if outcome.is_of_the_machine(status):
            self._pause_starts(status["never_ran"])
        for event in outcome.ended(job_id, attempt, status, self._timeline.now_s):
            self._post(event)

    def _lose(self, job_id: JobId, attempt: int, note: str) -> None:
        self._attempts.pop(job_id, None)
        self._post(outcome.lost(job_id, attempt, note, self._timeline.now_s))

    def _directory(self, track: Track) -> Path:
        return self._jobs_directory / job_key(track.job_id, track.attempt)

    # -- after a restart, of the daemon or of the keeper ---------------------------------------

    async def adopt(self, jobs: Iterable[Job], *, same_boot: bool) -> None:
        """Post what became of the jobs the journal knows as live (the restart table).

        Args:
            jobs: live according to the journal.
            same_boot: False when the machine was restarted since the journal was written.
        """
        known = {job.id: job for job in jobs}
        pairs = [[job.id, job.attempt] for job in known.values()]
        answer = await self.link.ask("list", jobs=pairs)
        for there in answer["jobs"]:
            job = known[there["job"]]
            if "absent" in there and job.state in (JobState.STARTING, JobState.STOPPING):
                self._adopt_absent(job, same_boot=same_boot)
            elif not same_boot and "status" not in there:
                self._lose(job.id, job.attempt, "the machine was restarted while it ran")
            else:
                self._take_in(job.id, job.attempt, there)
                self._report_freezing(job.id, there)
                if job.state is JobState.STOPPING and job.id in self._tracks:
                    self.perform(Stop(job_id=job.id))  # it may not have been asked yet

    def _adopt_absent(self, job: Job, *, same_boot: bool) -> None:
        """The daemon ended between writing the start down and asking for it."""
        if not same_boot:
            self._lose(job.id, job.attempt, "the machine was restarted while it was starting")
            return
        if job.state is JobState.STOPPING or job.partition is None:
            self._post(
                ev.StartFailed(
                    at_s=self._timeline.now_s,
                    job_id=job.id,
                    attempt=job.attempt,
                    problem="cancelled before it was started",
                )
            )
            return
        self.perform(
            Start(job_id=job.id, attempt=job.attempt, partition=job.partition, slots=job.slots)
        )

    def _report_freezing(self, job_id: JobId, there: Message) -> None:
        if job_id not in self._tracks:
            return
        at_s = self._timeline.now_s
        if there["frozen"]:
            self._post(ev.JobSuspended(at_s=at_s, job_id=job_id))
        else:
            self._post(ev.JobResumed(at_s=at_s, job_id=job_id))

    async def _agree_with_keeper(self) -> None:
        """A new keeper: tell the controller which jobs stand still now (shims thaw their own)."""
        tracks = [track for track in self._tracks.values() if not track.is_bereaved]
        pairs = [[track.job_id, track.attempt] for track in tracks]
        try:
            answer = await self.link.ask("list", jobs=pairs)
        except BackendError as error:
            log.warning("event=keeper_cannot_list problem=%s", error)
            return
        for there in answer["jobs"]:
            self._report_freezing(JobId(there["job"]), there)

    # -- samples ---------------------------------------------------------------------------------

    def sample(self) -> None:
        """Read all counters in the reading thread; SampleTaken answers.

        While the last reading is still under way this one is skipped, and counted.
        """
        if self._reading is not None and not self._reading.done():
            self.samples_skipped += 1
            return
        self._reading = asyncio.ensure_future(self._sample())

    async def _sample(self) -> None:
        at_s = self._timeline.now_s
        sample = await self.reader.read(at_s)
        self._post(ev.SampleTaken(at_s=self._timeline.now_s, sample=sample))
