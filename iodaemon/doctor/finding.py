"""What a check came to: one line of the report."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

Values = Mapping[str, bool | int | float | str | None]
NO_VALUES: Final[Values] = MappingProxyType({})
_WHAT_WIDTH: Final = 20
INDENT: Final = 8 + 1 + _WHAT_WIDTH + 3
"""Where what was measured begins in a line."""


class Verdict(enum.StrEnum):
    """``lacking`` is not there, and iodaemon does without it; ``broken`` does not do its work."""

    OK = "ok"
    LACKING = "lacking"
    BROKEN = "broken"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check.

    Attributes:
        verdict: what it came to.
        what: what was checked; a stable name.
        measured: the values, for people.
        cost: what it costs to do without; empty where it is ok.
        remedy: how to get it; empty where it is ok.
        values: the values, for programs; each name has its unit.
    """

    verdict: Verdict
    what: str
    measured: str
    cost: str = ""
    remedy: str = ""
    values: Values = NO_VALUES

    @property
    def lines(self) -> list[str]:
        """For people: the finding, and below it what a lack costs and how to get it."""
        lines = [f"{self.verdict:<8} {self.what:<{_WHAT_WIDTH}} — {self.measured}"]
        if self.cost or self.remedy:
            advice = "; ".join(part for part in (self.cost, self.remedy) if part)
            lines.append(" " * INDENT + advice)
        return lines


def judge(
    is_well: bool,  # noqa: FBT001  # what the call asks
    what: str,
    measured: str,
    values: Values = NO_VALUES,
    *,
    cost: str,
    remedy: str,
    verdict: Verdict = Verdict.LACKING,
) -> Finding:
    """That it works; else what it costs to do without and how to get it, by this verdict."""
    if is_well:
        return Finding(verdict=Verdict.OK, what=what, measured=measured, values=values)
    return Finding(
        verdict=verdict, what=what, measured=measured, values=values, cost=cost, remedy=remedy
    )


ok: Final = partial(judge, True, cost="", remedy="")  # noqa: FBT003
"""It works."""
lacking: Final = partial(judge, False)  # noqa: FBT003
"""It is not there, or not as good as it could be."""
broken: Final = partial(judge, False, verdict=Verdict.BROKEN)  # noqa: FBT003
"""It is there and does not do its work, or nothing works without it."""
