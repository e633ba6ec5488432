"""Plain text for people and JSON for programs: tables, aligned lines, quantities."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from iodaemon.api.model import Job
from iodaemon.text import printable

UNKNOWN: Final = "?"
NOTHING: Final = "-"
_CUT: Final = "…"

_COLOURS: Final[Mapping[str, str]] = {
    "R": "32",
    "ST": "32",
    "SI": "33",
    "SU": "35",
    "SG": "33",
    "F": "31",
    "TO": "31",
    "OM": "31",
    "LO": "31",
}


def say(text: str) -> None:
    """Tell the user something that is no data."""
    print(f"iod: {text}", file=sys.stderr)


def print_json(value: object) -> None:
    """One JSON document: on a terminal indented, else on one line."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent))


class Column(NamedTuple):
    """One column of a table; numbers stand to the right."""

    title: str
    is_number: bool = False
    width_max: int | None = None


def terminal_columns() -> int | None:
    """How wide the terminal is; None when nobody looks at one, and nothing needs to be cut."""
    if not sys.stdout.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS", "")) or None
    except ValueError:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None


def has_colour() -> bool:
    """True on a terminal, unless ``NO_COLOR`` is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    header: bool = True,
    width: int | None = None,
) -> list[str]:
    """The lines of a table; the last column takes what is left of the width.

    Args:
        columns: one a cell.
        rows: the cells, already formatted.
        header: with a line of titles.
        width: cut to so many characters. None: cut nothing.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if width is not None:
        cells = [
            [_cut(cell, column.width_max) for cell, column in zip(row, columns, strict=True)]
            for row in cells
        ]
    if header:
        cells.insert(0, [column.title for column in columns])
    sizes = [max(map(len, column), default=0) for column in zip(*cells, strict=True)]
    if width is not None and sizes:
        sizes[-1] = max(1, width - sum(sizes[:-1]) - len(sizes) + 1)
    return [_row(row, columns, sizes, is_cut=width is not None) for row in cells]


def _row(
    cells: Sequence[str], columns: Sequence[Column], sizes: Sequence[int], *, is_cut: bool
) -> str:
    parts = [
        cell.rjust(size) if column.is_number else cell.ljust(size)
        for cell, column, size in zip(cells, columns, sizes, strict=True)
    ]
    if is_cut:
        parts[-1] = _cut(cells[-1], sizes[-1])
    return " ".join(parts).rstrip()


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + _CUT


def coloured(text: str, code: str) -> str:
    """The text in the colour of a job state, by the state's code."""
    colour = _COLOURS.get(code.rstrip("."))
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def aligned(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of a label and a value, the values below each other."""
    kept = list(pairs)
    width = max((len(label) for label, _ in kept), default=0)
    return [f"{label.ljust(width)}  {printable(value)}".rstrip() for label, value in kept]


def clock(duration_s: float) -> str:
    """A duration as squeue shows it: ``5:07``, ``1:30:00``, ``2-03:00:00``."""
    minutes, seconds = divmod(int(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def local_time(at_s: float | None) -> str:
    """A point in time on the clock of the place; ``not yet`` for None."""
    if at_s is None:
        return "not yet"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def rate(bytes_per_s: float | None) -> str:
    """A rate for people; unknown is not zero."""
    from iodaemon.units import format_rate

    return UNKNOWN if bytes_per_s is None else format_rate(bytes_per_s)


def total_rate(*parts: float | None) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def job_name(job: Job) -> str:
    """The name, or else the program's."""
    return job["name"] or os.path.basename(job["command"][0])


def end_words(job: Job) -> str:
    """How a job ended: ``FAILED: exit code 3``, in the daemon's words where it gives a reason."""
    if words := reason_words(job):
        return job["state"] + words
    if job["signal"] is not None:
        return f"{job['state']}: signal {signal_name(job['signal'])}"
    return job["state"] + ("" if job["exit_code"] is None else f": exit code {job['exit_code']}")


def reason_words(job: Job) -> str:
    """The reason after what it explains: ``: waits for 4 slots``, or nothing."""
    reason = job["reason"]
    return f": {printable(reason['text'])}" if reason and reason["text"] else ""


def signal_name(number: int) -> str:
    """A signal by number and name: ``9 (SIGKILL)``."""
    import signal

    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
