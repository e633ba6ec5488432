"""The backend for a real server: the supervisor runs the jobs, the sampler reads the counters.

``perform`` sends decisions to the supervisor as wishes; its reports become events. After a lost
connection ``sync`` repeats what still counts, so no wish is sent twice and no answer is awaited.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, assert_never, get_args

from iodaemon.core import event as ev
from iodaemon.core.backend import Timeline
from iodaemon.core.decision import (
    Cap,
    Decision,
    Free,
    Grant,
    Kill,
    Reject,
    Resume,
    Start,
    Stop,
    Suspend,
    Throttle,
    start_of,
)
from iodaemon.core.job import Job, JobId, JobState
from iodaemon.core.platform import Platform
from iodaemon.node import outcome, staging
from iodaemon.node.attempt import Attempt, Launch
from iodaemon.node.devices import find_number
from iodaemon.node.outcome import OomKills, Report, find_ends, read_report
from iodaemon.node.sampler.client import SamplerClient
from iodaemon.node.sampler.proc_files import known
from iodaemon.node.scratch import Scratch, ScratchError
from iodaemon.node.supervisor_client import SupervisorClient, encode_wish, start_task
from iodaemon.supervisor import anchor
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.ledger import Key, parse_key
from iodaemon.supervisor.protocol import LONGEST_LINE, Message

log = logging.getLogger(__name__)

_BLOCKED_S: Final = 5.0
"""Starts pause this long after one failed for a reason of the machine."""
_KILL_PATIENCE_S: Final = 5.0
"""This long after SIGKILL a reason names the processes that are left."""
_START_HANGS: Final = (
    "its start hangs: its output, error or working directory is on a server that does not answer"
)
_SYNC_WITHIN_S: Final = 20.0
_READING_WITHIN_S: Final = 1.0
"""How long ``close`` waits for a reading, which takes milliseconds."""
_BEAT_WITHIN_S: Final = 0.5
"""How long a sample waits for the use of ended processes."""
_OVER: Final = ("ended", "lost", "failed")
STRANGER: Final = "it runs and the journal does not know it; it is left alone, end it by hand"


class LinuxNode:
    """One Linux server. Use from one event loop; ``open`` brings it up.

    Args:
        post: takes every event; called in the event loop.
        launch_of: returns what to run for a start (``daemon.launching``).
        job_of: returns the job as it is now, or None if it is forgotten.
        supervisor: how to start the supervisor, and where it listens.
    """

    offers: frozenset[type] = frozenset(get_args(Decision))
    """After ``open``, without ``Throttle`` if jobs have no ``io.max``."""

    def __init__(
        self,
        *,
        platform: Platform,
        timeline: Timeline,
        post: Callable[[ev.Event], None],
        launch_of: Callable[[Start], Launch],
        job_of: Callable[[JobId], Job | None],
        supervisor: anchor.Config,
        state_dir: Path,
    ) -> None:
        assert supervisor.outputs is not None
        self.platform = platform
        self._timeline = timeline
        self._post = post
        self._launch_of = launch_of
        self._job_of = job_of
        self.outputs = Path(supervisor.outputs)
        self._attempts: dict[JobId, Attempt] = {}
        self._over: defaultdict[JobId, set[Key]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts_problem = ""
        self._synced: asyncio.Future[None] | None = None
        self._same_boot = self._same_ledger = True
        self._ledger = ""
        self.sampler = SamplerClient(
            lambda address: self.client.wish("sampler", address=address),
            platform.devices,
            platform.partitions,
        )
        self._oom_kills = OomKills()
        self._reading: asyncio.Future[None] | None = None
        self.samples_skipped = 0
        self.client = SupervisorClient(
            supervisor,
            state_dir / "supervisor.log",
            on_connected=self._sync,
            on_message=self._on_message,
            on_used=self._on_used,
            on_trouble=self._on_trouble,
        )
        self.scratch = Scratch(self.client, state_dir, self.outputs, job_of, timeline, post)

    async def open(self) -> None:
        """Reach or start the supervisor; raises BackendError if none can be had."""
        await self.client.open()
        if "cap" not in self.client.controls:
            self.offers -= {Throttle}

    async def close(self) -> str:
        """Close all connections. Jobs run on, suspended ones too.

        Returns:
            A sentence about jobs that may stay suspended, or the empty string.
        """
        self.scratch.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        is_heard = await self.client.close()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_READING_WITHIN_S)
            self._reading.cancel()
        self.sampler.close()
        still = sorted(job_id for job_id, each in self._attempts.items() if each.wants_still)
        if is_heard or not still:
            return ""
        return f"jobs {' '.join(map(str, still))} may stand still: {self.client.why_silent()}"

    def pids(self, job_id: JobId) -> list[int]:
        """The job's processes; empty if it does not run or nothing can be read now."""
        attempt = self._attempts.get(job_id)
        return [] if attempt is None else attempt.pids()

    def job_of(self, pid: int) -> JobId | None:
        """The job that a process belongs to, or None if there is none or it is unknown."""
        text = known(f"/proc/{pid}/cgroup", bytes) or b""
        names = set(re.split(r"[/\n]", text.decode(errors="replace")))
        for attempt in self._attempts.values():
            may_be = attempt.cgroup is None or str(attempt.key) in names
            if may_be and pid in attempt.pids():
                return attempt.job_id
        return None

    # -- decisions -------------------------------------------------------------------------------

    def perform(self, decision: Decision) -> None:
        """Begin to carry out the decision; an event reports the result."""
        match decision:
            case Start():
                self._let_run(decision)
            case Free():
                self.scratch.free(decision)
            case Reject() | Grant():
                pass
            case _:
                attempt = self._attempts.get(decision.job_id)
                if attempt is not None:
                    self._act(attempt, decision)

    def _act(self, attempt: Attempt, decision: Suspend | Resume | Stop | Kill | Throttle) -> None:
        match decision:
            case Suspend():
                self._hold(attempt, is_still=True)
            case Resume():
                self._hold(attempt, is_still=False)
            case Stop():
                self._tell(attempt, signal.SIGTERM)
            case Kill():
                self._tell(attempt, signal.SIGKILL)
            case Throttle():
                self._cap(attempt, decision.cap)
            case _:
                assert_never(decision)

    def describe_stop(self, job_id: JobId) -> str:
        """See ``Attempt.describe_stop``."""
        attempt = self._attempts.get(job_id)
        return "" if attempt is None else attempt.describe_stop()

    def prepare(self, starts: Iterable[Start]) -> None:
        """Prepare processes while the journal stores the starts. Starts with directories wait until
        they are durable: a directory that nobody knows of is never removed.
        """
        for start in starts:
            if not start.shares:
                self._prepare(self._begin(start), dict(self._launch_of(start)))
        self.client.flush()

    def take_back(self, start: Start) -> None:
        attempt = self._find(Key(start.job_id, start.attempt))
        if attempt is not None:
            self.client.wish("kill", key=str(attempt.key))
            self._drop(attempt)

    def _begin(self, start: Start) -> Attempt:
        attempt = Attempt(Key(start.job_id, start.attempt), start.shares)
        self._attempts[start.job_id] = attempt
        return attempt

    def _let_run(self, start: Start) -> None:
        key = Key(start.job_id, start.attempt)
        if key in self._over.get(start.job_id, ()):
            return  # it has failed meanwhile
        attempt = self._find(key) or self._begin(start)
        attempt.may_run = True
        if attempt.launch is not None:
            self.client.wish("run", key=str(attempt.key))
            reach("node.let_run")
        elif start.shares:
            self._spawn(self._make_space(attempt, start))
        else:
            self._prepare(attempt, dict(self._launch_of(start)))

    def settled(self, jobs: Iterable[Job]) -> None:
        """Forget the ended attempts of these jobs, whose records are durable."""
        for job in jobs:
            keys = self._over.get(job.id)
            if not keys:
                continue
            for key in [key for key in keys if not job.is_live or key.attempt < job.attempt]:
                keys.discard(key)
                self.client.wish("forget", key=str(key))
            if not keys:
                del self._over[job.id]

    def discard_output(self, job_id: JobId, attempt: int) -> None:
        """Remove the output and the report of an attempt."""
        self._spawn(self._discard(Key(job_id, attempt)))

    async def _discard(self, key: Key) -> None:
        answer = await self.client.ask_scratch(do="discard", key=str(key))
        if not answer.get("done"):
            log.warning("event=not_discarded attempt=%s problem=%r", key, answer.get("problem"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make_space(self, attempt: Attempt, start: Start) -> None:
        launch = dict(self._launch_of(start))
        scratch = launch.pop("scratch")
        try:
            uid, numbers = launch["uid"], scratch["filesystems"]
            await self.scratch.make(attempt.key, uid, attempt.shares, numbers)
        except ScratchError as error:
            self._fail_start(attempt, str(error), disk=error.disk, holds=error.disk is None)
            return
        if self._attempts.get(attempt.job_id) is attempt:
            self._prepare(attempt, self._with_scratch(attempt, launch, scratch))

    def _with_scratch(self, attempt: Attempt, launch: Launch, scratch: Launch) -> dict[str, Any]:
        paths = self.scratch.paths(attempt.key, attempt.shares)
        numbered = {f"IOD_SCRATCH_{number}": path for number, path in enumerate(paths)}
        told = {"IOD_SCRATCH": ":".join(paths), **numbered}
        options = {name: scratch[name] for name in ("input", "output", "on")}
        command = staging.command_of(launch["command"], paths=paths, **options)
        environment = {**launch["environment"], **told}
        return {**launch, "command": command, "environment": environment, "report": True}

    def _prepare(self, attempt: Attempt, launch: Launch) -> None:
        attempt.launch = launch
        line = encode_wish("prepare", key=str(attempt.key), launch=launch)
        if len(line) > LONGEST_LINE:
            problem = "command and environment are longer than what can be passed on"
            self._fail_start(attempt, f"{problem}; put data into a file", exit_code=126)
            return
        self.client.send(line)
        reach("node.prepared")
        if attempt.may_run:
            self.client.wish("run", key=str(attempt.key))
        self._tell_again(attempt)

    def _fail_start(self, attempt: Attempt, problem: str, **more: Any) -> None:
        """Post that it never ran; ``more`` are fields of ``StartFailed``."""
        self._drop(attempt)
        event = ev.StartFailed(
            at_s=self._timeline.now_s,
            job_id=attempt.job_id,
            attempt=attempt.key.attempt,
            problem=problem,
            **more,
        )
        self._post(event)

    def _hold(self, attempt: Attempt, *, is_still: bool) -> None:
        attempt.wants_still = is_still
        self.client.wish("freeze" if is_still else "thaw", key=str(attempt.key))
        if self.client.problem:
            self._delay(attempt, self.client.problem)

    def _cap(self, attempt: Attempt, cap: Cap | None) -> None:
        read = {} if cap is None else cap.read_bytes_per_s
        written = {} if cap is None else cap.written_bytes_per_s
        attempt.caps = {}
        for name in sorted(read.keys() | written.keys()):
            if not (number := find_number(name)):
                self._fail_cap(attempt, f"disk {name} is gone")
                return
            rates = {"rbps": read.get(name), "wbps": written.get(name)}
            attempt.caps[number] = " ".join(
                f"{word}={'max' if rate is None else max(1, int(rate))}"
                for word, rate in rates.items()
            )
        self.client.wish("cap", key=str(attempt.key), io=attempt.caps)

    def _fail_cap(self, attempt: Attempt, problem: str) -> None:
        log.warning("event=cap_failed job=%d problem=%r", attempt.job_id, problem)
        attempt.caps = {}
        at_s = self._timeline.now_s
        self._post(ev.CapFailed(at_s=at_s, job_id=attempt.job_id, problem=problem))

    def _tell(self, attempt: Attempt, number: int) -> None:
        """End it. SIGTERM waits until its command runs: before that nothing would act on it."""
        if attempt.launch is not None and not attempt.may_run:
            return  # it was the attempt before: this one's start is not written down yet
        attempt.told, attempt.wants_still = number, False
        self._tell_again(attempt)
        if self.client.problem:
            self._delay(attempt, self.client.problem)
        if number == signal.SIGKILL:
            late_s = self._timeline.now_s + _KILL_PATIENCE_S
            self._timeline.call_at(late_s, lambda: self._look_at_killed(attempt))

    def _tell_again(self, attempt: Attempt) -> None:
        key = str(attempt.key)
        if attempt.told == signal.SIGKILL:
            self.client.wish("kill", key=key)
        elif attempt.told is not None and attempt.runs:
            self.client.wish("signal", key=key, number=attempt.told)
            self.client.wish("thaw", key=key)
            self.client.wish("signal", key=key, number=int(signal.SIGCONT))  # it may have stopped

    def _look_at_killed(self, attempt: Attempt) -> None:
        if self._attempts.get(attempt.job_id) is attempt and not self.client.problem:
            self._delay(attempt, attempt.describe_left() if attempt.runs else _START_HANGS)

    def _delay(self, attempt: Attempt, problem: str) -> None:
        now_s = self._timeline.now_s
        self._post(ev.StopDelayed(at_s=now_s, job_id=attempt.job_id, problem=problem))

    def _tell_block(self, starts_problem: str | None = None) -> None:
        """Post why no job starts. ``starts_problem`` sets or clears a reason of the machine."""
        if starts_problem is not None:
            self._starts_problem = starts_problem
        problem = self.client.problem or self._starts_problem
        self._post(ev.StartsBlocked(at_s=self._timeline.now_s, problem=problem))

    # -- what the supervisor says ----------------------------------------------------------------

    def _on_trouble(self, problem: str) -> None:
        self._tell_block()
        for attempt in self._attempts.values() if problem else ():
            if attempt.told is not None or attempt.wants_still is not bool(attempt.is_frozen):
                self._delay(attempt, problem)

    def _on_used(self, used: Message) -> None:
        for text, use in used.items():
            if (attempt := self._find(parse_key(text))) is not None:
                attempt.used = use
                self.sampler.take_use(attempt.key, use)

    def _find(self, key: Key) -> Attempt | None:
        attempt = self._attempts.get(JobId(key.job))
        return attempt if attempt is not None and attempt.key == key else None

    def _on_message(self, message: Message) -> None:
        if "synced" in message:
            if self._synced is not None and not self._synced.done():
                self._synced.set_result(None)
        elif "protected" in message:
            log.warning("event=unprotected text=%r", "the anchor died; see 'iod doctor'")
        elif "error" in message:
            self._on_refusal(message)
        elif "key" in message:
            key = parse_key(message["key"])
            if (attempt := self._find(key)) is not None:
                self._on_report(attempt, message)
            elif self._synced is None:
                pass  # what the journal has is not known here yet
            elif message["state"] == "running":
                log.warning(
                    "event=stranger attempt=%s pid=%s problem=%r", key, message["pid"], STRANGER
                )
            elif message["state"] in _OVER and key not in self._over.get(JobId(key.job), ()):
                self.client.wish("forget", key=str(key))

    def _on_refusal(self, message: Message) -> None:
        wish, problem = message.get("wish"), str(message["error"])
        try:
            key = parse_key(message.get("key"))
        except ValueError:
            log.warning("event=refused wish=%s problem=%r", wish, problem)
            return
        attempt = self._find(key)
        if attempt is None:
            return
        if wish == "prepare":
            self._fail_start(attempt, problem, exit_code=126)
        elif wish == "cap":
            if attempt.caps:  # to end them fails where the disk is gone
                self._fail_cap(attempt, problem)
        elif wish in ("freeze", "thaw"):
            event = ev.SuspendFailed(
                at_s=self._timeline.now_s,
                job_id=attempt.job_id,
                frozen=wish == "thaw",
                problem=problem,
            )
            self._post(event)
        else:
            log.warning("event=refused attempt=%s wish=%s problem=%r", key, wish, problem)
            self._delay(attempt, problem)

    def _on_report(self, attempt: Attempt, report: Message) -> None:
        adopted, attempt.adopted = attempt.adopted, None
        match report["state"]:
            case "running":
                self._on_running(attempt, report, adopted)
            case "ended":
                self._end(attempt, report)
            case "lost":
                self._lose(attempt, outcome.LOST, report)
            case "failed":
                self._on_failed(attempt, report)
            case "absent":
                self._on_absent(attempt, adopted)
            case "prepared":
                if attempt.may_run:
                    self.client.wish("run", key=str(attempt.key))

    def _on_running(self, attempt: Attempt, report: Message, adopted: Job | None) -> None:
        key, is_new = attempt.key, not attempt.runs
        if is_new:
            attempt.begin(report, self.client.jobs_cgroup)
            self.sampler.add(key, attempt.holder, is_adopted=adopted is not None)
            if attempt.used is not None:
                self.sampler.take_use(key, attempt.used)
            self._post(outcome.began(key, report, self._timeline.now_s))
            if attempt.shares:
                self.scratch.follow(key, attempt.shares)
            self._tell_again(attempt)
        self._on_freezing(attempt, is_frozen=report["frozen"])
        if adopted is not None and adopted.state is JobState.STOPPING:
            self._tell(attempt, signal.SIGTERM)  # it may not have been asked yet

    def _on_freezing(self, attempt: Attempt, *, is_frozen: bool) -> None:
        """Post a change; what somebody else froze is found by ``describe_stop``."""
        if is_frozen == attempt.is_frozen or (is_frozen and not attempt.wants_still):
            return
        attempt.is_frozen = is_frozen
        event = ev.JobSuspended if is_frozen else ev.JobResumed
        self._post(event(at_s=self._timeline.now_s, job_id=attempt.job_id))

    def _on_failed(self, attempt: Attempt, report: Message) -> None:
        self._drop(attempt)
        if report.get("code") in outcome.OF_THE_MACHINE and not report.get("is_lasting"):
            self._tell_block(str(report.get("problem")))
            until_s = self._timeline.now_s + _BLOCKED_S
            self._timeline.call_at(until_s, lambda: self._tell_block(""))
        self._post(outcome.failed(attempt.key, report, self._timeline.now_s))

    def _on_absent(self, attempt: Attempt, adopted: Job | None) -> None:
        """The supervisor does not know it: it never ran, unless the records are new."""
        if attempt.launch is not None:
            self._prepare(attempt, attempt.launch)
        elif adopted is None:
            if attempt.runs:
                self._lose(attempt, outcome.LOST)
        elif not self._same_boot and (end := find_ends(self.outputs).get(str(attempt.key))):
            self._end(attempt, end)  # the machine was shut down in order
        elif not self._same_boot:
            is_starting = adopted.state is JobState.STARTING
            when = "while it was starting" if is_starting else "while it ran"
            self._lose(attempt, f"the machine was restarted {when}", by_reboot=True)
        elif adopted.started_s is not None or not self._same_ledger:
            self._lose(attempt, outcome.LOST)
        elif problem := outcome.why_not_started(adopted, self.platform):
            self._fail_start(attempt, problem)
        else:
            self.perform(start_of(adopted))

    def _end(self, attempt: Attempt, report: Message) -> None:
        if not attempt.runs and "problem" in report:  # it was not executed
            code = report.get("exit", {}).get("code")
            self._fail_start(attempt, str(report["problem"]), exit_code=code)
            return
        seen = self.sampler.counters(attempt.job_id)
        self._drop(attempt)
        job = self._job_of(attempt.job_id)
        request = None if job is None or not attempt.shares else job.spec.scratch
        reported = None
        if request is not None:
            reported = read_report(self.outputs, *attempt.key) or Report()
        events = outcome.ended(
            attempt.key,
            report,
            self._timeline.now_s,
            staging=reported,
            request=request,
            seen=seen,
            oom_kills=self._count_oom_kills(attempt, report),
        )
        for event in events:
            self._post(event)

    def _count_oom_kills(self, attempt: Attempt, report: Message) -> int:
        """How many processes of the machine the kernel killed for memory as this job was killed.

        0 if the report tells it (from the job's cgroup), or if the job was told to end.
        """
        is_known = "memory" in self.client.controls or attempt.told is not None
        if is_known or not outcome.was_killed(report):
            return 0
        return self._oom_kills.count(outcome.moment(report.get("ended_us"), self._timeline.now_s))

    def _lose(
        self,
        attempt: Attempt,
        note: str,
        report: Message | None = None,
        *,
        by_reboot: bool = False,
    ) -> None:
        self._drop(attempt)
        now_s = self._timeline.now_s
        self._post(outcome.lost(attempt.key, note, now_s, report=report, by_reboot=by_reboot))

    def _drop(self, attempt: Attempt) -> None:
        if self._attempts.get(attempt.job_id) is attempt:
            del self._attempts[attempt.job_id]
        self._over[attempt.job_id].add(attempt.key)
        self.sampler.remove(attempt.job_id)

    # -- after a restart, of the daemon or of the supervisor -------------------------------------

    async def adopt(self, jobs: Iterable[Job], *, same_boot: bool, ledger: str) -> None:
        """Post what became of the live jobs of the journal (the restart table).

        Args:
            same_boot: False if the machine was restarted since the journal was written.
            ledger: the identity of the supervisor's records then, or empty if unknown.
        """
        self._same_boot = same_boot
        self._same_ledger = ledger in ("", self.client.hello.get("ledger"))
        for job in jobs:
            attempt = Attempt(Key(job.id, job.attempt), job.shares, adopted=job)
            attempt.wants_still = job.user_hold
            self._attempts[job.id] = attempt
        self._synced = asyncio.get_running_loop().create_future()
        self._sync()
        await asyncio.wait({self._synced}, timeout=_SYNC_WITHIN_S)

    def _sync(self) -> None:
        """Ask for a report of each attempt, and repeat wishes that may have been lost."""
        ledger = str(self.client.hello["ledger"])
        is_same, self._ledger = self._ledger in ("", ledger), ledger
        for attempt in list(self._attempts.values()):
            if not is_same and attempt.may_run and not attempt.runs:
                self._lose(attempt, outcome.LOST)  # the records that knew it are gone
        attempts = list(self._attempts.values())
        keys = [[str(each.key), "freeze" if each.wants_still else "run"] for each in attempts]
        keys += [[str(key), "run"] for over in self._over.values() for key in over]
        self.client.wish("sync", keys=keys)
        self.sampler.ask_again()
        for attempt in attempts:
            self._tell_again(attempt)
            if attempt.caps:
                self.client.wish("cap", key=str(attempt.key), io=attempt.caps)

    # -- samples ---------------------------------------------------------------------------------

    def sample(self) -> None:
        """Read all counters; ``SampleTaken`` has them. Skipped during an unfinished reading."""
        if self._reading is not None and not self._reading.done():
            self.samples_skipped += 1
            return
        self._reading = asyncio.ensure_future(self._sample())

    async def _sample(self) -> None:
        # Use of reaped processes first: what ends in between is missing once, never counted twice.
        at_s = self._timeline.now_s
        self._oom_kills.look(at_s)
        await self.client.beat(_BEAT_WITHIN_S)
        sample = await self.sampler.read(at_s)
        self._post(ev.SampleTaken(at_s=self._timeline.now_s, sample=sample))
