"""What is said of a job: sentences for people, and the words they are made of."""

from __future__ import annotations

from typing import Final

import msgspec

from iodaemon.core.decision import Evidence, LimitState, TrialStep
from iodaemon.core.job import Job, Reason

_DAY_S: Final = 86400.0
_FEW_DAYS: Final = 3
"""From so many on they are told in days."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What ``iod why`` says.

    Attributes:
        is_so: where the job is, and why; the job is its subject.
        since_s: since when.
        until: what would let it go on; empty for a job that is over.
        evidence: the table of the slice in which the regulation last suspended or resumed it.
        limits: of a job that enough others contend without: what is believed of each resource of
            which a limit is known.
        trials: likewise, what was tried last of how many should contend for these; oldest first.
    """

    is_so: str
    since_s: float
    until: str = ""
    evidence: Evidence | None = None
    limits: tuple[LimitState, ...] = ()
    trials: tuple[TrialStep, ...] = ()


def plain(job: Job, is_so: str, until: str) -> Explanation:
    """An explanation without a table."""
    return Explanation(is_so=is_so, since_s=job.since_s, until=until)


def text_of(reason: Reason | None) -> str:
    """Its words; empty without one."""
    return "" if reason is None else reason.text


def count(number: int, word: str) -> str:
    """A number of things: ``1 job``, ``2 jobs``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def duration(seconds: float) -> str:
    """A time as people say it: ``2.5 s``, ``40 min``, ``3.0 h``, ``30 days``."""
    seconds = max(0.0, seconds)
    if seconds < 10.0:
        digits = f"{seconds:.1f}" if seconds >= 1.0 else f"{seconds:.2f}"
        return f"{digits.rstrip('0').rstrip('.')} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min"
    if seconds < _DAY_S * _FEW_DAYS:
        return f"{seconds / 3600.0:.1f} h"
    return f"{seconds / _DAY_S:.1f}".removesuffix(".0") + " days"
