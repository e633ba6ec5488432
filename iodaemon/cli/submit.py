"""``iod submit``: hands commands to the daemon, after checking what the submitter can see."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from iodaemon.api.model import JobOptions, JobSpec, SubmitAnswer
from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Word, Words, argument, option, parse, verb
from iodaemon.cli.directives import (
    NOTHING,
    OPTIONS,
    SBATCH_MARK,
    Said,
    Scripts,
    check_options,
    check_said,
    is_said,
    merge,
    moved_to,
    names_files_by_name,
    options_of,
    parse_lines,
    said_by,
    split_words,
)
from iodaemon.cli.failure import ExitCode, UsageError
from iodaemon.cli.output import say
from iodaemon.cli.request import Place, check_command, find_place, script_command
from iodaemon.cli.selector import job_words
from iodaemon.cli.session import Session
from iodaemon.errors import NoDaemon, NotFound, RequestError

app = App()

_HERE: Final = "."

Chdir = Annotated[Word, option("-D", "--chdir", metavar="DIR", text="Where it runs [here].")]
Env = Annotated[Words, option("--env", metavar="NAME=VALUE", text="Add to the environment.")]
CleanEnv = Annotated[
    bool, option("--clean-env", text="Send HOME, LANG, LOGNAME, SHELL, TZ, USER and a plain PATH.")
]
FromFile = Annotated[
    Word, option("--from", metavar="FILE|-", text="One command a line; all of them or none.")
]
Shell = Annotated[
    bool,
    option("--shell", text="Have COMMAND, or each line of --from, run by sh: pipes, >, $X, *."),
]
Wait = Annotated[bool, option("--wait", text="Wait for the end, return the job's exit code.")]
Parsable = Annotated[bool, option("--parsable", text="Print only the job numbers, one a line.")]
DryRun = Annotated[bool, option("--dry-run", text="Have it checked, and submit nothing.")]


@verb(app, "submit", OPTIONS, takes_command=True)
def submit(
    session: Session,
    command: Annotated[Words, argument("COMMAND")] = None,
    chdir: Chdir = None,
    env: Env = None,
    clean_env: CleanEnv = OFF,
    from_file: FromFile = None,
    shell: Shell = OFF,
    wait: Wait = OFF,
    parsable: Parsable = OFF,
    dry_run: DryRun = OFF,
    as_json: AsJson = OFF,
    **given: Any,
) -> int:
    """Submit a job.

    COMMAND is everything after --, or from the first word that is no option. It runs without a
    shell: 'iod submit -n 4 -t 90m -- ./solve mesh.dat'. A script runs by its first line (#!) even
    if it is not executable; - reads a script from standard input and keeps it in the job's command.

    A script may contain options, as lines '#IOD time=90m io=40M,20%' before its first command;
    options of the command line override them. In a --from file such a line applies to all commands
    below it, and a line may begin with options of its own: '-J big -n 4 -- ./solve big.dat'.
    Lines '#SBATCH' of a script are read too, and those that have no effect here are named.
    """
    place = find_place(os.environ, chdir=chdir, env=env or [], is_clean=clean_env)
    if shell and command:
        command = ["sh", "-c", " ".join(command)]
    said = said_by({name: word for name, word in given.items() if word not in (None, OFF)})
    if chdir is not None:
        said = said._replace(options={**said.options, "chdir": _HERE})  # it is the place already
    commands, specs = _specs(session, command, from_file, said, place, is_shell=shell)
    with _in_own_words(commands):
        if dry_run:
            return _try(session, specs, place.environment, as_json=as_json)
        report = _in_json if as_json else _bare if parsable else _in_words
        return _send(session, specs, place.environment, report=report, wait=wait)


_BYTE_ORDER_MARK: Final = "\ufeff"
"""Of standard input; that of a file is taken off as it is read."""
_TYPED: Final = {
    "name": "--name",
    "cpus": "--cpus",
    "memory_bytes": "--mem",
    "walltime_s": "--time",
    "max_suspend_s": "--max-suspend",
    "cwd": "--chdir",
    "stdout": "--stdout",
    "stderr": "--error",
    "size_bytes": "--scratch",
    "tier": "--tier",
    "input_path": "--input",
    "output_path": "--output",
    "output_bytes": "--output-size",
    "data_bytes": "--data-size",
}
"""The option that a key of a job comes from."""


@contextmanager
def _in_own_words(commands: Sequence[Command]) -> Iterator[None]:
    """Name the line and the option that the submitter wrote, where the daemon refuses a value."""
    try:
        yield
    except RequestError as error:
        if error.at[:1] != ("jobs",) or len(error.at) == 1:
            raise
        _, place, *keys = error.at
        key = keys[-1] if keys else place
        subject = f"{_TYPED.get(key, key)} " if isinstance(key, str) else ""
        line = commands[int(place)].place
        raise type(error)(f"{line}{': ' if line else ''}{subject}{error.problem}") from error


def _line_options(words: Sequence[str]) -> Said:
    """What the options before a line's command say."""
    parsed = parse(OPTIONS, words)
    if parsed is None or parsed[1]:
        known = [name for each in OPTIONS for name in each.typed]
        names = (word.partition("=")[0] for word in words if word.startswith("-"))
        other = next((name for name in names if name not in known and name[:2] not in known), None)
        if other is not None:
            raise UsageError(f"a line has no option {other}; it may have {', '.join(known)}")
        raise UsageError(
            f"{' '.join(words)!r}: the words before -- must be options of 'iod submit', such as "
            "-J name -n 4 -t 90m"
        )
    said = said_by(parsed[0])
    check_said(said)
    return said


def _specs(
    session: Session,
    command: list[str] | None,
    from_file: str | None,
    said: Said,
    place: Place,
    *,
    is_shell: bool,
) -> tuple[list[Command], list[JobSpec]]:
    """Each command, and with what is said of it; one line a hint that makes no sense."""
    check_options(said, place)  # what is wrong with them is told before what is with the command
    scripts = Scripts(place)
    commands = _commands(session, command, from_file, place, scripts, is_shell=is_shell)
    merged: dict[tuple[int, int, int], Said] = {}
    made: dict[tuple[int, str], tuple[JobOptions, str]] = {}
    specs: list[JobSpec] = []
    for command_words, line, own, _ in commands:
        words, here = command_words, place
        script = scripts.said(words)
        key = (id(script), id(line), id(own))  # all of them live as long as this call
        if key not in merged:
            merged[key] = merge(own, said, line, script)
        every = merged[key]
        if every.options.get("chdir", _HERE) != _HERE:
            here, words = moved_to(every.options["chdir"], words, place)
        called = _called(every, words) if names_files_by_name(every) else ""
        if (id(every), called) not in made:
            made[id(every), called] = options_of(every, here, called)
        options, problem = made[id(every), called]
        if problem:
            scripts.warnings[problem] = None
        shares: JobOptions = {} if "cpus" in options else {"shares_cores": True}
        specs.append({**options, **shares, "command": words})
    for warning in scripts.warnings:
        output.say(warning)
    _warn_of_shared_files(specs)
    return commands, specs


def _called(said: Said, command: Sequence[str]) -> str:
    """The job's name, as the daemon will show it."""
    from iodaemon.core.job import JobSpec as Spec
    from iodaemon.core.similarity import name_of

    return name_of(Spec(command=tuple(command), name=said.options.get("name", "")))


def _commands(
    session: Session,
    command: list[str] | None,
    from_file: str | None,
    place: Place,
    scripts: Scripts,
    *,
    is_shell: bool,
) -> list[Command]:
    """The commands to submit, each checked."""
    if from_file is not None:
        if command:
            raise UsageError("--from reads the commands from a file: leave the command away")
        check = partial(_check, session, place)
        return read_commands(from_file, Reader(check, _line_options, is_shell))
    if (command or ["-"])[0] == "-":
        text = _piped(is_asked=bool(command))
        if not command and not text.strip():
            raise UsageError(
                "no command to submit: write it after --, as in 'iod submit -- make -j4'"
            )
        words = check_command(script_command(text, (command or [])[1:]), place)
        return [Command(words, scripts.read(text.decode(errors="replace"), "standard input"))]
    assert command
    return [Command(_check(session, place, command), NOTHING)]


def _piped(*, is_asked: bool) -> bytes:
    """Standard input; empty where nobody has piped anything into it."""
    if sys.stdin is None or (not is_asked and sys.stdin.isatty()):
        return b""
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise RequestError(f"standard input: {error.strerror}; nothing was submitted") from error


def _check(session: Session, place: Place, words: Sequence[str]) -> list[str]:
    """The words to start; a simulated node's commands are no programs."""
    try:
        return check_command(words, place)
    except RequestError:
        if not session.is_simulated():
            raise
        return list(words)


def _warn_of_shared_files(specs: Sequence[JobSpec]) -> None:
    for path in {specs[0].get("stdout"), specs[0].get("stderr")}:
        if len(specs) > 1 and path and "%j" not in path and not path.startswith("/dev/"):
            output.say(f"{len(specs)} jobs write to the one file {path}: %j in its name parts them")


def _send(
    session: Session,
    specs: Sequence[JobSpec],
    environment: dict[str, str],
    *,
    report: Callable[[SubmitAnswer], None],
    wait: bool,
) -> int:
    client = session.client()
    try:
        answer = client.submit_warned(specs, environment, on_lost=_tell_lost)
    except KeyboardInterrupt:
        output.say("not known whether it was submitted: 'iod queue -a' shows the jobs")
        return ExitCode.INTERRUPTED
    with output.telling(lambda: f"{job_words(answer['ids'])} submitted"):
        report(answer)
    for warning in answer.get("warnings", []):
        output.say(warning)
    if not wait:
        return 0
    from iodaemon.cli.wait import wait_for

    return wait_for(client, answer["ids"], as_json=False)


def _tell_lost(_: NoDaemon) -> None:
    output.say("no answer from the daemon; asking again")


def _in_words(answer: SubmitAnswer) -> None:
    print(job_words(answer["ids"]))


def _bare(answer: SubmitAnswer) -> None:
    print("\n".join(map(str, answer["ids"])))


def _in_json(answer: SubmitAnswer) -> None:
    output.print_json(answer)


def _try(
    session: Session, specs: Sequence[JobSpec], environment: dict[str, str], *, as_json: bool
) -> int:
    """Have the daemon check it, and show what would be sent."""
    try:
        warnings = session.client().try_submission(specs, environment)
    except NoDaemon as error:
        warnings = []
        output.say(f"{error}; without one, not all is checked")
    _show(specs, as_json=as_json)
    for warning in warnings:
        output.say(warning)
    return 0


def _show(specs: Sequence[JobSpec], *, as_json: bool) -> None:
    """What would be sent; the commands can be pasted into a shell."""
    if as_json:
        output.print_json({"jobs": specs})
        return
    import shlex

    from iodaemon.cli.output import document_lines

    if len(specs) == 1:
        [spec] = specs
        shown = {"command": shlex.join(spec["command"]), **_others(spec)}
        print("\n".join(document_lines(shown)))
    else:
        print("\n".join(output.shortened(shlex.join(spec["command"])) for spec in specs))
    output.say(f"{output.count_of(len(specs), 'job')} would be submitted; nothing was")


def _others(spec: JobSpec) -> dict[str, Any]:
    """All but the command; the umask as people write it."""
    others = {key: value for key, value in spec.items() if key not in ("command", "umask")}
    return {**others, "umask": f"{spec['umask']:04o}"}


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
        place: file and line, such as ``jobs.txt:7``; empty: it is none's.
    """

    words: list[str]
    said: Said
    own: Said = NOTHING
    place: str = ""


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
    """
    shown = "standard input" if name == "-" else name
    try:
        if name == "-":
            commands = parse_commands(sys.stdin, shown, reader)
        else:
            with open(name, encoding="utf-8-sig") as file:
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
    ignored: list[int] = []
    checked: dict[str, list[str]] = {}
    said = NOTHING
    for number, line in enumerate(lines, start=1):
        text, own = line.removeprefix(_BYTE_ORDER_MARK).strip(), NOTHING
        if not text or text.startswith("#"):
            if is_said(text):
                said = parse_lines([(number, text)], shown)
            elif text.startswith(SBATCH_MARK):
                ignored.append(number)
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
        commands.append(Command([*checked[first], *words[1:]], said, own, f"{shown}:{number}"))
    if ignored:
        say(f"{shown}:{ignored[0]}: #SBATCH is read in scripts only and has no effect; write #IOD")
    if signs:
        number, sign = signs[0]
        many = f" (so in {output.count_of(len(signs) - 1, 'more line')})" if len(signs) > 1 else ""
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
