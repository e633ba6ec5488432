"""Which program a command runs: behind launchers and interpreters, and in a line for a shell.

``srun -p batch ./solve`` runs ``solve``, not ``batch``: so it must be known which options of a
launcher take a word of their own. What is not listed is taken for an option without a value.
Source: the manual pages of GNU coreutils, util-linux, Slurm, Open MPI, MPICH, and the interpreters.

The standard library only: the command line needs it before it loads anything else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

_VALUE: Final = re.compile(r"[\d.,:x-]+[a-zA-Z]{0,3}", re.ASCII)
"""What stands between a launcher and its command: ``60s``, ``0-3``, ``0x3``."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
_SYSTEM: Final = re.compile(r"/(?:.*/)?s?bin/([^/]+)", re.DOTALL)

_MPI: Final = """
  -n -np -c -N -H -f -x -host --host -hosts -hostfile --hostfile -machinefile --machinefile -ppn
  -wdir -wd --wdir -path --path -iface -envlist -genvlist -map-by --map-by -bind-to --bind-to
  -rank-by --rank-by -rankfile --rankfile -rf -npernode --npernode -npersocket --prefix
  --output-filename --report-uri --app -app --tune --rmk -rmk -launcher -launcher-exec -tmpdir
  --tmpdir
"""
_LAUNCHERS: Final[Mapping[str, str]] = {
    "env": "-u -C --unset --chdir",
    "exec": "-a",
    "nice": "-n --adjustment",
    "ionice": "-c -n -p -P -u --class --classdata",
    "nohup": "",
    "time": "-f -o --format --output",
    "timeout": "-k -s --kill-after --signal",
    "taskset": "",
    "numactl": "-C -m -N -i -p -w --physcpubind --membind --cpunodebind --interleave --preferred",
    "stdbuf": "-i -o -e --input --output --error",
    "setsid": "",
    "chrt": "-T -P -D --sched-runtime --sched-period --sched-deadline",
    "sudo": "-u -g -C -D -h -p -R -T -U --user --group --chdir",
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "orterun": _MPI,
    "prun": _MPI,
    "srun": """
     -A -B -c -C -d -D -e -F -G -i -J -L -M -m -n -N -o -p -q -r -S -t -T -w -W -x -Z
     --account --bcast --begin --chdir --clusters --comment --constraint --cores-per-socket
     --cpu-bind --cpus-per-gpu --cpus-per-task --deadline --dependency --distribution --epilog
     --error --exclude --export --gpu-bind --gpus --gpus-per-node --gpus-per-task --gres
     --hint --input --job-name --jobid --licenses --mem --mem-bind --mem-per-cpu --mem-per-gpu
     --mpi --network --nodefile --nodelist --nodes --ntasks --ntasks-per-core
     --ntasks-per-node --ntasks-per-socket --open-mode --output --partition --prolog --qos
     --relative --reservation --signal --task-epilog --task-prolog --threads
     --threads-per-core --time --time-min --tmp --uid --wait --wckey
    """,
    "aprun": "-n -N -d -S -cc -cp -j -L -e -m -p -r -ss -E -W",
    "jsrun": "-n -a -c -g -r -d -b -p -E -F -D -l -K -m -o -k -t -e -A -h -i -L -P -S -U -X",
}
_TWO_WORDS: Final = frozenset({"-mca", "--mca", "-gmca", "--gmca", "-env", "-genv", "--prtemca"})
"""Options of MPI's launchers with a name and a value."""
_WITH_NUMBER: Final = frozenset({"timeout", "taskset", "chrt"})
"""Their command comes behind a duration, a mask or a priority."""

_INTERPRETERS: Final[Mapping[str, tuple[str, str]]] = {
    # with a value; with a program in place of a script
    "python": ("-W -X -Q --check-hash-based-pycs", "-c"),
    "pypy": ("-W -X -Q", "-c"),
    "perl": ("-I -M -m -F", "-e -E"),
    "ruby": ("-I -r -C -E", "-e"),
    "node": ("-r -C --require --import --loader --conditions", "-e -p --eval --print"),
    "julia": (
        "-J -t -p -C -L -H --sysimage --threads --procs --cpu-target --load --home --machine-file",
        "-e -E --eval --print",
    ),
    "Rscript": ("-g", "-e"),
    "R": ("-d -g --args --encoding", "-e"),
    "lua": ("-l", "-e"),
    "octave": ("-p --path --exec-path --image-path", "--eval"),
    "tclsh": ("-encoding", ""),
    "java": (
        "-cp -classpath --class-path -p --module-path --add-modules --add-opens --add-exports",
        "",
    ),
}

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_SHELL_OPTIONS: Final = frozenset({"-o", "-O", "+o", "+O", "--rcfile", "--init-file"})
"""Those of a shell that take a value."""


class Script(NamedTuple):
    """The file whose program a command runs.

    Attributes:
        word: as the command names it; empty where it runs none: a line, a module.
        is_program: it is the program itself, which may be found in PATH.
    """

    word: str
    is_program: bool


def script_of(command: Sequence[str]) -> Script:
    """The file that does the work: the script, not its interpreter nor what only starts that."""
    words = without_launchers(command)
    program = words[0].rpartition("/")[2]
    if is_shell(program):
        is_line, rest = shell_words(words[1:])
        return Script("" if is_line or not rest else rest[0], is_program=False)
    interpreter = interpreter_of(program)
    if interpreter is None:
        return Script(words[0], is_program=True)
    found = interpreted(interpreter, words[1:])
    is_file = found.given_as == "file" and found.words
    return Script(found.words[0] if is_file else "", is_program=False)


class Interpreted(NamedTuple):
    """What an interpreter is given to run.

    Attributes:
        given_as: a file, the name of a module (or archive), or a text in the words themselves.
        option: before it; empty for a file.
        words: of a file or module its name and what follows, if any; of a text that and its option.
    """

    given_as: Literal["file", "module", "text"]
    option: str
    words: Sequence[str]


def interpreted(interpreter: str, words: Sequence[str]) -> Interpreted:
    values, programs = (frozenset(options.split()) for options in _INTERPRETERS[interpreter])
    while words and words[0].startswith("-"):
        word, rest = words[0], words[1:]
        if word == "--":
            return Interpreted("file", "", rest)
        if rest and _is_module(word, interpreter):
            return Interpreted("module", word, rest)
        if _takes_program(word, values, programs):
            return Interpreted("text", word, words)
        words = rest[1:] if _takes_next(word, values) else rest
    return Interpreted("file", "", words)


def is_shell(program: str) -> bool:
    return program in _SHELLS


def shell_words(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Whether the first word behind a shell's options is a line of commands; these words."""
    is_line = False
    while words and words[0].startswith(("-", "+")):
        word, words = words[0], words[1:]
        if word == "--":
            break
        is_line = is_line or (word[0] == "-" and word[1:2] != "-" and "c" in word)
        if word in _SHELL_OPTIONS or (word[:2] != "--" and word[-1] in "oO"):
            words = words[1:]
    return is_line, words


def _is_module(word: str, interpreter: str) -> bool:
    """Whether what follows names the program, though it is no file: ``-m``, ``-um``, ``-jar``."""
    if interpreter == "java":
        return word in ("-jar", "-m", "--module")
    return interpreter in ("python", "pypy") and re.fullmatch(r"-[a-ln-zA-VYZ]*m", word) is not None


def launcher_of(word: str) -> str | None:
    """The launcher that a word calls, by its name or by a path of the system; None: it is none."""
    found = _SYSTEM.fullmatch(word)
    name = word if found is None else found[1]
    return name if name in _LAUNCHERS else None


def interpreter_of(program: str) -> str | None:
    """The interpreter's name without its version; None: the program is none."""
    name = program.rstrip("0123456789.")
    return name if name in _INTERPRETERS else None


def is_variable(word: str) -> bool:
    """True for ``NAME=value``, which goes before a command."""
    return _VARIABLE.fullmatch(word) is not None


def without_launchers(command: Sequence[str]) -> Sequence[str]:
    """The command behind what only runs it; the whole one where there is none behind."""
    words = command
    while words and ((name := launcher_of(words[0])) is not None or is_variable(words[0])):
        words = words[1:]
        if name is not None:
            words = _without_options(name, words)
    return words or command


def _without_options(launcher: str, words: Sequence[str]) -> Sequence[str]:
    """What is left behind a launcher's options, their values, and its own number, if it has one.

    A number behind an option that is not listed is taken for its value.
    """
    values = frozenset(_LAUNCHERS[launcher].split())
    is_mpi = _LAUNCHERS[launcher] is _MPI
    may_be_number = launcher in _WITH_NUMBER
    while words and (words[0].startswith("-") or (may_be_number and _VALUE.fullmatch(words[0]))):
        word, words = words[0], words[1:]
        if word == "--":
            break
        if is_mpi and word in _TWO_WORDS:
            words = words[2:]
        elif word in values or (not is_mpi and _takes_next(word, values)):
            words = words[1:]
        else:
            is_open = word.startswith("-") and word[-1].isalpha() and "=" not in word
            may_be_number = launcher in _WITH_NUMBER or is_open
            continue
        may_be_number = launcher in _WITH_NUMBER
    return words


def _takes_next(word: str, values: frozenset[str]) -> bool:
    """Whether the word after an option is its value: after ``-o``, ``-vo``, not after ``-oL``."""
    if word in values:
        return True
    if word.startswith("--") or not word.startswith("-"):
        return False
    for place, letter in enumerate(word[1:], start=1):
        if f"-{letter}" in values:
            return place == len(word) - 1
    return False


def _takes_program(word: str, values: frozenset[str], programs: frozenset[str]) -> bool:
    """Whether a program is in or behind the option: ``-e``, ``-lane``, ``--eval=1``."""
    if word.partition("=")[0] in programs:
        return True
    if word.startswith("--"):
        return False
    for letter in word[1:]:
        if not letter.isalpha() or f"-{letter}" in values:
            return False
        if f"-{letter}" in programs:
            return True
    return False


LONGEST: Final = 4096
"""Characters of a line that are looked at, its last ones."""
_CONTROL: Final = frozenset({"do", "then", "else", "elif", "if", "while", "until", "!", "{"})
"""Words of a shell before a command."""
NO_WORK: Final = frozenset(
    {"cd", "pushd", "popd", "set", "shopt", "export", "unset", "source", ".", "ulimit", "umask"}
    | {"module", "ml", "spack", "conda", "mamba", "alias", "declare", "local", "readonly", "read"}
    | {"for", "case", "esac", "done", "fi", "}", "trap", "wait", "exit", "return", "shift", "kill"}
    | {"echo", "printf", "test", "[", "[[", "true", "false", ":", "date", "sleep", "mkdir"}
)
"""What begins a command that is not what the line is for."""
LITTLE_WORK: Final = frozenset(
    {"tee", "grep", "head", "tail", "sed", "awk", "cut", "wc", "less", "cat", "rm", "mv", "cp"}
    | {"ls", "touch", "chmod", "ln", "sync", "mail", "gzip", "xz", "zstd", "sort", "uniq"}
)
"""What goes before or after the work, or takes its output; the work where there is nothing else."""
_SUBSTITUTION: Final = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`|\$\{[^{}]*\}")
_COMMENT: Final = re.compile(r"^[ \t]*#.*", re.MULTILINE)
_SIGNS: Final = ";&|()<>\n"
_APART: Final = re.compile(r"[;&|()\n]+")


def simple_commands(line: str) -> list[list[str]]:
    """The words of each, without control words, assignments and redirections; none is empty.

    Launchers are left out as well, and a command that is nothing else.
    """
    commands: list[list[str]] = [[]]
    is_target = False
    for word in _words(_SUBSTITUTION.sub("$", _COMMENT.sub("", line[-LONGEST:]))):
        is_sign = word != "" and not word.strip(_SIGNS)
        if is_sign:
            is_target = "<" in word or ">" in word
            if not is_target or _APART.search(word.replace("&", "")):
                commands.append([])
        elif is_target:
            is_target = False
        elif commands[-1] or word not in _CONTROL:
            commands[-1].append(word)
    found = [list(without_launchers(words)) for words in commands]
    return [words for words in found if words and words[0] and not _is_nothing(words[0])]


def _is_nothing(word: str) -> bool:
    """Whether what begins so is a launcher without a command, or assignments alone."""
    return is_variable(word) or launcher_of(word) is not None


def _words(line: str) -> list[str]:
    """As a shell takes them apart; where quotes do not match by blanks and signs alone."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_SIGNS)
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return [word for word in re.split(rf"\s+|([{re.escape(_SIGNS)}]+)", line) if word]
