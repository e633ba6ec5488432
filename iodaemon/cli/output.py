"""Plain text for people and JSON for programs: tables, documents, quantities, how far it is."""

from __future__ import annotations

import json
import os
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from iodaemon.api.model import Expected, Job
from iodaemon.cli.failure import OutputError
from iodaemon.text import printable

UNKNOWN: Final = "?"
NOTHING: Final = "-"
_CUT: Final = "…"

_LONGEST_CELL: Final = 1000
"""Also in a pipe; '--json' has all of it."""
_UNQUOTED: Final = frozenset(f"{string.ascii_letters}{string.digits}@%+=:,./-_")
"""Characters that mean nothing to a shell, as in shlex.quote."""

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


@contextmanager
def telling(done: Callable[[], str]) -> Iterator[None]:
    """Print inside; all of it is written at the end.

    Args:
        done: says what has been done, for the error; empty: nothing.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None:  # of another file
            raise
        problem = f"standard output cannot be written: {error.strerror}"
        told = done()
        raise OutputError(f"{told}, but {problem}" if told else problem) from error


def print_json(value: object) -> None:
    """One JSON document: on a terminal indented, else on one line."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent))


def show(answer: object, lines: Callable[[], Iterable[str]], *, as_json: bool) -> None:
    """Print an answer: as JSON for programs, else the lines that people read."""
    if as_json:
        print_json(answer)
    elif told := "\n".join(lines()):
        print(told)


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        title: above it.
        cell: what it shows of a row's item, for ``listing``.
        is_number: its cells stand to the right.
        width_max: on a terminal never wider.
        least: a narrow terminal cuts it to so many characters; 0: it is not cut.
        drop: a narrower one leaves it out: 1 first; 0: never.
    """

    title: str
    cell: Callable[[Any], str] = str
    is_number: bool = False
    width_max: int | None = None
    least: int = 0
    drop: int = 0


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
    """The lines of a table.

    Where the width is too small for all, columns are left out in the order of ``drop`` until the
    others have their ``least``; what is left of the width goes to those that are never left out
    first. Where that is not enough the last one is cut.

    Args:
        width: cut to so many characters. None: cut nothing.
    """
    cells = [[_cut(printable(cell), _LONGEST_CELL) for cell in row] for row in rows]
    if width is not None:
        cells = [
            [_cut(cell, column.width_max) for cell, column in zip(row, columns, strict=True)]
            for row in cells
        ]
    if header:
        cells.insert(0, [column.title for column in columns])
    sizes = dict(enumerate(max(map(len, column), default=0) for column in zip(*cells, strict=True)))
    if width is not None and sizes:
        sizes = _fit(columns, sizes, width)
    return [_row(row, columns, sizes) for row in cells]


def listing(columns: Sequence[Column], items: Iterable[Any], *, header: bool = True) -> list[str]:
    """A table with a row an item, as wide as the terminal."""
    rows = [[column.cell(item) for column in columns] for item in items]
    return table(columns, rows, header=header, width=terminal_columns())


def _fit(columns: Sequence[Column], sizes: Mapping[int, int], width: int) -> dict[int, int]:
    """The columns that are shown, by number, and how wide each is."""
    least = {at: min(size, columns[at].least or size) for at, size in sizes.items()}
    dropped = sorted((at for at in sizes if columns[at].drop), key=lambda at: columns[at].drop)
    while dropped and sum(least.values()) + len(least) - 1 > width:
        del least[dropped.pop(0)]
    spare = width - sum(least.values()) - len(least) + 1
    if spare < 0:
        last = max(least)
        least[last] = max(1, least[last] + spare)
    for at in sorted(least, key=lambda at: -columns[at].drop if columns[at].drop else 1):
        more = max(0, min(sizes[at] - least[at], spare))
        least[at], spare = least[at] + more, spare - more
    return least


def _row(cells: Sequence[str], columns: Sequence[Column], sizes: Mapping[int, int]) -> str:
    shown = ((_cut(cells[at], size), columns[at], size) for at, size in sizes.items())
    parts = (
        cell.rjust(size) if column.is_number else cell.ljust(size) for cell, column, size in shown
    )
    return " ".join(parts).rstrip()


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + _CUT


def shortened(text: str) -> str:
    """The text, as long as people read; with ``--json`` all of it is printed."""
    return _cut(text, _LONGEST_CELL)


def coloured(text: str, code: str) -> str:
    """The text in the colour of a job state, by the state's code."""
    colour = _COLOURS.get(code.rstrip("."))
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def aligned(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of a label and a value, the values below each other, as wide as the terminal."""
    kept = list(pairs)
    width = max((len(label) for label, _ in kept), default=0) + 2
    lines = (f"{label.ljust(width)}{shortened(printable(value))}" for label, value in kept)
    return folded(lines, width)


def folded(lines: Iterable[str], indent: int) -> list[str]:
    """The lines; those that are wider than the terminal go on in the next line, indented."""
    kept = [line.rstrip() for line in lines]
    most = terminal_columns()
    if most is None or most < 2 * indent or max(map(len, kept), default=0) <= most:
        return kept
    from textwrap import TextWrapper

    wrap = TextWrapper(
        most, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ).wrap
    return [part for line in kept for part in wrap(line) or [""]]


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


def command_line(job: Job) -> str:
    """The command as a shell would take it."""
    words = job["command"]
    if all(word and _UNQUOTED.issuperset(word) for word in words):
        return " ".join(words)
    import shlex  # most commands do without it

    return shlex.join(words)


def suspended_cell(job: Job) -> str:
    """How long it stood still."""
    return clock(job["suspended_io_s"] + job["suspended_user_s"])


def end_words(job: Job) -> str:
    """How a job ended: ``FAILED: exit code 3``, in the daemon's words where it gives a reason."""
    if words := reason_words(job):
        return job["state"] + words
    if job["signal"] is not None:
        return f"{job['state']}: signal {signal_name(job['signal'])}"
    return job["state"] + ("" if job["exit_code"] is None else f": exit code {job['exit_code']}")


def reason_words(job: Job) -> str:
    """The reason after what it explains: ``: waits for 4 slots``, or nothing."""
    text = printable(told_reason(job["reason"]))
    return f": {text}" if text else ""


def told_reason(reason: Mapping[str, Any] | None) -> str:
    """A reason's text with what lets the job go on; empty without one."""
    if reason is None:
        return ""
    cure = reason.get("cure", "")
    return f"{reason['text']}; {cure} lets it go" if cure else str(reason["text"])


def count_of(count: int, what: str) -> str:
    """Such as ``1 job``, ``7 jobs``."""
    return f"{count} {what}" + ("" if count == 1 else "s")


def signal_name(number: int) -> str:
    """A signal by number and name: ``9 (SIGKILL)``."""
    import signal

    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {"declared": "d", "learned": "l", "imported": "i", "measured": "m"}
)


def expected_cell(job: Job) -> str:
    """The mean rate over its run and the letter of its source; ``?`` where nothing is known."""
    expected = job.get("expected")
    if expected is None or expected["rate_bytes_per_s"] is None:
        return UNKNOWN
    return f"{rate(expected['rate_bytes_per_s'])} {LETTERS.get(expected['source'], '')}"


def ratio_cell(job: Job) -> str:
    """What was expected over what it moved, as ``1.3x``."""
    ratio = job.get("expected_ratio")
    return NOTHING if ratio is None else factor(ratio)


def factor(value: float) -> str:
    """``1.3x``, ``0.04x``, ``250x``."""
    return f"{value:.2g}x" if value < 100 else f"{value:.0f}x"


def expected_words(job: Job) -> str:
    """All of it, and how right it was."""
    expected = job.get("expected")
    if expected is None or expected["rate_bytes_per_s"] is None:
        return "unknown"
    parts = [f"{rate(expected['rate_bytes_per_s'])} on average", *_details(expected)]
    ratio = job.get("expected_ratio")
    right = "" if ratio is None else f"; {factor(ratio)[:-1]} times what it moved"
    return f"{', '.join(parts)} ({source_words(expected)}){right}"


def _details(expected: Expected) -> list[str]:
    parts = []
    mean, share = expected["rate_bytes_per_s"], expected["io_share"]
    if share and mean is not None:
        parts.append(f"{rate(mean / share)} in I/O for {percent(share)} of its run time")
    if expected["operations_per_s"] is not None:
        parts.append(f"{expected['operations_per_s']:.3g} requests/s")
    return parts


def percent(share: float) -> str:
    """A part of the whole: ``20%``, ``0.03%``."""
    return f"{100 * share:.2g}%" if share < 0.995 else "100%"


def source_words(expected: Expected) -> str:
    """Whence it is known, and how surely."""
    by = f" by {expected['by']}" if expected["by"] else ""
    runs = expected["runs"]
    count = f", {count_of(runs, 'run')}" if runs else ""
    return f"{expected['source']}{by}{count}, confidence {expected['confidence']:.2g}"


_INDENT: Final = "  "
_A_DATE_S: Final = 1e9
"""So many seconds are a point in time, in 2001 or later; as a duration they are 31 years."""


def document_lines(
    document: Mapping[str, Any], *, absent: str = "unknown", as_keys: bool = False
) -> list[str]:
    """Plain values first, aligned; then every part with its name above it, indented.

    Args:
        absent: what stands for null.
        as_keys: names are those that a file has; else words.
    """
    label = _bare if as_keys else _label
    plain = {key: value for key, value in document.items() if _is_plain(value)}
    lines = aligned((label(key), value_words(key, plain[key], absent)) for key in plain)
    for key, value in document.items():
        if key not in plain:
            lines.append(label(key))
            lines += [_INDENT + line for line in _part_lines(value, absent, as_keys=as_keys)]
    return lines


def _part_lines(value: Any, absent: str, *, as_keys: bool) -> list[str]:
    if isinstance(value, dict):
        return document_lines(value, absent=absent, as_keys=as_keys)
    if not all(isinstance(item, dict) for item in value):
        return [value_words("", item, absent) for item in value]
    if all(_is_plain(cell) for item in value for cell in item.values()):
        lines, most = _table_lines(value, absent), terminal_columns()
        if most is None or len(_INDENT) + max(map(len, lines), default=0) <= most:
            return lines
    parts = (document_lines(item, absent=absent, as_keys=as_keys) for item in value)
    return [line for part in parts for line in part]


def _table_lines(rows: Sequence[Mapping[str, Any]], absent: str) -> list[str]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[value_words(key, row.get(key), absent) for key in keys] for row in rows]
    return table([Column(_label(key).upper()) for key in keys], cells)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return not any(isinstance(item, dict | list | tuple) for item in value)
    return not isinstance(value, dict)


def _bare(key: str) -> str:
    """The name without the unit, which stands in the value."""
    for suffix in ("_bytes_per_s", "_per_s", "_bytes", "_s"):
        if key.endswith(suffix) and len(key) > len(suffix):
            return key.removesuffix(suffix)
    return key


def _label(key: str) -> str:
    """Likewise, as words."""
    return _bare(key).replace("_", " ")


def value_words(key: str, value: Any, absent: str) -> str:
    """The value with its unit, which the name tells (``_bytes``, ``_bytes_per_s``, ``_s``)."""
    match value:
        case None:
            return absent
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _number_words(key, value)
        case list() | tuple():
            return ", ".join(value_words(key, item, absent) for item in value) or "none"
        case dict():
            parts = (f"{name} {value_words(name, item, absent)}" for name, item in value.items())
            return ", ".join(parts)
        case _:
            return str(value) or "none"


def _number_words(key: str, value: float) -> str:
    from iodaemon.units import format_bytes, format_duration, format_rate

    if key.endswith("_bytes_per_s"):
        return format_rate(value)
    if key.endswith("_per_s"):
        return f"{value:.4g}/s"
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith("_s"):
        return local_time(value) if value >= _A_DATE_S else format_duration(value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"


REDRAWN_S: Final = 0.2
"""Between two changes of the line on a terminal."""
TOLD_S: Final = 30.0
"""Between two lines where nobody looks at a terminal."""
_AGAIN: Final = "\r\x1b[K"
"""To the beginning of the line, which is emptied."""


class Progress:
    """One line that changes on a terminal; a line now and then elsewhere.

    Args:
        what: is done, for ``__call__``.
    """

    def __init__(self, what: str = "") -> None:
        self._what = what
        self._is_terminal = sys.stderr.isatty()
        self._begun_s = self._told_s = time.monotonic()
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, done: int, total: int) -> None:
        """Tell how many tasks are done; the time left is reckoned from what they took."""
        words = f"{self._what}: {done} of {total} tasks"
        if 0 < done < total:
            from iodaemon.units import format_duration

            left_s = (time.monotonic() - self._begun_s) / done * (total - done)
            words += f", {format_duration(round(left_s, 1))} left"
        self.tell(words, is_first=done == 0)

    def tell(self, words: str, *, is_first: bool = False) -> None:
        """Tell these words, unless others were told a moment ago; on a terminal the first ones."""
        now_s = time.monotonic()
        is_due = now_s - self._told_s >= (REDRAWN_S if self._is_terminal else TOLD_S)
        if not is_due and not (self._is_terminal and is_first):
            return
        self._told_s = now_s
        if self._is_terminal:
            self._is_open = True
            print(f"{_AGAIN}iod: {words}", end="", file=sys.stderr, flush=True)
        else:
            say(words)

    def close(self) -> None:
        """Take the line away."""
        if self._is_open:
            print(_AGAIN, end="", file=sys.stderr, flush=True)
        self._is_open = False
