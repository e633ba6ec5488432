"""``iod submit --from``: one command a line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from iodaemon.cli.failure import UsageError
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
    """One line's command, and what is said of it.

    Attributes:
        own: the options before it in its line.
        said: the last ``#IOD`` line above it.
    """

    words: list[str]
    said: Said
    own: Said = NOTHING


class Reader(NamedTuple):
    """How lines are understood.

    Attributes:
        check: the words that start a command; raises RequestError where it cannot be submitted.
        options: what the options before a command say; raises UsageError.
        is_shell: each line is one for a shell.
    """

    check: Callable[[Sequence[str]], list[str]]
    options: Callable[[Sequence[str]], Said]
    is_shell: bool = False


def read_commands(name: str, reader: Reader) -> list[Command]:
    """The commands of a file; blank lines and those that begin with # are skipped.

    But an ``#IOD`` line speaks of all commands below it, until the next one.

    Args:
        name: the file; ``-`` is standard input.

    Raises:
        NotFound: there is no such file.
        RequestError: it cannot be read, a line is wrong (with its number), or none is there.
        UsageError: an ``#IOD`` line or an option means nothing.
    """
    shown = "standard input" if name == "-" else name
    try:
        if name == "-":
            commands = parse_commands(sys.stdin, shown, reader)
        else:
            with open(name, encoding="utf-8") as file:
                commands = parse_commands(file, shown, reader)
    except FileNotFoundError as error:
        raise NotFound(f"--from: {name}: no such file; {_NOTHING_DONE}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"--from: {shown} is no UTF-8 text; {_NOTHING_DONE}") from error
    except OSError as error:
        raise RequestError(f"--from: {name}: {error.strerror}; {_NOTHING_DONE}") from error
    if not commands:
        raise RequestError(f"--from: no command in {shown}: write one a line; {_NOTHING_DONE}")
    return commands


def parse_commands(lines: Iterable[str], shown: str, reader: Reader) -> list[Command]:
    """The words of each line's command, split as a shell would, without expanding anything.

    A line that begins with ``-`` has options of its command before ``--``. What only a shell would
    understand is told once.
    """
    commands = []
    signs: list[tuple[int, str]] = []
    checked: dict[str, list[str]] = {}
    said = NOTHING
    for number, line in enumerate(lines, start=1):
        text, own = line.strip(), NOTHING
        if not text or text.startswith("#"):
            if is_said(text):
                said = parse_lines([(number, text)], shown)
            continue
        try:
            if text.startswith("-"):
                own, text = _split_options(text, reader)
            words = ["sh", "-c", text] if reader.is_shell else split_words(text)
            if not reader.is_shell and (sign := find_shell_sign(text)):
                signs.append((number, sign))
            first = words[0]
            if first not in checked or not text.isprintable():
                checked[first] = reader.check(words)[: 1 - len(words) or None]
        except UsageError as error:
            raise UsageError(f"{shown}:{number}: {error}") from error
        except (ValueError, RequestError) as error:
            problem = f"{error}; {_NOTHING_DONE}" if isinstance(error, ValueError) else str(error)
            raise RequestError(f"{shown}:{number}: {problem}") from error
        commands.append(Command([*checked[first], *words[1:]], said, own))
    if signs:
        number, sign = signs[0]
        many = f", as in {len(signs) - 1} more lines" if len(signs) > 1 else ""
        say(
            f"{shown}:{number}: {sign} is passed to the program as it stands{many}: --shell has "
            "each line run by a shell"
        )
    return commands


def _split_options(line: str, reader: Reader) -> tuple[Said, str]:
    """What the options say that a line begins with, and the command behind ``--``."""
    options, dashes, text = line.partition(" -- ")
    if not dashes or not text.strip():
        raise UsageError(f"options have a command behind --, as in '-J name -- ./solve': {line!r}")
    return reader.options(split_words(options)), text.strip()


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
