"""A submission as the submitter's own process can build and check it.

The daemon starts the job as the submitter, but later and elsewhere; whoever submits can see now
whether the command, the directory and the place for the output exist, and hears of it at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from iodaemon.api.model import JobOptions
from iodaemon.cli.failure import UsageError, count, duration_s, size_bytes
from iodaemon.cli.output import say, shortened
from iodaemon.core.program import interpreter_of, is_shell, script_of, without_launchers
from iodaemon.errors import RequestError

PLAIN_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""What ``--clean-env`` searches, whatever the submitter's PATH is."""

_CLEAN: Final = ("HOME", "LANG", "LOGNAME", "SHELL", "TZ", "USER")
_COERCED: Final = ("C.UTF-8", "C.utf8", "UTF-8")
_SHELLS_OWN: Final = frozenset(
    {".", "alias", "case", "cd", "declare", "eval", "exec", "export", "for", "function", "if"}
    | {"local", "module", "popd", "pushd", "set", "shopt", "source", "time", "trap", "ulimit"}
    | {"umask", "unset", "until", "wait", "while"}
)
_DESCRIPTOR: Final = re.compile(
    r"/dev/(stdin|stdout|stderr|fd(/.*)?)|/proc/(self|thread-self|\d+)/(fd|task|cwd|root|exe)(/.*)?"
)
"""Paths that lead elsewhere for each process."""
_MOST_LINKS: Final = 40
_FIRST_LINE_BYTES: Final = 4096
_SHOWN: Final = 80
_LONGEST_WORD: Final = 128 * 1024 - 1
"""Bytes of one word of a command (MAX_ARG_STRLEN, include/uapi/linux/binfmts.h)."""
_TAKES_TEXT: Final = {"python": "-c", "perl": "-e", "ruby": "-e"}
"""Interpreters that take a program in place of a file, as shells do behind -c."""
_NO_LIMIT: Final = frozenset({"infinite", "unlimited"})
_MINUTE_S: Final = 60.0
_LONGEST_S: Final = 3650 * 86400.0
"""The daemon takes no longer time."""
_NOTHING_DONE: Final = "nothing was submitted"
_PATTERN: Final = re.compile(r"%(.?)", re.DOTALL)
"""In the name of an output file; the letters are those of sbatch(1)."""


class Place(NamedTuple):
    """Where jobs run and with what.

    Attributes:
        options: ``cwd``, absolute, and ``umask``.
        environment: all of it.
    """

    options: JobOptions
    environment: dict[str, str]

    @property
    def cwd(self) -> str:
        """The directory the command starts in."""
        cwd: str = self.options["cwd"]
        return cwd

    def moved(self, folder: str) -> Place:
        """The same in another directory."""
        cwd = _working_directory(os.path.join(self.cwd, folder))
        return self._replace(options={**self.options, "cwd": cwd})


def parse_limits(
    *,
    cpus: str | None,
    mem: str | None,
    time: str | None,
    max_suspend: str | None = None,
) -> JobOptions:
    """The part of a spec that says how much; a bare number is MiB or minutes.

    A time that is ``unlimited`` or ``infinite`` is none.
    """
    limits = JobOptions()
    if cpus is not None:
        limits["cpus"] = count("--cpus", cpus, "CPUs", "4")
    if mem is not None:
        size = size_bytes("--mem", mem, bare_unit="MiB")
        limits["memory_bytes"] = int(above_nothing("--mem", mem, size))
    if time is not None and time.lower() not in _NO_LIMIT:
        limits["walltime_s"] = _minutes_s("--time", time)
    if max_suspend is not None:
        limits["max_suspend_s"] = _minutes_s("--max-suspend", max_suspend)
    return limits


def above_nothing(option: str, text: str, value: float) -> float:
    """The value."""
    if value <= 0:
        raise UsageError(f"{option}: {text!r} must be above 0; or leave {option} out")
    return value


def _minutes_s(option: str, text: str) -> float:
    value = above_nothing(option, text, duration_s(option, text, bare_unit_s=_MINUTE_S))
    if value > _LONGEST_S:
        raise UsageError(f"{option}: {text!r} is more than {_LONGEST_S / 86400.0:g}d")
    return value


def find_place(
    environ: Mapping[str, str],
    *,
    chdir: str | None,
    env: Sequence[str],
    is_clean: bool,
) -> Place:
    """Where the jobs will run, as absolute paths, and their environment."""
    cwd = _working_directory(chdir)
    options = JobOptions(cwd=cwd, umask=_umask())
    return Place(options, _environment(environ, env, is_clean=is_clean))


def output_options(
    cwd: str,
    out: str | None,
    err: str | None,
    *,
    option: str = "--stdout",
    called: str | None = None,
) -> JobOptions:
    """Where the job's words go, as absolute paths.

    Args:
        cwd: what they are relative to.
        out: of standard output.
        err: of standard error.
        option: the one that named ``out``.
        called: the job's name, for ``%x``. None: it is not known yet.
    """
    options = JobOptions()
    if out is not None:
        options["stdout"] = _output_file(option, cwd, _filled(option, out, called))
    if err is not None:
        options["stderr"] = _output_file("--error", cwd, _filled("--error", err, called))
    return options


def _filled(option: str, name: str, called: str | None) -> str:
    """The file's name without its patterns; ``%j`` stays, for only the daemon knows the number."""
    if "%" not in name:
        return name

    def fill(match: re.Match[str]) -> str:
        match match[1]:
            case "%":
                if name[match.end() :].startswith("j"):
                    raise UsageError(f"{option}: {name!r}: a literal %j cannot be in a file's name")
                return "%"
            case "j" | "J":
                return "%j"
            case "x":
                return "%x" if called is None else called.replace("/", "_")
            case "u":
                return _user_name()
            case "N":
                return os.uname().nodename
            case _:
                raise UsageError(
                    f"{option}: {match[0]!r} in {name!r} is no pattern: write %j for the job's "
                    "number, %x for its name, %u for the user, %N for the machine, %% for %"
                )

    return _PATTERN.sub(fill, name)


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _umask() -> int:
    """The submitter's own mask; the kernel tells it only while it changes it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _working_directory(chdir: str | None) -> str:
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    cwd = absolute(here, chdir or "") if here or chdir else ""
    if not os.path.isabs(cwd):
        raise RequestError(
            f"the present directory is gone: go to another one, or use --chdir; {_NOTHING_DONE}"
        )
    if _leads_elsewhere(cwd):
        raise RequestError(f"{cwd}: it is another directory for the job; {_NOTHING_DONE}")
    if not os.path.isdir(cwd):
        raise RequestError(f"{cwd}: no such directory; {_NOTHING_DONE}")
    if not os.access(cwd, os.X_OK):
        raise RequestError(f"{cwd}: you may not enter this directory; {_NOTHING_DONE}")
    return cwd


def absolute(cwd: str, name: str) -> str:
    """A path as the kernel would resolve it: ``..`` leads above what a link leads to.

    The last component, where it is a link, and links in paths without ``..`` stay as they are.
    """
    path = os.path.join(cwd, name)
    if ".." not in path.split("/"):
        return os.path.normpath(path)
    folder, last = os.path.split(path.rstrip("/"))
    if last == "..":
        folder, last = path, ""
    try:
        return os.path.join(os.path.realpath(folder, strict=True), last).rstrip("/") or "/"
    except OSError as error:
        raise RequestError(f"{name}: {folder}: {error.strerror}; {_NOTHING_DONE}") from error


def _leads_elsewhere(path: str) -> bool:
    """Whether a path, or what it is a link to, is another file for each process."""
    for _ in range(_MOST_LINKS):
        if _DESCRIPTOR.fullmatch(path):
            return True
        try:
            path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        except OSError:
            return False
    return False


def _output_file(option: str, cwd: str, name: str) -> str:
    path = absolute(cwd, name)
    folder = os.path.dirname(path)
    if _leads_elsewhere(path):
        raise RequestError(
            f"{option}: {path} is a descriptor, which each process has its own of; name a file; "
            f"{_NOTHING_DONE}"
        )
    if not name or name.endswith("/") or os.path.isdir(path):
        raise RequestError(f"{option}: {path} is a directory, name a file in it; {_NOTHING_DONE}")
    if "%j" in folder or "%x" in folder:
        return path  # the job's own number; only the daemon knows it
    if not os.path.isdir(folder):
        raise RequestError(f"{option}: {folder}: no such directory; {_NOTHING_DONE}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise RequestError(f"{option}: {path}: you may not write there; {_NOTHING_DONE}")
    return path


def _environment(
    environ: Mapping[str, str], added: Sequence[str], *, is_clean: bool
) -> dict[str, str]:
    environment = dict(environ)
    if environment.get("LC_CTYPE") in _COERCED and not _was_given("LC_CTYPE"):
        del environment["LC_CTYPE"]  # Python set it for itself, where the locale is C (PEP 538)
    if is_clean:
        environment = {name: environ[name] for name in _CLEAN if name in environ}
        environment["PATH"] = PLAIN_PATH
    for word in added:
        name, equals, value = word.partition("=")
        if not name or not equals:
            lacks = "value" if name else "name"
            raise UsageError(f"--env: {word!r} has no {lacks}; write --env NAME=VALUE")
        environment[name] = value
    garbled = [name for name, value in environment.items() if not _is_text(name + value)]
    for name in garbled:
        del environment[name]
        say(f"variable {ascii(name)[1:-1]} is left out: it is no UTF-8")
    return environment


def _was_given(name: str) -> bool:
    """Whether this process was started with that variable; true where nobody can tell."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return any(each.startswith(f"{name}=".encode()) for each in file.read().split(b"\0"))
    except OSError:
        return True


def check_command(words: Sequence[str], place: Place) -> list[str]:
    """The command to start; a script that is not executable is run by its interpreter."""
    for word in words:
        if "\0" in word:
            raise RequestError(f"{word[:_SHOWN]!a} contains a NUL byte; {_NOTHING_DONE}")
        if not _is_text(word):
            shown = os.fsencode(word[:_SHOWN]).decode(errors="backslashreplace")
            raise RequestError(
                f"'{shown}' is no UTF-8 text: rename it, or put it into a script; {_NOTHING_DONE}"
            )
    program = words[0]
    if not program:
        raise RequestError(f"the command is an empty word; {_NOTHING_DONE}")
    here = os.path.join(place.cwd, program)
    if "/" in program:
        return [*_find_runner(here, program), *words[1:]]
    path = place.environment.get("PATH", os.defpath)
    for folder in path.split(os.pathsep):
        candidate = os.path.join(place.cwd, folder, program)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return list(words)
    if os.path.isfile(here) and (runner := _run_by_interpreter(here, program)):
        return [*runner, *words[1:]]
    hint = f"; did you mean ./{program}?" if os.path.isfile(here) else ""
    is_syntax = program[0] in "({!" or program.endswith((";", "&"))
    if is_syntax or " " in program or "=" in program or program in _SHELLS_OWN:
        hint = ": --shell has it run by a shell"
    shown = shortened(program)
    raise RequestError(f"{shown}: no such command in PATH{hint}; {_NOTHING_DONE}")


def _find_runner(path: str, program: str) -> list[str]:
    """The words that run this file: itself, or its interpreter and itself."""
    if os.path.isdir(path):
        raise RequestError(f"{program}: is a directory; {_NOTHING_DONE}")
    if not os.path.exists(path):
        hint = ": --shell has it run by a shell" if program.startswith("~") else ""
        raise RequestError(f"{shortened(program)}: no such file{hint}; {_NOTHING_DONE}")
    runner = _run_by_interpreter(path, program)
    if os.access(path, os.X_OK):
        return [program]
    if not runner:
        raise RequestError(f"{program}: not executable, try chmod +x {program}; {_NOTHING_DONE}")
    return runner


def _run_by_interpreter(path: str, program: str) -> list[str]:
    """The interpreter that a script's first line names, and the script; empty where it names none.

    Also where nobody would see that the interpreter runs this script, with its ``#IOD`` lines.
    """
    line = _first_line(path)
    _check_first_line(line, program, f"sed -i '%s' {program}")
    interpreter = _find_interpreter(line, program)
    words = [*interpreter, program]
    return words if interpreter and script_of(words).word == program else []


def _first_line(path: str) -> bytes:
    """Empty where the file cannot be read: it may be executable all the same."""
    try:
        with open(path, "rb") as file:
            return file.readline(_FIRST_LINE_BYTES)
    except OSError:
        return b""


def _check_first_line(line: bytes, shown: str, sed: str) -> None:
    """Refuse a script that an editor of another system has made unreadable for the kernel."""
    if line.startswith(b"\xef\xbb\xbf#!"):
        problem, cure = "begins with a byte order mark", "1s/^\\xef\\xbb\\xbf//"
    elif line.startswith(b"#!") and line.endswith(b"\r\n"):
        problem, cure = "has line ends of DOS", "s/\\r$//"
    else:
        return
    raise RequestError(
        f"{shown}: {problem}, which the kernel takes for a part of the interpreter's name: "
        f"{sed % cure}; {_NOTHING_DONE}"
    )


def _find_interpreter(line: bytes, shown: str) -> list[str]:
    """The interpreter that a script's first line names, with its argument; empty: none."""
    if not line.startswith(b"#!"):
        return []
    words = os.fsdecode(line[2:]).strip().split(None, 1)  # one argument, as in execve(2)
    if words and not os.access(words[0], os.X_OK):
        raise RequestError(
            f"{shown}: its interpreter {words[0]} is missing or not executable; {_NOTHING_DONE}"
        )
    return words


def script_command(text: bytes, arguments: Sequence[str]) -> list[str]:
    """The command that runs a script which is in no file: the interpreter is given its text."""
    shown = "standard input"
    line = text.partition(b"\n")[0] + b"\n"
    _check_first_line(line, shown, "pass it through sed '%s'")
    words = _find_interpreter(line, shown)
    if not words:
        raise RequestError(
            f"{shown}: no script: it must begin with #! and what runs it, such as #!/bin/sh; "
            f"--from - reads one command a line; {_NOTHING_DONE}"
        )
    program = os.path.basename(without_launchers(words)[0])
    option = "-c" if is_shell(program) else _TAKES_TEXT.get(interpreter_of(program) or "")
    if option is None:
        raise RequestError(
            f"{shown}: {program} takes its script from a file only: write one and submit that; "
            f"{_NOTHING_DONE}"
        )
    if len(text) > _LONGEST_WORD:
        raise RequestError(
            f"{shown}: a script of {len(text)} bytes, and {_LONGEST_WORD} are taken: write it to "
            f"a file and submit that; {_NOTHING_DONE}"
        )
    name = [shown.replace(" ", "-")] if is_shell(program) else []  # its $0
    options = [word for word in words[1:] if word not in ("-", "--")]
    return [words[0], *options, option, os.fsdecode(text), *name, *arguments]


def _is_text(word: str) -> bool:
    """True for what arrives at the daemon byte for byte: it sends and takes UTF-8.

    Bytes that are no UTF-8 are lone surrogates here; in another locale a word has other bytes.
    """
    try:
        return word.isascii() or word.encode() == os.fsencode(word)
    except UnicodeEncodeError:
        return False
