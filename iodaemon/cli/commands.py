"""``iod submit --from``: one command a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from iodaemon.cli.said import NOTHING, Said, is_said, parse_lines
from iodaemon.errors import NotFound, RequestError

_NEEDS_SHLEX: Final = frozenset("'\"\\")
_NOTHING_DONE: Final = "nothing was submitted"


class Command(NamedTuple):
    """One line's command, and what the last ``#IOD`` line above it says of it."""

    words: list[str]
    said: Said


def read_commands(name: str, check: Callable[[Sequence[str]], None]) -> list[Command]:
    """The commands of a file; blank lines and those that begin with # are skipped.

    But an ``#IOD`` line speaks of all commands below it, until the next one.

    Args:
        name: the file; ``-`` is standard input.
        check: raises RequestError for a command that cannot be submitted.

    Raises:
        NotFound: there is no such file.
        RequestError: it cannot be read, a line is wrong (with its number), or none is there.
        UsageError: an ``#IOD`` line means nothing.
    """
    shown = "standard input" if name == "-" else name
    try:
        if name == "-":
            commands = parse_commands(sys.stdin, shown, check)
        else:
            with open(name, encoding="utf-8") as file:
                commands = parse_commands(file, shown, check)
    except FileNotFoundError as error:
        raise NotFound(f"--from: {name}: no such file; {_NOTHING_DONE}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"--from: {shown} is no UTF-8 text; {_NOTHING_DONE}") from error
    except OSError as error:
        raise RequestError(f"--from: {name}: {error.strerror}; {_NOTHING_DONE}") from error
    if not commands:
        raise RequestError(f"--from: no command in {shown}: write one a line; {_NOTHING_DONE}")
    return commands


def parse_commands(
    lines: Iterable[str], shown: str, check: Callable[[Sequence[str]], None]
) -> list[Command]:
    """The words of each line's command, split as a shell would, without expanding anything.

    Args:
        lines: as read.
        shown: what the errors call their source.
        check: raises RequestError for a command that cannot be submitted.
    """
    commands = []
    checked: set[str] = set()
    said = NOTHING
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            if is_said(text):
                said = parse_lines([(number, text)], shown)
            continue
        try:
            words = split_words(text)
            if words[0] not in checked or not text.isprintable():
                check(words)
                checked.add(words[0])
        except (ValueError, RequestError) as error:
            problem = f"{error}; {_NOTHING_DONE}" if isinstance(error, ValueError) else str(error)
            raise RequestError(f"{shown}:{number}: {problem}") from error
        commands.append(Command(words, said))
    return commands


def split_words(text: str) -> list[str]:
    """The words of a line. Most lines have no quotes, and shlex takes 20 times longer.

    Raises:
        ValueError: a quote is not closed.
    """
    if _NEEDS_SHLEX.isdisjoint(text):
        return text.split()
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{str(error).lower()}, close it or write \\ before it") from error
