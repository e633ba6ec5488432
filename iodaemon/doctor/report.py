"""What a check came to: a line of the report."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

Values = Mapping[str, bool | int | float | str | None]
_WHAT_WIDTH: Final = 20
INDENT: Final = 8 + 1 + _WHAT_WIDTH + 3
"""Where what was measured begins in a line."""
AS_ROOT: Final = "run 'iod doctor' as root"


class Verdict(enum.StrEnum):
    """``lacking`` is not there, and iodaemon does without it; ``broken`` does not do its work."""

    OK = "ok"
    LACKING = "lacking"
    BROKEN = "broken"


class Finding(NamedTuple):
    """What one check came to.

    Attributes:
        verdict: of the check.
        what: what was checked; a stable name.
        measured: the values, for people.
        values: the values, for programs; each name has its unit.
        cost: what it costs to do without; empty where it is ok.
        remedy: how to get it; empty where it is ok.
    """

    verdict: Verdict
    what: str
    measured: str
    values: Values = MappingProxyType({})
    cost: str = ""
    remedy: str = ""

    @property
    def lines(self) -> list[str]:
        """For people: the finding, and below it what a lack costs and how to get it."""
        lines = [f"{self.verdict:<8} {self.what:<{_WHAT_WIDTH}} — {self.measured}"]
        if self.cost or self.remedy:
            advice = "; ".join(part for part in (self.cost, self.remedy) if part)
            lines.append(" " * INDENT + advice)
        return lines


ok: Final = partial(Finding, Verdict.OK)
"""It works."""
lacking: Final = partial(Finding, Verdict.LACKING)
"""It is not there, or not as good as it could be."""
broken: Final = partial(Finding, Verdict.BROKEN)
"""It is there and does not do its work, or nothing works without it."""


def judge(
    is_well: bool,  # noqa: FBT001  # what the call asks
    what: str,
    measured: str,
    values: Values = MappingProxyType({}),
    *,
    cost: str,
    remedy: str,
    verdict: Verdict = Verdict.LACKING,
) -> Finding:
    """``ok`` if ``is_well``; else this verdict, with cost and remedy."""
    if is_well:
        return ok(what, measured, values)
    return Finding(verdict, what, measured, values, cost, remedy)


def unseen(what: str, problem: str) -> Finding:
    """A finding that only root could make."""
    return lacking(what, f"not looked at: {problem}", cost="it may be wrong", remedy=AS_ROOT)


def parts_of(sentence: str) -> tuple[str, str]:
    """Fact and cure of a condition that was told as ``FACT; CURE``."""
    fact, _, cure = sentence.partition("; ")
    return fact, cure


def is_broken(findings: Iterable[Finding]) -> bool:
    """True when one of them is."""
    return any(finding.verdict is Verdict.BROKEN for finding in findings)
