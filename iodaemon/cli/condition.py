"""The node's condition in words, wherever it is shown: shadow mode, a drain, blocked starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from iodaemon.cli import output
from iodaemon.text import printable

_MODES: Final = {
    "shadow": "regulation is in shadow: it records what it would do, and suspends nothing",
    "off": "regulation is off: no job is suspended for I/O",
}


def condition_lines(condition: Mapping[str, Any] | None) -> list[str]:
    """One line for each thing that is not as usual; a daemon of the version before tells none."""
    if condition is None:
        return []
    lines = []
    if condition["starts_blocked"]:
        lines.append(f"no job starts: {condition['starts_blocked']}")
    if condition["drain"] is not None:
        lines.append(drain_words(condition["drain"]))
    if condition["mode"] in _MODES:
        lines.append(_MODES[condition["mode"]])
    return list(map(printable, lines))


def drain_words(drain: Mapping[str, Any]) -> str:
    """Who drained the node, since when and what for."""
    why = f": {drain['reason']}" if drain["reason"] else ""
    since = output.local_time(drain["since_s"])
    return f"nothing starts, drained by {drain['by']} since {since}{why}"
