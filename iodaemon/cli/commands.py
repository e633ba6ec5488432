"""``iod submit --from``: one command a line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from iodaemon.cli.output import say
from iodaemon.cli.said import NOTHING, Said, is_said, parse_lines
from iodaemon.errors import NotFound, RequestError

_NEEDS_SHLEX: Final = frozenset("'\"\\")
_NOTHING_DONE: Final = "nothing was submitted"


_SHELL_SIGNS: Final = frozenset("<>|&;$`*~")
_QUOTED: Final = re.compile(r"""'[^']*'|\\.|"(?:\\.|[^"$`\\])*\"""")
"""What a shell leaves as it is."""
_SHELL_SYNTAX: Final = re.compile(
    r"(?:(?<!\S)\d)?(?:&>|>>?|<)|[|;`*]|&&|(?<!\S)&(?!\S)|\$[A-Za-z_{(]|(?<!\S)~/"
)


class Command(NamedTuple):
    """One line's command, and what the last ``#IOD`` line above it says of it."""

    words: list[str]
    said: Said


def read_commands(
    name: str, check: Callable[[Sequence[str]], None], *, is_shell: bool = False
) -> list[Command]:
    """The commands of a file; blank lines and those that begin with # are skipped.

    But an ``#IOD`` line speaks of all commands below it, until the next one.

    Args:
        name: the file; ``-`` is standard input.
        check: raises RequestError for a command that cannot be submitted.
        is_shell: each line is one for a shell.

    Raises:
        NotFound: there is no such file.
        RequestError: it cannot be read, a line is wrong (with its number), or none is there.
        UsageError: an ``#IOD`` line means nothing.
    """
    shown = "standard input" if name == "-" else name
    try:
        if name == "-":
            commands = parse_commands(sys.stdin, shown, check, is_shell=is_shell)
        else:
            with open(name, encoding="utf-8") as file:
                commands = parse_commands(file, shown, check, is_shell=is_shell)
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
    lines: Iterable[str],
    shown: str,
    check: Callable[[Sequence[str]], None],
    *,
    is_shell: bool = False,
) -> list[Command]:
    """The words of each line's command, split as a shell would, without expanding anything.

    What only a shell would understand is told once.

    Args:
        lines: as read.
        shown: what the errors call their source.
        check: raises RequestError for a command that cannot be submitted.
        is_shell: each line is one for a shell.
    """
    commands = []
    signs: list[tuple[int, str]] = []
    checked: set[str] = set()
    said = NOTHING
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            if is_said(text):
                said = parse_lines([(number, text)], shown)
            continue
        try:
            words = ["sh", "-c", text] if is_shell else split_words(text)
            if not is_shell and (sign := find_shell_sign(text)):
                signs.append((number, sign))
            if words[0] not in checked or not text.isprintable():
                check(words)
                checked.add(words[0])
        except (ValueError, RequestError) as error:
            problem = f"{error}; {_NOTHING_DONE}" if isinstance(error, ValueError) else str(error)
            raise RequestError(f"{shown}:{number}: {problem}") from error
        commands.append(Command(words, said))
    if signs:
        number, sign = signs[0]
        many = f", as in {len(signs) - 1} more lines" if len(signs) > 1 else ""
        say(
            f"{shown}:{number}: {sign} is passed to the program as it stands{many}: --shell has "
            "each line run by a shell"
        )
    return commands


def find_shell_sign(text: str) -> str:
    """The first thing in a line that only a shell understands; empty: there is none."""
    if _SHELL_SIGNS.isdisjoint(text):
        return ""
    found = _SHELL_SYNTAX.search(_QUOTED.sub("''", text))
    return "" if found is None else found[0].strip()


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
