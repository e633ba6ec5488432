"""What the program of a job with scratch directories reports (``staging``), read as a stranger's.

The file is the job's user's, who may write anything into it: it says something of that job only.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from iodaemon.core.scratch import Staged

_MOST_BYTES: Final = 64 << 10
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Step = Literal["in", "run", "out"]


class Failed(msgspec.Struct, frozen=True):
    """How a step failed: ``line``, and of a program that failed its exit."""

    line: str
    program: str | None = None
    code: int | None = None
    signal: int | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        if self.program is None:
            return self.line
        ended = f"ended with {self.code}"
        if self.code is None:
            ended = f"was killed by signal {self.signal}"
        return f"{self.program} {ended}" + (f": {self.line}" if self.line else "")


class StepEnd(msgspec.Struct, frozen=True):
    """How a step ended, and what it moved, bytes on disks."""

    failed: Failed | None
    read_bytes: _Count
    written_bytes: _Count


class _Line(msgspec.Struct, frozen=True, rename={"came": "in", "went": "out"}):
    step: Step | None = None
    came: StepEnd | None = None
    went: StepEnd | None = None
    problem: str | None = None
    status: int | None = None


class Report(msgspec.Struct, kw_only=True):
    """What was reported so far.

    Attributes:
        step: the last one that began. None: none did.
        came: how the prolog ended. None: it did not, or there is none.
        went: likewise the epilog.
        problem: why the command could not be executed; empty: it was.
        status: how the command ended, as wait(2) has it. None: it has not, or nobody waits for it.
    """

    step: Step | None = None
    came: StepEnd | None = None
    went: StepEnd | None = None
    problem: str = ""
    status: int | None = None

    @property
    def failure(self) -> tuple[str, Failed] | None:
        """The step that failed, and how."""
        if self.came is not None and self.came.failed is not None:
            return "in", self.came.failed
        if self.went is not None and self.went.failed is not None:
            return "out", self.went.failed
        if self.step == "out" and self.went is None:
            return "out", Failed("it was killed")
        return None

    def staged(self, *, has_input: bool, has_output: bool) -> Staged:
        """What was copied."""
        ends = [end for end in (self.came, self.went) if end is not None]
        return Staged(
            came_bytes=0 if self.came is None else self.came.written_bytes,
            went_bytes=0 if self.went is None else self.went.written_bytes,
            moved_bytes=sum(end.read_bytes + end.written_bytes for end in ends),
            has_come=_has_succeeded(self.came) if has_input else None,
            has_gone=_has_succeeded(self.went) if has_output else None,
        )


def _has_succeeded(end: StepEnd | None) -> bool:
    return end is not None and end.failed is None


def report_path(outputs: Path, job_id: int, attempt: int) -> Path:
    """Where an attempt's report is."""
    return outputs / f"{job_id}.{attempt}.report"


def read_report(path: Path) -> Report | None:
    """What an attempt has reported; None: nothing, or it cannot be read."""
    try:
        fd = os.open(path, _OPEN)
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
            word = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        report.step = word.step or report.step
        report.came = word.came or report.came
        report.went = word.went or report.went
        report.problem = word.problem or report.problem
        report.status = report.status if word.status is None else word.status
    return report
