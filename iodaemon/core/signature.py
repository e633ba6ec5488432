"""By what jobs are alike: their name, their command, and what is left of it without its details.

From the specific to the general:

1. ``name:solver``: the job's name, where it was given one.
2. ``command:./solve a.dat 40 in /home/ann/a``: the same words in the same directory.
3. ``like:solve *.dat #``: the program and its words; numbers are ``#``, files are ``*`` with what
   their names end with, and a word that is like the one before it is left out.
4. ``program:solve``: the program alone, whatever it is given.

The program is what does the work: ``mpirun -n 4 ./solve`` and ``nice ./solve`` are ``solve``,
``python train.py`` is ``train.py``, ``sh -c 'cd a; ./solve'`` is ``solve``.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from iodaemon.core.job import Job

Kind = Literal["name", "command", "like", "program"]
KINDS: Final = ("name", "command", "like", "program")
"""From the specific to the general."""
LONGEST: Final = 160
"""Characters of a key; what is longer is cut, and told from others by a checksum."""
_MOST_WORDS: Final = 24

_LAUNCHERS: Final = frozenset(
    {"env", "exec", "nice", "ionice", "nohup", "time", "timeout", "taskset", "numactl", "stdbuf"}
    | {"setsid", "chrt", "mpirun", "mpiexec", "orterun", "prun", "srun", "aprun", "jsrun"}
)
"""Programs that run another one; those of a directory of one's own are none of them."""
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_INTERPRETER: Final = re.compile(
    r"(?:python|pypy|perl|ruby|node|julia|Rscript|R|lua|octave|tclsh|java)[\d.]*", re.ASCII
)
_NUMBER: Final = re.compile(r"\d+(?:[.,:x_-]\d+)*(?:[eE][+-]?\d+)?", re.ASCII)
_FILE: Final = re.compile(r"[^/=]*\.([A-Za-z][A-Za-z0-9_]{0,7})")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_VALUE: Final = re.compile(r"[\d.,:x-]+[a-zA-Z]{0,3}", re.ASCII)
_SEPARATORS: Final = re.compile(r"&&|\|\||[;|&\n()]")


class Key(NamedTuple):
    """One way in which jobs of one user are alike."""

    uid: int
    kind: Kind
    text: str

    @property
    def shown(self) -> str:
        """As people see and write it."""
        return f"{self.kind}:{self.text}"


def keys_of(job: Job) -> tuple[Key, ...]:
    """The job's keys, from the specific to the general."""
    spec = job.spec
    return _keys(job.uid, spec.name, spec.command, spec.cwd)


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


def keys_elsewhere(uid: int, name: str, command: tuple[str, ...]) -> tuple[Key, ...]:
    """The keys of a run of which it is not known where its directory was."""
    return _keys(uid, name, command, None)


def find_key(uid: int, shown: str) -> Key | None:
    """The key that is shown so; None: it is none."""
    kind, _, text = shown.partition(":")
    for known in KINDS:
        if kind == known and text:
            return Key(uid, known, text)
    return None


def shortened(text: str) -> str:
    """The text, or as much of it as a key may have, with a checksum of the rest."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 9]}…{zlib.crc32(text.encode(errors='surrogatepass')):08x}"


def work_of(command: Sequence[str]) -> tuple[str, tuple[str, ...] | None]:
    """The program that does the work, and the pattern of its words.

    Returns:
        An empty program where there is none to name; None for the words where the command says
        nothing of the work at all.
    """
    words = _without_launcher(command)
    if not words:
        return "", None
    program, rest = _base(words[0]), words[1:]
    if program in _SHELLS:
        return _of_shell(program, rest)
    if _INTERPRETER.fullmatch(program):
        return _of_interpreter(program, rest)
    return _generalised_name(program), pattern_of(rest)


def _without_launcher(command: Sequence[str]) -> Sequence[str]:
    """The command behind what only runs it: options, numbers and variables go with that."""
    words = command
    while words and (words[0] in _LAUNCHERS or _VARIABLE.fullmatch(words[0])):
        words = words[1:]
        while words and (words[0].startswith("-") or _VALUE.fullmatch(words[0])):
            words = words[1:]
    return words or command


def _of_shell(shell: str, rest: Sequence[str]) -> tuple[str, tuple[str, ...] | None]:
    """A script, or a line of commands: the first program in it that is no word of the shell."""
    for place, word in enumerate(rest):
        if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
            return _of_line(shell, rest[place + 1] if place + 1 < len(rest) else "")
        if not word.startswith(("-", "+")):
            return _generalised_name(_base(word)), pattern_of(rest[place + 1 :])
    return shell, pattern_of(rest)


_CONTROL: Final = frozenset({"do", "then", "else", "elif", "if", "while", "until", "!", "{"})
"""Words of a shell before a command."""
_NO_WORK: Final = frozenset(
    {"cd", "set", "export", "source", ".", "ulimit", "umask", "module", "for", "case", "done", "fi"}
    | {"echo", "printf", "test", "[", "[[", "true", "mkdir", "trap", "}", "date", "sleep"}
)
"""What begins a command of a script that is not what the script is for."""


def _of_line(shell: str, line: str) -> tuple[str, tuple[str, ...] | None]:
    """Of a line of commands its whole pattern, and of its programs the first that works."""
    pattern = (f"{shell} -c", *pattern_of(line.split()))
    for part in _SEPARATORS.split(line):
        words: Sequence[str] = part.split()
        while words and words[0] in _CONTROL:
            words = words[1:]
        words = _without_launcher(words)
        if words and words[0] not in _NO_WORK | _LAUNCHERS:
            return _generalised_name(_base(words[0].strip("'\""))), pattern
    return shell, pattern


def _of_interpreter(name: str, rest: Sequence[str]) -> tuple[str, tuple[str, ...] | None]:
    """A script or module; a program in the command line itself has a pattern and no name."""
    for place, word in enumerate(rest):
        behind = rest[place + 1 :]
        if word in ("-m", "-jar", "-cp") and behind:
            return f"{name} {word} {_base(behind[0])}", pattern_of(behind[1:])
        if word in ("-c", "-e", "-E"):
            return "", (name, word, *pattern_of(" ".join(behind).split()))
        if not word.startswith("-"):
            return _generalised_name(_base(word)), pattern_of(behind)
    return name, pattern_of(rest)


def pattern_of(words: Sequence[str]) -> tuple[str, ...]:
    """The words without their details; at most so many."""
    pattern: list[str] = []
    for word in words[: 4 * _MOST_WORDS]:
        general = _generalised(word)
        if not pattern or pattern[-1] != general:
            pattern.append(general)
    return tuple(pattern[:_MOST_WORDS])


def _generalised(word: str) -> str:
    option, equals, value = word.partition("=")
    if equals and option.startswith("-"):
        return f"{_NUMBER.sub('#', option)}={_generalised(value)}"
    name = word.rpartition("/")[2]
    if (found := _FILE.fullmatch(name)) is not None:
        return f"*.{found[1]}"
    return "*" if "/" in word else _NUMBER.sub("#", word)


def _generalised_name(program: str) -> str:
    """A program's name; the numbers in those of scripts that were written for one run are ``#``."""
    return _NUMBER.sub("#", program) if "." in program else program


def _base(word: str) -> str:
    return word.rpartition("/")[2] or word
