"""What a shim's record and status mean to the controller: events, in the order of their times."""

from __future__ import annotations

import signal
import time
from typing import Final

from iodaemon.backend.linux.process import read_boot_id
from iodaemon.backend.linux.protocol import Message
from iodaemon.backend.linux.scratch import words_of
from iodaemon.core import event as ev
from iodaemon.core.job import Exit, IoTotals, Job, JobId, JobState
from iodaemon.core.platform import Platform
from iodaemon.core.scratch import DiskId, Staged
from iodaemon.units import format_bytes

_SINCE: Final = ("has_come", "has_gone")
"""What shims of earlier releases did not say of staging."""
_TOLD_BY_SIGTERM: Final = 128 + signal.SIGTERM
"""A shell's exit code when its last command died of it."""
_TOLD_BY_SIGKILL: Final = 128 + signal.SIGKILL


def began(job_id: JobId, attempt: int, record: Message, now_s: float) -> ev.JobStarted:
    """Its start.

    Args:
        job_id: the job.
        attempt: which start of it.
        record: the shim's record or status; both say when.
        now_s: now, on our timeline.
    """
    at_s = _moment(record, "started", now_s)
    return ev.JobStarted(at_s=at_s, job_id=job_id, attempt=attempt)


def ended(
    job_id: JobId, attempt: int, status: Message, now_s: float, *, oom_kills: int = 0
) -> list[ev.Event]:
    """Its whole life, or why it could never have one; arguments as for ``began``.

    ``oom_kills``: so many processes of the machine were killed for want of memory as it ended, one
    of which was probably its own.
    """
    at_s = _moment(status, "ended", now_s)
    if "never_ran" in status:
        return [
            ev.StartFailed(
                at_s=at_s,
                job_id=job_id,
                attempt=attempt,
                problem=_storable(status["never_ran"]),
                exit_code=status["exit_code"],
                holds=bool(status.get("holds")),
                disk=_disk(status),
            )
        ]
    if is_stopped_from_outside(status):
        note = "the machine, or the unit of all jobs, was stopped while it ran"
        return [
            began(job_id, attempt, status, at_s),
            lost(job_id, attempt, note, at_s, by_reboot=True),
        ]
    memory = status.get("memory_end")
    note = _storable(status.get("note", "")) if memory is None else _tell(memory)
    if (failed := status.get("stage_failed")) is not None:
        told = f"stage-{failed['step']}: {_storable(words_of(failed))}"
        note = f"{told}; {note}" if note else told
    if oom_kills:
        note = f"{note}; {_tell_probable(oom_kills)}" if note else _tell_probable(oom_kills)
    code, number = status["exit"]["code"], status["exit"]["signal"]
    return [
        began(job_id, attempt, status, at_s),
        ev.JobExited(
            at_s=at_s,
            job_id=job_id,
            attempt=attempt,
            exit=_exit(code, number, ran_out=memory is not None or oom_kills > 0),
            note=note,
            io=IoTotals(
                read_bytes=status["io"]["read_bytes"],
                written_bytes=status["io"]["written_bytes"],
                operations=status["io"].get("operations"),
            ),
            staged=_staged(status.get("staged")),
        ),
    ]


def _storable(text: str) -> str:
    """The text without halves of surrogate pairs, which the journal cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def _disk(status: Message) -> DiskId | None:
    path = status.get("disk")
    return None if path is None else DiskId(str(path))


def _staged(word: Message | None) -> Staged | None:
    if word is None:
        return None
    return Staged(
        came_bytes=word["came_bytes"],
        went_bytes=word["went_bytes"],
        moved_bytes=word["moved_bytes"],
        **{name: word[name] for name in _SINCE if name in word},
    )


def was_killed(status: Message) -> bool:
    """True when it, or the last command of a shell that it was, ended by SIGKILL."""
    if "never_ran" in status:
        return False
    code, number = status["exit"]["code"], status["exit"]["signal"]
    return bool(number == signal.SIGKILL or code == _TOLD_BY_SIGKILL)


def end_s(status: Message, now_s: float) -> float:
    """When it ended, on our timeline; now where that is not said."""
    return _moment(status, "ended", now_s)


def _exit(code: int | None, number: int | None, *, ran_out: bool) -> Exit:
    """How it ended; a job that went on without those that were killed, and is content, may."""
    return Exit(code=code, signal=number, out_of_memory=ran_out and code != 0)


def _tell_probable(kills: int) -> str:
    many = "1 process" if kills == 1 else f"{kills} processes"
    return (
        f"probably killed because memory ran out: the kernel killed {many} of this machine for "
        "that as it ended, and iodaemon sent it no signal"
    )


def _tell(memory: Message) -> str:
    """What the kernel killed it, or a part of it, for; ``fence.find_memory_end``."""
    limit, nodes = memory["limit_bytes"], memory["nodes"]
    if memory["at_limit"] and limit is not None:
        why = f"its limit of {format_bytes(limit)} (--mem) was reached"
    elif nodes:
        why = f"no memory was left on NUMA node {nodes}, which is its socket's"
    else:
        why = "the machine had no memory left"
    many = "1 process was" if memory["killed"] == 1 else f"{memory['killed']} processes were"
    return f"{many} killed: {why}"


def _moment(record: Message, word: str, now_s: float) -> float:
    """When it started or ended, on our timeline, which does not step when the wall clock is set.

    Within a boot by the monotonic clock that all processes share; of another boot only the wall
    clock's word is left. Now where the record does not say.
    """
    if f"{word}_s" not in record:
        return now_s
    if record.get("boot_id") != read_boot_id() or f"{word}_monotonic_s" not in record:
        return min(float(record[f"{word}_s"]), now_s)
    return now_s - max(0.0, time.monotonic() - float(record[f"{word}_monotonic_s"]))


def is_stopped_from_outside(status: Message) -> bool:
    """True when it died of what systemd sends to all that it stops, not by its own doing."""
    code, number = status["exit"]["code"], status["exit"]["signal"]
    died = number in (signal.SIGTERM, signal.SIGKILL) or code == _TOLD_BY_SIGTERM
    return bool(status.get("stopped_from_outside")) and died


def is_of_the_machine(status: Message) -> bool:
    """True when it never ran for a reason that may pass, and that other jobs would meet too."""
    if "never_ran" not in status or status.get("of_user"):
        return False
    return status["exit_code"] is None


def orphaned(
    job_id: JobId,
    attempt: int,
    end: Exit,
    totals: IoTotals,
    now_s: float,
    *,
    memory: Message | None = None,
) -> ev.JobExited:
    """The end of a job whose shim was killed; an empty ``end`` is one nobody knows."""
    known = "the kernel told its exit" if end != Exit() else "its exit is unknown"
    if memory is not None:
        known = _tell(memory)
    return ev.JobExited(
        at_s=now_s,
        job_id=job_id,
        attempt=attempt,
        exit=_exit(end.code, end.signal, ran_out=memory is not None),
        io=totals,
        note=f"its shim was killed; {known}",
        is_bereaved=True,
    )


def lost(job_id: JobId, attempt: int, note: str, now_s: float, *, by_reboot: bool) -> ev.JobExited:
    """The end of a job of which nothing is left."""
    return ev.JobExited(
        at_s=now_s,
        job_id=job_id,
        attempt=attempt,
        exit=Exit(),
        io=IoTotals(),
        note=note,
        by_reboot=by_reboot,
    )


def why_not_started(job: Job, platform: Platform) -> str:
    """Why a start that was written down and never asked for is not to be; empty: it is."""
    if job.state is JobState.STOPPING or job.partition is None:
        return "cancelled before it was started"
    if not platform.has_slots(job.partition, job.slots):
        return "the CPUs it was to have are there no longer"
    return ""
