"""The node's condition in words, wherever it is shown: shadow mode, a drain, blocked starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iodaemon.cli import output
from iodaemon.core.condition import MODES, drained
from iodaemon.text import printable


def condition_lines(condition: Mapping[str, Any] | None) -> list[str]:
    """One line for each thing that is not as usual; a daemon of the version before tells none."""
    if condition is None:
        return []
    lines = []
    if condition["starts_blocked"]:
        lines.append(f"no job starts: {condition['starts_blocked']}")
    if condition["drain"] is not None:
        lines.append(drain_words(condition["drain"]))
    if (mode := condition["mode"]) != "on":
        lines.append(MODES.get(mode, f"regulation is {mode}"))
    return list(map(printable, lines))


def drain_words(drain: Mapping[str, Any]) -> str:
    """Who drained the node, since when and what for."""
    since = output.local_time(drain["since_s"])
    return f"{drained(drain['by'], drain['reason'])} (since {since})"
