"""What goes into the journal in one piece, and what comes out of it at a restart."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from iodaemon.core.decision import Lesson, Transition
from iodaemon.core.drain import Drain
from iodaemon.core.job import Job, JobId, JobKind, JobState
from iodaemon.core.rule import Mode
from iodaemon.core.sample import Sample
from iodaemon.core.trace import Trace
from iodaemon.daemon.hintbook import Forgotten
from iodaemon.daemon.lesson_book import Known
from iodaemon.daemon.notebook import Note

PASSED: Final = "passed"
"""The key in ``meta`` of the time that has passed."""
Environment = Mapping[str, str]


class BandwidthMinute(msgspec.Struct, frozen=True, kw_only=True):
    """What one job moved in one minute.

    Attributes:
        minute: whole minutes since 1970.
        read_bytes: in ``seconds`` of that minute; of two rows for one minute the sum is kept.
        written_bytes: likewise.
        seconds: how much of the minute was measured.
    """

    job_id: JobId
    minute: int
    read_bytes: int
    written_bytes: int
    seconds: float


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the clocks showed at one time.

    Attributes:
        at_s: the daemon's, seconds since 1970.
        boot_id: of the machine's boot.
        uptime_s: CLOCK_BOOTTIME, which goes on while the machine is suspended.
    """

    at_s: float
    boot_id: str
    uptime_s: float


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What the daemon's clock showed while some time passed, from the end of the span before on.

    Attributes:
        until_s: how much time had passed at its end, since this journal counts it.
        least_s: no record was given an earlier time in it.
    """

    until_s: float
    least_s: float


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Time that has provably passed (``daemon.clock``).

    Attributes:
        last: the newest reading.
        spans: in order, at least one; ``last`` ends the newest.
    """

    last: Reading
    spans: tuple[Span, ...]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one step changed; all of it becomes durable, or nothing.

    Attributes:
        jobs: the newest record of every job that changed.
        removed: jobs that never were.
        transitions: steps in jobs' lives, in order.
        environments: by id; one that is known already is left as it is.
        minutes: bandwidth.
        notes: what regulation saw, would have done, and was told.
        samples: raw, for replay.
        mode: regulation's new mode; None: as it was.
        drain: how the node is drained from now on; None: it is not; UNSET: as it was.
        anchor_s: what the times from now on are counted from (``WallTimeline``); None: as it was.
        passed: time that has passed; None: as it was.
        traces: runs elsewhere that were imported.
        forgotten: keys of I/O hints.
        lessons: what is known now of kinds of jobs; None: nothing any more.
    """

    jobs: tuple[Job, ...] = ()
    removed: tuple[JobId, ...] = ()
    transitions: tuple[Transition, ...] = ()
    environments: Mapping[str, Environment] = MappingProxyType({})
    minutes: tuple[BandwidthMinute, ...] = ()
    notes: tuple[Note, ...] = ()
    samples: tuple[Sample, ...] = ()
    mode: Mode | None = None
    drain: Drain | UnsetType | None = UNSET
    anchor_s: float | None = None
    passed: Passed | None = None
    traces: tuple[Trace, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    lessons: Mapping[JobKind, Lesson | None] = MappingProxyType({})

    @property
    def meta(self) -> dict[str, Any]:
        """What it says of the journal as a whole, by key; None: that is said no longer."""
        said: dict[str, Any] = {"mode": self.mode, "anchor_s": self.anchor_s}
        values = {key: value for key, value in said.items() if value is not None}
        if self.drain is not UNSET:
            is_on = self.drain is not None
            values["drain"] = msgspec.json.encode(self.drain).decode() if is_on else None
        if self.passed is not None:
            values[PASSED] = msgspec.json.encode(self.passed).decode()
        return values

    @property
    def only_begins(self) -> bool:
        """True for the news that started jobs run and no other: a restart would find it out."""
        steps = self.transitions
        begun = all(
            step.before is JobState.STARTING and step.after is JobState.RUNNING for step in steps
        )
        others = len(self.jobs) - len(steps) or self.removed or self.meta
        return bool(steps) and begun and not others


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon needs to go on where the last one stopped.

    Attributes:
        jobs: all that are waiting or live, and the newest finished ones; ordered by id.
        next_id: above every id that was ever durable.
        seed: of the controller's random numbers; the same for the journal's whole life.
        environments: those of the waiting and live jobs.
        mode: regulation's mode as it was switched last; None: it never was.
        drain: how the node is drained; None: it is not.
        anchor_s: what the jobs' times are counted from; None: that was not written down.
        passed: time that has passed; None: nothing is known of it.
        traces: runs elsewhere, in the order of their import.
        forgotten: keys of I/O hints.
        lessons: what is known of kinds of jobs; learned last is at the end.
    """

    jobs: tuple[Job, ...]
    next_id: JobId
    seed: int
    environments: Mapping[str, Environment]
    mode: Mode | None = None
    drain: Drain | None = None
    anchor_s: float | None = None
    passed: Passed | None = None
    traces: tuple[Trace, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    lessons: tuple[Known, ...] = ()
