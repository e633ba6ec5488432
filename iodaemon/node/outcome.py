"""Events from reports: those of the supervisor (``supervisor.protocol``), and those of the program
in which a job with scratch directories runs (``staging``).

The job's user may write anything into the latter, so they count for that job only.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from iodaemon.core import event as ev
from iodaemon.core.job import Exit, IoTotals, Job, JobId, JobState, ScratchRequest, Staged
from iodaemon.core.platform import Platform
from iodaemon.core.sample import JobCounters
from iodaemon.node.sampler.proc_files import find_count, known, read_file
from iodaemon.supervisor.attempts import ENDS
from iodaemon.supervisor.ledger import Key, Ledger
from iodaemon.supervisor.protocol import Message
from iodaemon.units import format_bytes

_NOT_RUNNABLE: Final = 126
_TOLD_BY_SIGKILL: Final = 128 + signal.SIGKILL
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OF_THE_MACHINE: Final = frozenset({"system", "no_process", "ledger_full", "died"})
"""Codes of failed starts that other jobs would meet too, and that may pass."""
LOST: Final = "how it ended is not known: what kept it was killed, or its records were removed"


def began(key: Key, report: Message, now_s: float) -> ev.JobStarted:
    """The start of a job; ``now_s`` is on the daemon's timeline."""
    at_s = moment(report.get("started_us"), now_s)
    return ev.JobStarted(at_s=at_s, job_id=JobId(key.job), attempt=key.attempt)


def moment(at_us: int | None, now_s: float) -> float:
    """The time on the daemon's timeline of a time of CLOCK_MONOTONIC; now for None."""
    return now_s if at_us is None else now_s - max(0.0, time.monotonic() - at_us / 1e6)


def failed(key: Key, report: Message, now_s: float) -> ev.StartFailed:
    code, is_lasting = report.get("code"), bool(report.get("is_lasting"))
    return ev.StartFailed(
        at_s=now_s,
        job_id=JobId(key.job),
        attempt=key.attempt,
        problem=_storable(str(report.get("problem", ""))),
        exit_code=_NOT_RUNNABLE if is_lasting else None,
        holds=code == "no_account" and not is_lasting,
    )


def ended(
    key: Key,
    report: Message,
    now_s: float,
    *,
    staging: Report | None,
    request: ScratchRequest | None,
    seen: JobCounters,
    oom_kills: int = 0,
) -> list[ev.Event]:
    """The start and the end of a job.

    Args:
        staging: what its prolog and epilog reported, if it has space.
        request: the space that it had.
        seen: the last sample.
        oom_kills: how many processes of the machine were killed for memory as it ended; one of
            them was probably its own.
    """
    at_s = moment(report.get("ended_us"), now_s)
    start = began(key, report, at_s)
    if report.get("from_outside"):
        note = "the machine, or the unit of all jobs, was stopped while it ran"
        return [start, lost(key, note, at_s, report=report, by_reboot=True)]
    notes = [] if staging is None else [staging.problem]
    if staging is not None and (failure := staging.failure) is not None:
        notes.append(f"stage-{failure[0]}: {failure[1]}")
    memory = report.get("memory")
    notes.append(str(report.get("problem", "")) if memory is None else _tell(memory))
    if oom_kills:
        many = "1 process" if oom_kills == 1 else f"{oom_kills} processes"
        notes.append(
            f"probably killed because memory ran out: the kernel killed {many} of this machine for "
            "that as it ended, and iodaemon sent it no signal"
        )
    how = report.get("exit", {})
    code = how.get("code")  # a job that went on without those that were killed, and is content, may
    ran_out = bool(memory or oom_kills) and code != 0
    return [
        start,
        ev.JobExited(
            at_s=at_s,
            job_id=JobId(key.job),
            attempt=key.attempt,
            exit=Exit(code=code, signal=how.get("signal"), out_of_memory=ran_out),
            note=_storable("; ".join(filter(None, notes))),
            io=_not_below(seen, totals_of(report)),
            staged=None if staging is None or request is None else staging.staged(request),
        ),
    ]


def totals_of(report: Message) -> IoTotals:
    """Its I/O without what was deleted before it reached the disk."""
    use = report.get("use", {})
    return IoTotals(
        read_bytes=use.get("read_bytes", 0),
        written_bytes=max(0, use.get("written_bytes", 0) - use.get("cancelled_bytes", 0)),
        operations=use.get("calls"),
        at_least=not report.get("whole", True),
    )


def _not_below(seen: JobCounters, totals: IoTotals) -> IoTotals:
    """Totals that never fall: if the kernel reaped children itself, ``totals`` may be too small.

    Calls are never taken back, so a larger number of them in ``seen`` proves it.
    """
    if not totals.at_least and (seen.operations or 0) <= (totals.operations or 0):
        return totals
    names = ("read_bytes", "written_bytes", "operations")
    highest = {name: max(getattr(seen, name) or 0, getattr(totals, name) or 0) for name in names}
    return IoTotals(**highest, at_least=True)


def lost(
    key: Key,
    note: str,
    now_s: float,
    *,
    report: Message | None = None,
    by_reboot: bool = False,
) -> ev.JobExited:
    """The end of a job whose exit status is unknown."""
    return ev.JobExited(
        at_s=now_s,
        job_id=JobId(key.job),
        attempt=key.attempt,
        exit=Exit(),
        io=IoTotals() if report is None else totals_of(report),
        note=note,
        by_reboot=by_reboot,
    )


def was_killed(report: Message) -> bool:
    """Whether the job, or the last command of its shell, ended by SIGKILL."""
    how = report.get("exit", {})
    return bool(how.get("signal") == signal.SIGKILL or how.get("code") == _TOLD_BY_SIGKILL)


def why_not_started(job: Job, platform: Platform) -> str:
    """Why a journaled start that never happened is not repeated; empty if it is."""
    if job.state is JobState.STOPPING or job.partition is None:
        return "cancelled before it was started"
    if not platform.has_slots(job.partition, job.slots):
        return "the CPUs it was to have are there no longer"
    return ""


def _storable(text: str) -> str:
    """The text without halves of surrogate pairs, which the journal cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def _tell(memory: Message) -> str:
    limit, nodes = memory.get("limit_bytes"), memory.get("nodes")
    if memory.get("at_limit") and limit is not None:
        why = f"its limit of {format_bytes(limit)} (--mem) was reached"
    elif nodes:
        why = f"no memory was left on NUMA node {nodes}, which is its socket's"
    else:
        why = "the machine had no memory left"
    killed = memory.get("killed")
    many = "1 process was" if killed == 1 else f"{killed} processes were"
    return f"{many} killed: {why}"


def find_ends(outputs: Path) -> Mapping[str, Message]:
    """How attempts ended, by key, as the supervisor stored it at the last shutdown."""
    try:
        return msgspec.json.decode((outputs.parent / ENDS).read_bytes(), type=dict[str, Message])
    except (OSError, msgspec.DecodeError):
        return {}


def read_ledger(path: Path) -> Ledger | None:
    """The ledger at this path, or None."""
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    try:
        return Ledger(fd)
    finally:
        os.close(fd)


# -- what the job's own program reports ------------------------------------------------------------

_MOST_BYTES: Final = 64 << 10
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Step = Literal["in", "run", "out"]


class StepEnd(msgspec.Struct, frozen=True):
    """Why a step failed (None: it did not), and the bytes that it moved on disks."""

    failed: str | None
    read_bytes: _Count
    written_bytes: _Count


class Report(msgspec.Struct, kw_only=True, rename={"came": "in", "went": "out"}):
    """What was reported so far; what was not is None.

    Attributes:
        step: the last step that began.
        came: the end of the prolog.
        went: the end of the epilog.
        problem: why the command could not be executed.
        status: the command's wait(2) status, if the program waits for it.
    """

    step: Step | None = None
    came: StepEnd | None = None
    went: StepEnd | None = None
    problem: str | None = None
    status: int | None = None

    @property
    def failure(self) -> tuple[str, str] | None:
        """The step that failed, and a line about it."""
        if self.came is not None and self.came.failed is not None:
            return "in", self.came.failed
        if self.went is not None and self.went.failed is not None:
            return "out", self.went.failed
        if self.step == "out" and self.went is None:
            return "out", "it was killed"
        return None

    def staged(self, request: ScratchRequest) -> Staged | None:
        """What was copied, or None if nothing was to be."""
        if request.input_path is None and request.output_path is None:
            return None
        come = self.came or StepEnd("it did not end", 0, 0)
        gone = self.went or StepEnd("it did not end", 0, 0)
        return Staged(
            came_bytes=come.written_bytes,
            went_bytes=gone.written_bytes,
            moved_bytes=sum(end.read_bytes + end.written_bytes for end in (come, gone)),
            has_come=None if request.input_path is None else come.failed is None,
            has_gone=None if request.output_path is None else gone.failed is None,
        )


def read_report(outputs: Path, job_id: int, attempt: int) -> Report | None:
    """The report of an attempt, or None if there is no readable one."""
    try:
        fd = os.open(outputs / f"{job_id}.{attempt}.report", _OPEN)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = os.read(fd, _MOST_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    report = Report()
    for line in data.split(b"\n"):
        try:
            said = msgspec.json.decode(line, type=Report)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for name in Report.__struct_fields__:
            if (value := getattr(said, name)) is not None:
                setattr(report, name, value)
    return report


# -- processes killed for memory -------------------------------------------------------------------

_KILLED_WITHIN_S: Final = 10.0
"""From the kill to the end of the process, at most: what it had is given back first, about 10 GB/s.
"""
_APART_S: Final = 5.0
"""Between two readings that are kept; one takes 0.05 to 0.3 ms."""
_KEPT_COUNTS: Final = 8
"""Readings: an end that is told half a minute late is placed as well."""


def count_oom_kills(path: str = "/proc/vmstat") -> int | None:
    """How many processes of the machine were killed for memory; None if unknown."""
    return known(path, lambda text: find_count(text, b"oom_kill"), read_file)


class OomKills:
    """Remembers how many processes of the machine were killed for memory, and when.

    The kernel does not name them: together with a SIGKILL that the daemon did not send they make
    lack of memory the probable cause.
    """

    def __init__(self, read: Callable[[], int | None] = count_oom_kills) -> None:
        self._read = read
        self._readings: deque[tuple[float, int]] = deque(maxlen=_KEPT_COUNTS)

    def look(self, at_s: float) -> None:
        """Read the count, unless it was read just now."""
        if self._readings and at_s - self._readings[-1][0] < _APART_S:
            return
        if (count := self._read()) is not None:
            self._readings.append((at_s, count))

    def count(self, ended_s: float) -> int:
        """How many were killed from shortly before this time until now; 0 if unknown."""
        before = [kills for at_s, kills in self._readings if at_s <= ended_s - _KILLED_WITHIN_S]
        first = [kills for at_s, kills in self._readings if at_s <= ended_s]
        now = self._read()
        if now is None or not first:
            return 0
        return max(0, now - (before[-1] if before else first[0]))
