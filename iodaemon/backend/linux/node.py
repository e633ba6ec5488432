"""The real server as a backend: starts, freezes and ends jobs through the keeper, reads counters.

It owns the pids. Decisions come in by ``perform``; everything it learns goes out as events.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from iodaemon.backend.linux import outcome, protocol
from iodaemon.backend.linux.allowance import has_spare
from iodaemon.backend.linux.attempt_record import RecordError, check_shim, check_status
from iodaemon.backend.linux.condition import FEW_FILES
from iodaemon.backend.linux.ends import Ends
from iodaemon.backend.linux.fence import counts_memory_ends, find_memory_end
from iodaemon.backend.linux.io_cap import CAP
from iodaemon.backend.linux.keeper_command import KeeperSpec
from iodaemon.backend.linux.link import KeeperLink
from iodaemon.backend.linux.notice import Notices
from iodaemon.backend.linux.oom_kills import OomKillFile, OomKills
from iodaemon.backend.linux.protocol import Message
from iodaemon.backend.linux.reading import NodeReader
from iodaemon.backend.linux.scratch_talk import ScratchTalk
from iodaemon.backend.linux.track import Track
from iodaemon.core import decision as to_do
from iodaemon.core import event as ev
from iodaemon.core.decision import (
    Cap,
    Decision,
    Grant,
    Kill,
    Reject,
    Resume,
    Start,
    Stop,
    Suspend,
    Throttle,
)
from iodaemon.core.job import Job, JobId, JobState
from iodaemon.core.platform import Platform
from iodaemon.core.sample import Sample
from iodaemon.core.timeline import Timeline
from iodaemon.errors import BackendError, TooLarge

log = logging.getLogger(__name__)

_BLOCKED_S: Final = 5.0
"""Starts pause this long after one failed for a reason of the machine, not of the job."""
_KILL_PATIENCE_S: Final = 5.0
"""A job that still has processes this long after SIGKILL gets a reason that names them."""
_START_HANGS: Final = (
    "its start hangs: its output, error or working directory is on a server that does not answer"
)
_THAW_WITHIN_S: Final = 5.0
"""All jobs, when the daemon ends; a keeper takes a millisecond a job."""
_THAW_AT_LEAST_S: Final = 0.5
"""Where it is known that no keeper answers."""
_READING_WITHIN_S: Final = 1.0
"""What the end waits for a reading that is under way, which takes milliseconds."""
_TRACK_AGAIN_S: Final = 1.0
"""Between looks for descriptors for a job that has begun."""
_NOT_EXECUTABLE: Final = 126  # as a shell says of what is too long to be executed (E2BIG)
_SIGTERM: Final = 15
_SIGKILL: Final = 9

Launch = Mapping[str, Any]


class LinuxNode:
    """One Linux server. Use from one event loop; counters are read in a thread of their own."""

    offers: frozenset[type] = frozenset(
        {Start, Suspend, Resume, Throttle, Stop, Kill, Reject, Grant, to_do.Free}
    )
    """Once it is open without ``Throttle``, where the keeper cannot do that."""

    def __init__(
        self,
        *,
        platform: Platform,
        timeline: Timeline,
        post: Callable[[ev.Event], None],
        launch_of: Callable[[Start], Launch],
        keeper: KeeperSpec,
    ) -> None:
        """Make the backend; ``open`` brings it up.

        Args:
            platform: as read by ``topology`` and ``devices``.
            timeline: wall time.
            post: takes every event; called in the event loop.
            launch_of: what to run for a start: command, environment, files, CPUs.
            keeper: whose jobs these are.
        """
        self._platform = platform
        self._timeline = timeline
        self._post = post
        self._launch_of = launch_of
        self._tracks: dict[JobId, Track] = {}
        self._attempts: dict[JobId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts_problem = ""
        self._deferred: dict[Track, str] = {}
        self._unanswered: list[JobId] = []
        self._told_problem = ""
        self.reader = NodeReader(
            Path("/"), platform.devices, keeper.jobs, partitions=platform.partitions
        )
        self._jobs = keeper.jobs
        self._oom_kill_file = OomKillFile(Path("/"))
        self._oom_kills = OomKills(self._oom_kill_file.read)
        self._frozen = Notices()
        self._ends = Ends(
            keeper.jobs,
            on_status=self._on_status,
            on_bereaved=lambda track: self._spawn(self._outlive(track)),
        )
        self._reading: asyncio.Future[None] | None = None
        self.samples_skipped = 0
        self._silent: dict[JobId, int] = {}
        self.link = KeeperLink(
            keeper,
            on_connected=lambda: self._spawn(self._agree_with_keeper()),
            on_trouble=self._on_keeper_trouble,
        )
        self.scratch = ScratchTalk(self.link, timeline, post)

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
        if CAP not in self.link.controls:
            self.offers -= {Throttle}

    async def close(self) -> str:
        """Let go of everything; running jobs run on, none is left standing still.

        Returns:
            What remains to be done, and by whom; empty: nothing.
        """
        remains = await self._thaw_all()
        self.scratch.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_READING_WITHIN_S)
            self._reading.cancel()
        self._ends.close()
        self._frozen.close()
        for track in self._tracks.values():
            track.close()
        await self.link.close(leave=True)
        self.reader.close()
        self._oom_kill_file.close()
        return remains

    async def _thaw_all(self) -> str:
        """Have all jobs thawed; which ones the keeper has not thawed in time."""
        thaws = {
            asyncio.ensure_future(
                self.link.ask("thaw", job=track.job_id, attempt=track.attempt)
            ): track.job_id
            for track in self._tracks.values()
        }
        if not thaws:
            return ""
        within_s = _THAW_AT_LEAST_S if self.link.problem else _THAW_WITHIN_S
        done, late = await asyncio.wait(thaws, timeout=within_s)
        for thaw in (*done, *late):
            thaw.cancel()
        await asyncio.gather(*thaws, return_exceptions=True)
        jobs = " ".join(str(job_id) for job_id in sorted(thaws[thaw] for thaw in late))
        return jobs and f"jobs {jobs} may stand still: {self.link.why_silent()}"

    def pids(self, job_id: JobId) -> list[int]:
        """The job's processes; empty for a job that does not run, and where nobody can look now."""
        track = self._tracks.get(job_id)
        try:
            return [] if track is None else track.pids()
        except OSError:  # no descriptor is left
            return []

    # -- decisions -------------------------------------------------------------------------------

    def perform(self, decision: Decision) -> None:
        """Begin to carry the decision out; an event answers."""
        match decision:
            case Start():
                self._attempts[decision.job_id] = decision.attempt
                self._spawn(self._start(decision))
            # Which attempt is meant is settled here: the next one may begin before the task runs.
            case Suspend():
                self._spawn(self._hold(self._tracks.get(decision.job_id), "freeze"))
            case Resume():
                self._spawn(self._hold(self._tracks.get(decision.job_id), "thaw"))
            case Stop():
                attempt = self._attempts.get(decision.job_id)
                self._spawn(self._signal(decision.job_id, attempt, _SIGTERM))
            case Kill():
                self._spawn(self._kill(decision.job_id, self._attempts.get(decision.job_id)))
            case Throttle():
                self._spawn(self._cap(self._tracks.get(decision.job_id), decision.cap))
            case to_do.Free():
                self.scratch.free(decision)
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
        except TooLarge as error:  # the job's own fault: no other one waits for it
            now_s, code = self._timeline.now_s, _NOT_EXECUTABLE
            there = {"status": {"never_ran": str(error), "exit_code": code, "ended_s": now_s}}
        except BackendError as error:
            self._fail_start(decision.job_id, decision.attempt, str(error))
            return
        self._take_in(decision.job_id, decision.attempt, there)
        if (track := self._tracks.get(decision.job_id)) is not None:
            self._on_cgroup_event(track)  # what came before it was watched
        if decision.shares and decision.job_id in self._attempts:
            self.scratch.follow(decision.job_id, decision.attempt, decision.shares)

    def _take_in(self, job_id: JobId, attempt: int, there: Message) -> None:
        """Act on what the keeper says of an attempt that was started, now or earlier."""
        keeper = f"what the keeper says of job {job_id}"
        try:
            if "status" in there:
                self._end(job_id, attempt, check_status(there["status"], keeper))
            elif "never_ran" in there:
                self._fail_start(job_id, attempt, "what was to start it was killed first")
            elif "absent" in there:
                self._lose(job_id, attempt, "its directory is gone; it may or may not have run")
            elif "lost" in there:
                self._lose(job_id, attempt, str(there["lost"]))
            else:
                self._track(job_id, attempt, check_shim(there.get("shim"), keeper))
        except RecordError as error:  # a keeper of a version that does not check what it reads
            self._lose(job_id, attempt, f"{error}; it may or may not have run")

    def _fail_start(self, job_id: JobId, attempt: int, problem: str) -> None:
        self._attempts.pop(job_id, None)
        self._pause_starts(problem)
        now_s = self._timeline.now_s
        self._post(ev.StartFailed(at_s=now_s, job_id=job_id, attempt=attempt, problem=problem))

    def _pause_starts(self, problem: str) -> None:
        self._block(problem)
        self._timeline.call_at(self._timeline.now_s + _BLOCKED_S, lambda: self._block(""))

    def _block(self, problem: str) -> None:
        self._starts_problem = problem
        self._tell_block()

    def _tell_block(self) -> None:
        problem = self.link.problem or self._starts_problem
        self._post(ev.StartsBlocked(at_s=self._timeline.now_s, problem=problem))

    def _on_keeper_trouble(self, problem: str) -> None:
        """No keeper answers, or one does again: nothing starts, and what is asked of jobs waits."""
        self._tell_block()
        if problem and problem != self._told_problem:
            for job_id in dict.fromkeys(self._unanswered):
                self._delay(job_id, problem)
        self._told_problem = problem

    async def _hold(self, track: Track | None, verb: str) -> None:
        """Freeze or thaw it and post what came of it; nothing of an attempt that has ended.

        While no keeper answers, the last that was asked is put off until one does.
        """
        if track is None:
            return
        if self.link.problem:
            self._deferred[track] = verb
            self._delay(track.job_id, self.link.problem)
            return
        self._unanswered.append(track.job_id)
        try:
            answer = await self.link.ask(verb, job=track.job_id, attempt=track.attempt)
            is_frozen, problem = bool(answer["frozen"]), ""
        except BackendError as error:
            is_frozen, problem = verb != "freeze", str(error)
        finally:
            self._unanswered.remove(track.job_id)
        if self._tracks.get(track.job_id) is not track:
            return
        at_s, job_id = self._timeline.now_s, track.job_id
        if problem:
            self._post(
                ev.SuspendFailed(at_s=at_s, job_id=job_id, frozen=is_frozen, problem=problem)
            )
        elif is_frozen == (verb == "freeze"):
            self._post_freezing(job_id, is_frozen=is_frozen)

    async def _cap(self, track: Track | None, cap: Cap | None) -> None:
        """Slow it down, or let it move what it can; the next decision follows a failure.

        A keeper that is away leaves no cap: its shims clear them as they thaw.
        """
        if track is None or self.link.problem:
            return
        try:
            caps = {} if cap is None else _caps_by_number(cap)
            await self.link.ask("cap", job=track.job_id, attempt=track.attempt, caps=caps)
        except (BackendError, OSError) as error:
            self._note_cap_failed(track, str(error), is_wanted=cap is not None)

    def _note_cap_failed(self, track: Track, problem: str, *, is_wanted: bool) -> None:
        if self._tracks.get(track.job_id) is not track:
            return
        log.warning("event=cap_failed job=%d problem=%r", track.job_id, problem)
        if is_wanted:
            at_s = self._timeline.now_s
            self._post(ev.CapFailed(at_s=at_s, job_id=track.job_id, problem=problem))

    def _on_cgroup_event(self, track: Track) -> None:
        """Somebody froze or thawed its cgroup, or it is empty; what is asked here has an answer."""
        is_frozen = None if track.cgroup is None else track.find_frozen()
        is_asked = track.job_id in self._unanswered and not self.link.problem
        if is_frozen in (None, track.is_frozen) or track.is_bereaved or is_asked:
            return
        if not is_frozen:
            self._post_freezing(track.job_id, is_frozen=False)
            return
        track.is_frozen = True
        log.warning("event=found_frozen job=%d cgroup=%s", track.job_id, track.cgroup)
        self._post(ev.FoundFrozen(at_s=self._timeline.now_s, job_id=track.job_id))

    def _post_freezing(self, job_id: JobId, *, is_frozen: bool) -> None:
        if (track := self._tracks.get(job_id)) is not None:
            track.is_frozen = is_frozen
        kind = ev.JobSuspended if is_frozen else ev.JobResumed
        self._post(kind(at_s=self._timeline.now_s, job_id=job_id))

    async def _signal(self, job_id: JobId, attempt: int | None, number: int) -> None:
        if attempt is None:
            return
        self._unanswered.append(job_id)
        if self.link.problem:
            self._delay(job_id, self.link.problem)
        try:
            await self.link.ask("kill", job=job_id, attempt=attempt, signal=number)
            problem = ""
        except BackendError as error:
            problem = str(error)
        finally:
            self._unanswered.remove(job_id)
        if self._attempts.get(job_id) != attempt:
            return
        if problem:
            self._delay(job_id, problem)
        else:
            self._post_freezing(job_id, is_frozen=False)

    def _delay(self, job_id: JobId, problem: str) -> None:
        now_s = self._timeline.now_s
        self._post(ev.StopDelayed(at_s=now_s, job_id=job_id, problem=problem))

    async def _kill(self, job_id: JobId, attempt: int | None) -> None:
        signal = asyncio.ensure_future(self._signal(job_id, attempt, _SIGKILL))
        try:
            await asyncio.wait({signal}, timeout=_KILL_PATIENCE_S)
            is_starting = attempt is not None and job_id not in self._tracks
            if not signal.done() and is_starting and not self.link.problem:
                self._delay(job_id, _START_HANGS)
            await signal
        finally:
            signal.cancel()
        await asyncio.sleep(_KILL_PATIENCE_S)
        track = self._tracks.get(job_id)
        if track is not None and track.attempt == attempt:
            self._delay(job_id, track.describe_left())

    # -- jobs and their ends ---------------------------------------------------------------------

    def _track(self, job_id: JobId, attempt: int, shim: Message) -> None:
        if "unreadable" in shim:
            log.warning("event=record_unreadable job=%d problem=%r", job_id, shim["unreadable"])
        self._attempts[job_id] = attempt
        if not has_spare():
            self._spawn(self._track_later(job_id, attempt, shim))
            return
        track = Track(job_id, attempt, shim)
        self._tracks[job_id] = track
        self.reader.add(track)
        self._post(outcome.began(job_id, attempt, shim, self._timeline.now_s))
        self._ends.expect(track)
        if track.cgroup is not None and job_id in self._tracks:
            path = f"{track.cgroup}/cgroup.events"
            track.watch = self._frozen.add(path, lambda: self._on_cgroup_event(track))

    async def _track_later(self, job_id: JobId, attempt: int, shim: Message) -> None:
        """Starts wait, and of this job nothing is measured, until descriptors are free again."""
        self._pause_starts(str(FEW_FILES))
        await asyncio.sleep(_TRACK_AGAIN_S)
        if self._attempts.get(job_id) == attempt:
            self._track(job_id, attempt, shim)

    def _on_status(self, track: Track, status: Message) -> None:
        self._forget(track)
        self._end(track.job_id, track.attempt, status, self._count_oom_kills(track, status))

    def _count_oom_kills(self, track: Track, status: Message) -> int:
        """Processes of the machine killed for want of memory as it ended; 0: not by that.

        Where the kernel counts by cgroup the status says it; where somebody here told the job to
        end, that is why.
        """
        if not outcome.was_killed(status) or counts_memory_ends(track.cgroup):
            return 0
        key = protocol.job_key(track.job_id, track.attempt)
        if os.path.lexists(os.path.join(self._jobs, key, protocol.TOLD_FILE)):
            return 0
        return self._oom_kills.count(outcome.end_s(status, self._timeline.now_s))

    async def _outlive(self, track: Track) -> None:
        """The shim was killed: wait for the job's processes, then say what the kernel knows.

        Without its shim nobody would thaw the job if the keeper died: it is not held any more.
        """
        job_id, attempt = track.job_id, track.attempt
        await self._hold(track, "thaw")
        end = await track.gone()
        totals, memory = self.reader.known_totals(job_id), find_memory_end(track.cgroup)
        self._forget(track)
        now_s = self._timeline.now_s
        self._post(outcome.orphaned(job_id, attempt, end, totals, now_s, memory=memory))
        try:
            await self.link.ask("tidy", job=job_id, attempt=attempt)
        except BackendError as error:
            log.warning("event=not_tidied job=%d problem=%s", job_id, error)

    def _forget(self, track: Track) -> None:
        self._tracks.pop(track.job_id, None)
        self._attempts.pop(track.job_id, None)
        self._deferred.pop(track, None)
        self._frozen.remove(track.watch)
        self.reader.remove(track.job_id)
        self._ends.forget(track)
        track.close()

    def _end(self, job_id: JobId, attempt: int, status: Message, oom_kills: int = 0) -> None:
        self._attempts.pop(job_id, None)
        if outcome.is_of_the_machine(status):
            self._pause_starts(status["never_ran"])
        now_s = self._timeline.now_s
        for event in outcome.ended(job_id, attempt, status, now_s, oom_kills=oom_kills):
            self._post(event)

    def _lose(self, job_id: JobId, attempt: int, note: str, *, by_reboot: bool = False) -> None:
        self._attempts.pop(job_id, None)
        now_s = self._timeline.now_s
        self._post(outcome.lost(job_id, attempt, note, now_s, by_reboot=by_reboot))

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
                note = "the machine was restarted while it ran"
                self._lose(job.id, job.attempt, note, by_reboot=True)
            else:
                self._take_in(job.id, job.attempt, there)
                self._report_freezing(there)
                if Throttle in self.offers:  # the daemon before this one may have capped it
                    self.perform(Throttle(job_id=job.id))
                if job.shares and job.id in self._attempts:
                    self.scratch.follow(job.id, job.attempt, job.shares)
                if job.state is JobState.STOPPING and job.id in self._attempts:
                    self.perform(Stop(job_id=job.id))  # it may not have been asked yet

    def _adopt_absent(self, job: Job, *, same_boot: bool) -> None:
        """The daemon ended between writing the start down and asking for it."""
        if not same_boot:
            note = "the machine was restarted while it was starting"
            self._lose(job.id, job.attempt, note, by_reboot=True)
            return
        problem = outcome.why_not_started(job, self._platform)
        if problem:
            now_s, attempt = self._timeline.now_s, job.attempt
            self._post(ev.StartFailed(at_s=now_s, job_id=job.id, attempt=attempt, problem=problem))
            return
        self.perform(to_do.start_of(job))

    def _report_freezing(self, there: Message) -> None:
        track = self._tracks.get(JobId(there["job"]))
        if track is not None and track.attempt == there["attempt"]:
            self._post_freezing(track.job_id, is_frozen=there["frozen"])

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
            self._report_freezing(there)
        deferred, self._deferred = self._deferred, {}
        for track, verb in deferred.items():
            self._spawn(self._hold(track, verb))

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
        self._oom_kills.look(at_s)
        sample = await self.reader.read(at_s)
        self._log_silent(sample)
        self._ends.look()
        if gone := sample.jobs.keys() - self._tracks.keys():
            # What was read of them may be of the job that their shim went on to.
            jobs = {i: counters for i, counters in sample.jobs.items() if i not in gone}
            sample = msgspec.structs.replace(sample, jobs=jobs)
        self._post(ev.SampleTaken(at_s=self._timeline.now_s, sample=sample))

    def _log_silent(self, sample: Sample) -> None:
        """Log once that a process does not answer, and that its job can be read again."""
        pids = {job_id: counters.silent_pid for job_id, counters in sample.jobs.items()}
        silent = {job_id: pid for job_id, pid in pids.items() if pid is not None}
        for job_id, pid in silent.items():
            if job_id not in self._silent:
                log.warning("event=process_silent job=%d pid=%d", job_id, pid)
        for job_id in self._silent.keys() - silent.keys():
            log.info("event=process_answers job=%d", job_id)
        self._silent = silent


def _caps_by_number(cap: Cap) -> dict[str, list[float | None]]:
    """As the keeper takes it, by the disk's device number.

    Raises:
        OSError: a disk is gone.
    """
    names = sorted(cap.read_bytes_per_s.keys() | cap.written_bytes_per_s.keys())
    return {
        Path(f"/sys/class/block/{name}/dev").read_text().strip(): [
            cap.read_bytes_per_s.get(name),
            cap.written_bytes_per_s.get(name),
        ]
        for name in names
    }
