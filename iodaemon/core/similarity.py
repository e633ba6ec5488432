"""By what jobs are alike: their name, their command, and what is left of it without its details.

From the specific to the general:

1. ``name:solver``: the job's name, where it was given one.
2. ``command:./solve a.dat 40 in /home/ann/a``: the same words in the same directory.
3. ``like:solve *.dat #``: the program and its words; numbers are ``#``, files are ``*`` with what
   their names end with, and a word that is like the one before it is left out.
4. ``program:solve``: the program alone, whatever it is given.

The program is what does the work: ``srun -p batch ./solve`` and ``nice ./solve`` are ``solve``,
``python -W ignore train.py`` is ``train.py``. Of a line for a shell it is that of the last command
that is more than a preparation: ``sh -c 'cd a; ./solve | tee log; echo done'`` is ``solve``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from iodaemon.core.job import Job, JobKind, JobSpec
from iodaemon.core.program import (
    LITTLE_WORK,
    NO_WORK,
    interpreted,
    interpreter_of,
    is_shell,
    script_of,
    shell_words,
    simple_commands,
    without_launchers,
)

Kind = Literal["name", "command", "like", "program"]
KINDS: Final = ("name", "command", "like", "program")
"""From the specific to the general."""
LONGEST: Final = 160
"""Characters of a key; what is longer is cut, and told from others by a checksum."""
_MOST_WORDS: Final = 24
_LOOKED_AT: Final = 256
"""So many first words of a command, each to its first and last ``_LONGEST_PART`` characters: what a
job is like must cost the same whatever a user submits."""
_LONGEST_PART: Final = 4096
_MOST_CACHED: Final = 1024
"""Characters of a job whose keys are kept: 8 MB of all that are."""
_DEEPEST: Final = 4
"""So many lines of commands within one another are looked into."""

_NUMBER: Final = re.compile(r"\d+(?:[.,:x_-]\d+)*(?:[eE][+-]?\d+)?", re.ASCII)
_FILE: Final = re.compile(r"[^/=]*\.([A-Za-z][A-Za-z0-9_]{0,7})")


class Key(NamedTuple):
    """One way in which jobs of one user are alike."""

    uid: int
    kind: Kind
    text: str

    @property
    def shown(self) -> str:
        return f"{self.kind}:{self.text}"


def keys_of(job: Job) -> tuple[Key, ...]:
    spec = job.spec
    return _find_keys(job.uid, spec.name, spec.command, spec.cwd)


def kind_of(job: Job) -> JobKind:
    """What it is like: the key under which it is learned how many should contend at once.

    A command without any word to go by has no such key; the most general that it has counts.
    """
    keys = keys_of(job)
    return kind_of_key(next((key for key in keys if key.kind == "like"), keys[-1]))


def kind_of_key(key: Key) -> JobKind:
    return JobKind(f"{key.uid} {key.shown}")


def key_of_kind(kind: JobKind) -> Key | None:
    """The key that makes jobs of this kind; None: it is none that this version knows."""
    uid, _, shown = kind.partition(" ")
    return find_key(int(uid), shown)


def keys_elsewhere(uid: int, name: str, command: tuple[str, ...]) -> tuple[Key, ...]:
    """The keys of a run of which it is not known where its directory was."""
    return _find_keys(uid, name, command, None)


def _find_keys(uid: int, name: str, command: tuple[str, ...], cwd: str | None) -> tuple[Key, ...]:
    length = sum(map(len, command)) + len(command) + len(name) + len(cwd or "")
    find = _keys if length <= _MOST_CACHED else _keys.__wrapped__
    return find(uid, name, command, cwd)


@lru_cache(maxsize=8192)
def _keys(uid: int, name: str, command: tuple[str, ...], cwd: str | None) -> tuple[Key, ...]:
    keys = [Key(uid, "name", shortened(name))] if name else []
    if cwd is not None:
        keys.append(Key(uid, "command", shortened(f"{' '.join(command)} in {cwd}")))
    program, words = work_of(command)
    if pattern := " ".join((program, *(words or ()))).strip():
        keys.append(Key(uid, "like", shortened(pattern)))
    if program:
        keys.append(Key(uid, "program", shortened(program)))
    return tuple(keys)


def find_key(uid: int, shown: str) -> Key | None:
    """The key that is shown so; None: it is none."""
    kind, _, text = shown.partition(":")
    for known in KINDS:
        if kind == known and 0 < len(text) <= LONGEST:
            return Key(uid, known, text)
    return None


def shortened(text: str) -> str:
    """The text, or as much of it as a key may have, with a checksum of the rest."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 9]}…{zlib.crc32(text.encode(errors='surrogatepass')):08x}"


def name_of(spec: JobSpec) -> str:
    """What a job is called: its name, else its script, else the program that does the work."""
    if spec.name:
        return spec.name
    is_short = sum(map(len, spec.command)) <= _MOST_CACHED
    return _called(spec.command) if is_short else _called.__wrapped__(spec.command)


@lru_cache(maxsize=8192)
def _called(command: tuple[str, ...]) -> str:
    return _base(script_of(command[:_LOOKED_AT]).word) or work_of(command)[0] or _base(command[0])


def work_of(command: Sequence[str]) -> tuple[str, tuple[str, ...] | None]:
    """The program that does the work, and the pattern of its words.

    Returns:
        An empty program where there is none to name; None for the words where the command says
        nothing of the work at all.
    """
    return _work_of([_bounded(word) for word in command[:_LOOKED_AT]], 0)


def _bounded(word: str) -> str:
    """The word, or its two ends: what a program is called, and the end of a line for a shell."""
    if len(word) <= 2 * _LONGEST_PART:
        return word
    return word[:_LONGEST_PART] + word[-_LONGEST_PART:]


def _work_of(command: Sequence[str], depth: int) -> tuple[str, tuple[str, ...] | None]:
    words = without_launchers(command)
    if not words:
        return "", None
    program, rest = _base(words[0]), words[1:]
    if is_shell(program):
        return _of_shell(program, rest, depth)
    if (interpreter := interpreter_of(program)) is not None:
        return _of_interpreter(program, interpreter, rest)
    return _generalised_name(program), pattern_of(rest)


def _of_shell(shell: str, rest: Sequence[str], depth: int) -> tuple[str, tuple[str, ...] | None]:
    is_line, words = shell_words(rest)
    if is_line:
        line = words[0] if words else ""
        pattern = (f"{shell} -c", *pattern_of(line.split()))
        program = _of_line(line, depth + 1) if depth < _DEEPEST else None
        return shell if program is None else program, pattern
    if words:
        return _generalised_name(_base(words[0])), pattern_of(words[1:])
    return shell, pattern_of(rest)


def _of_line(line: str, depth: int) -> str | None:
    """The program of the last of its commands that does work, see ``work_of``; None: none does."""
    working = [words for words in simple_commands(line) if _base(words[0]) not in NO_WORK]
    mighty = [words for words in working if _base(words[0]) not in LITTLE_WORK] or working
    return _work_of(mighty[-1], depth)[0] if mighty else None


def _of_interpreter(
    name: str, interpreter: str, rest: Sequence[str]
) -> tuple[str, tuple[str, ...] | None]:
    """A script or module; a program in the command line itself has a pattern and no name."""
    words = rest[2:] if interpreter == "R" and rest and rest[0] == "CMD" else rest
    found = interpreted(interpreter, words)
    if found.given_as == "text":
        return "", (name, *pattern_of(" ".join(found.words).split()))
    if not found.words:
        return name, pattern_of(rest)
    program = _generalised_name(_base(found.words[0]))
    if found.given_as == "module":
        program = f"{name} {'-jar' if found.option == '-jar' else '-m'} {program}"
    return program, pattern_of(found.words[1:])


def pattern_of(words: Sequence[str]) -> tuple[str, ...]:
    """The words without their details; at most so many."""
    pattern: list[str] = []
    for word in words[: 4 * _MOST_WORDS]:
        general = _generalised(word)
        if not pattern or pattern[-1] != general:
            pattern.append(general)
    return tuple(pattern[:_MOST_WORDS])


def _generalised(word: str) -> str:
    options: list[str] = []
    option, equals, value = word.partition("=")
    while equals and option.startswith("-") and len(options) < _MOST_WORDS:
        options.append(f"{_NUMBER.sub('#', option)}=")
        option, equals, value = (word := value).partition("=")
    return "".join((*options, _generalised_value(word)))


def _generalised_value(word: str) -> str:
    name = word.rpartition("/")[2]
    if (found := _FILE.fullmatch(name)) is not None:
        return f"*.{found[1]}"
    return "*" if "/" in word else _NUMBER.sub("#", word)


def _generalised_name(program: str) -> str:
    """A program's name; the numbers in those of scripts that were written for one run are ``#``."""
    return _NUMBER.sub("#", program) if "." in program else program


def _base(word: str) -> str:
    return word.rpartition("/")[2] or word
