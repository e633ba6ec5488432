"""What went wrong, told in one line, and the exit code that goes with it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from iodaemon.errors import (
    ConfigError,
    HopelessError,
    IodaemonError,
    NoDaemon,
    NotFound,
    NotPermitted,
    Unanswered,
)

_DIGITS_MAX: Final = 18
"""Fits into the journal's 64-bit integers."""
_SHOWN: Final = 40


class ExitCode(enum.IntEnum):
    """What ``iod`` returns; ``wait`` and ``submit --wait`` return the job's own code."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    NOT_PERMITTED = 4
    NO_DAEMON = 7
    NOT_KNOWN = 8  # whether it was done
    NOT_TOLD = 74  # done, and standard output could not be written; EX_IOERR of sysexits.h
    HOPELESS = 78  # EX_CONFIG of sysexits.h; RestartPreventExitStatus= in the units
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class UsageError(IodaemonError):
    """The command line itself is wrong (exit code 2)."""


class OutputError(IodaemonError):
    """What was asked is done, and standard output cannot be written (exit code 74)."""


def exit_code(error: BaseException) -> ExitCode:
    """The code for an error."""
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    if isinstance(error, NotFound | FileNotFoundError):
        return ExitCode.NOT_FOUND
    if isinstance(error, NotPermitted | PermissionError):
        return ExitCode.NOT_PERMITTED
    if isinstance(error, HopelessError):
        return ExitCode.HOPELESS
    if isinstance(error, OutputError):
        return ExitCode.NOT_TOLD
    if isinstance(error, Unanswered):
        return ExitCode.NOT_KNOWN
    return ExitCode.NO_DAEMON if isinstance(error, NoDaemon) else ExitCode.REFUSED


@contextmanager
def hopeless() -> Iterator[None]:
    """Whatever is wrong with the configuration here, starting again does not mend it."""
    try:
        yield
    except ConfigError as error:
        raise HopelessError(str(error)) from error


def find_number(text: str) -> int | None:
    """The whole number of 0 or more that these digits are; None: they are none that is counted."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if is_number else None


def count(option: str, text: str, what: str, example: str, *, least: int = 1, most: int = 0) -> int:
    """How many the option says.

    Args:
        what: is counted, in the plural.
        most: that it may be; 0: any.
    """
    number = find_number(text)
    if number is None or number < least or 0 < most < number:
        bound = f", {least} to {most}" if most else ""
        raise UsageError(
            f"{option}: {text[:_SHOWN]!r} is no number of {what}{bound}: write for example "
            f"{option} {example}"
        )
    return number


def size_bytes(option: str, text: str, *, bare_unit: str = "") -> int:
    """The size that an option has; a bare number is of this unit."""
    from iodaemon.units import is_bare, parse_bytes

    try:
        return parse_bytes(f"{text} {bare_unit}" if bare_unit and is_bare(text) else text)
    except ConfigError as error:
        raise UsageError(f"{option}: {error}") from error


def duration_s(option: str, text: str, *, bare_unit_s: float = 1.0) -> float:
    """The duration that an option has; a bare number is of this unit."""
    from iodaemon.units import parse_duration_s

    try:
        return parse_duration_s(text, bare_unit_s=bare_unit_s)
    except ConfigError as error:
        raise UsageError(f"{option}: {error}") from error


def line(error: BaseException) -> str:
    """The error in one line that says what to do."""
    if isinstance(error, IodaemonError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        what = f"{type(error).__name__}: {error}"
        text = f"internal error, {what}: please report it with what 'iod --debug' prints"
    return " ".join(text.split())


_NEAR: Final = 0.7
"""Of difflib's ratio: about two letters of three are the same."""


def find_near(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to this one; None: none is near."""
    from difflib import get_close_matches

    # A prefix turns a word into its opposite: 'unsuspend' is no 'suspend', '--no-wait' no '--wait'.
    word = word.lstrip("-")
    bare = {name.lstrip("-"): name for name in known}
    begun = [name for name in bare if len(word) > 1 and name.startswith(word)]
    if len(begun) == 1:
        return bare[begun[0]]
    near = [name for name in bare if not word.endswith(name) and not name.endswith(word)]
    found = get_close_matches(word, near, n=1, cutoff=_NEAR)
    return bare[found[0]] if found else None


def nearest(word: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a message: the known word nearest to this one, or else where they are listed."""
    found = find_near(word, known)
    return f": did you mean {found}?" if found else f": {otherwise}"
