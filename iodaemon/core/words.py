"""Sizes, times, counts and the condition of the node in words.

The standard library only: the command line has these without the rest of the core.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

_DAY_S: Final = 86400.0
_FEW_DAYS: Final = 3
"""From so many on they are told in days."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024.0


def told_bytes(size_bytes: float) -> str:
    """A size in powers of 1024, with at most one decimal: ``200 GiB``."""
    size, unit = float(size_bytes), 0
    while size >= _STEP and unit < len(_UNITS) - 1:
        size, unit = size / _STEP, unit + 1
    return f"{size:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


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


MODES: Final = MappingProxyType(
    {
        "on": "regulation is on: it suspends and resumes jobs as the policy says",
        "shadow": "regulation is in shadow: it decides and records, and touches no job",
        "off": "regulation is off: no job is suspended for I/O",
    }
)
"""What regulation may do, by its mode."""


def rule_failed(kind: str, rule: str, part: str, place: str, problem: str) -> str:
    """That a rule was set aside.

    Args:
        kind: of the rule: admission, placement, regulation or allocation.
        rule: its module and class.
        part: what is set aside: ``policy``, or the rule of a tier: ``tier NAME``.
        place: file and line.
        problem: in one line.
    """
    of = "" if part == "policy" else f" of {part}"
    return f"{kind} rule {rule!r}{of} failed at {place}: {problem}"


def drained(by: str, reason: str) -> str:
    """That the node is drained."""
    return f"nothing starts, the node is drained by {by}" + (f": {reason}" if reason else "")
