"""The node's condition in words: one sentence for the daemon, the command line and doctor.

No imports: the command line has these sentences without the rest of the core.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

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
    """That the node is drained.

    Args:
        by: who wanted it.
        reason: what for, in their words; empty: not said.
    """
    return f"nothing starts, the node is drained by {by}" + (f": {reason}" if reason else "")
