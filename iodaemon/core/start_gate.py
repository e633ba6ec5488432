"""Whether a job may start under what regulation said of starts: a ``StartLimit``, kept up to date.

Regulation decides once a timeslice, admission whenever something happens. In between the state
keeps what is left: a job that starts takes its part (``after_start``), the part of one that has
ended is free again (``after_end``), so that its place is taken at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from iodaemon.core.decision import StartLimit
from iodaemon.core.job import Job, JobId, JobKind, Reason

ROUNDING: Final = 1e-9
"""Of the whole resource, by which sums of shares may be wrong."""


class GateView(Protocol):
    """What the gate needs of a view."""

    @property
    def live(self) -> Iterable[Job]:
        """All jobs that hold slots."""
        ...

    @property
    def start_limit(self) -> StartLimit | None:
        """What is left of what regulation said; None: no limit."""
        ...

    def kind(self, job_id: JobId) -> JobKind:
        """What the job is like."""
        ...


class StartGate:
    """The limit in one decision: what it was when that began, less what was started in it.

    A job that would be alone always may start, else nothing might ever end and change the limit.

    Args:
        view: the state.
    """

    def __init__(self, view: GateView) -> None:
        self._view = view
        self._left = view.start_limit
        self._is_alone = self._left is not None and next(iter(view.live), None) is None

    @property
    def lets_all(self) -> bool:
        """Whether a job of any kind may start now."""
        limit = self._left
        if limit is None or self._is_alone:
            return True
        most = max((limit.share, *limit.shares.values()))
        return (limit.most is None or limit.most > 0) and _is_free(limit, most)

    @property
    def shut_by(self) -> Reason | None:
        """Why no job may start, whatever its kind; None: one might."""
        limit = self._left
        if limit is None or self._is_alone:
            return None
        least = min((limit.share, *limit.shares.values()))
        is_shut = (limit.most is not None and limit.most <= 0) or not _is_free(limit, least)
        return limit.why if is_shut else None

    def refusal(self, job: Job) -> Reason | None:
        """Why the job may not start now; None: it may."""
        limit = self._left
        if limit is None or self._is_alone:
            return None
        if limit.most is not None and limit.most <= 0:
            return limit.why
        return None if _is_free(limit, self._share(limit, job)) else limit.why

    def take(self, job: Job) -> None:
        """The job starts."""
        limit = self._left
        if limit is not None:
            self._left = after_start(limit, self._share(limit, job))
            self._is_alone = False

    def _share(self, limit: StartLimit, job: Job) -> float:
        if not limit.shares:
            return limit.share
        return share_of(limit, self._view.kind(job.id))


def share_of(limit: StartLimit, kind: JobKind) -> float:
    """What a job of this kind takes of what is contended for, 1 being all of it."""
    return limit.shares.get(kind, limit.share)


def needed_bytes(limit: StartLimit, footprint_bytes: float | None) -> float:
    """Memory that a job is taken to need of which so much is expected; None: nothing is known."""
    return limit.footprint_bytes if footprint_bytes is None else footprint_bytes


def after_start(limit: StartLimit, share: float, *, memory_bytes: float = 0.0) -> StartLimit:
    """What is left when a job has started that takes so much."""
    most = None if limit.most is None else limit.most - 1
    left = None if limit.memory_bytes is None else limit.memory_bytes - memory_bytes
    return msgspec.structs.replace(limit, most=most, free=limit.free - share, memory_bytes=left)


def after_end(limit: StartLimit, share: float, *, memory_bytes: float = 0.0) -> StartLimit:
    """What is left when a job has ended that took so much."""
    most = None if limit.most is None else limit.most + 1
    left = None if limit.memory_bytes is None else limit.memory_bytes + memory_bytes
    return msgspec.structs.replace(limit, most=most, free=limit.free + share, memory_bytes=left)


def _is_free(limit: StartLimit, share: float) -> bool:
    return share <= 0.0 or share <= limit.free + ROUNDING
