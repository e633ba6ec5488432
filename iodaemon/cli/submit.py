"""``iod submit``: hands commands to the daemon, after checking what the submitter can see."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

from iodaemon.api.model import JobOptions, JobSpec, SubmitAnswer
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    App,
    AsJson,
    Context,
    Word,
    Words,
    argument,
    option,
    parse,
    verb,
)
from iodaemon.cli.commands import Command, Reader, read_commands
from iodaemon.cli.failure import ExitCode, UsageError
from iodaemon.cli.request import Place, check_command, find_place, script_command
from iodaemon.cli.said import (
    NOTHING,
    OPTIONS,
    Said,
    Scripts,
    check_options,
    check_said,
    merge,
    moved_to,
    names_files_by_name,
    options_of,
    said_by,
)
from iodaemon.cli.selector import job_words
from iodaemon.cli.session import Session
from iodaemon.errors import NoDaemon, RequestError

app = App()

_HERE: Final = "."

CommandWords = Annotated[Words, argument("COMMAND")]
Chdir = Annotated[Word, option("-D", "--chdir", metavar="DIR", text="Where it runs [here].")]
Env = Annotated[Words, option("--env", metavar="NAME=VALUE", text="Add to the environment.")]
CleanEnv = Annotated[
    bool,
    option("--clean-env", text="Send HOME, LANG, LOGNAME, SHELL, TZ, USER and a plain PATH."),
]
Shell = Annotated[
    bool,
    option("--shell", text="Have COMMAND, or each line of --from, run by sh: pipes, >, $X, *."),
]
From = Annotated[
    Word, option("--from", metavar="FILE|-", text="One command a line; all of them or none.")
]
Wait = Annotated[bool, option("--wait", text="Wait for the end, return the job's exit code.")]
Parsable = Annotated[bool, option("--parsable", text="Print only the job numbers, one a line.")]
DryRun = Annotated[bool, option("--dry-run", text="Have it checked, and submit nothing.")]


@verb(app, "submit", takes_command=True, options=OPTIONS)
def submit(
    ctx: Context,
    command: CommandWords = None,
    chdir: Chdir = None,
    env: Env = None,
    clean_env: CleanEnv = OFF,
    from_file: From = None,
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
    Lines '#SBATCH' are read too, and those that have no effect here are named.
    """
    place = find_place(os.environ, chdir=chdir, env=env or [], is_clean=clean_env)
    if shell and command:
        command = ["sh", "-c", " ".join(command)]
    said = said_by({name: word for name, word in given.items() if word not in (None, OFF)})
    if chdir is not None:
        said = said._replace(options={**said.options, "chdir": _HERE})  # it is the place already
    specs = _specs(ctx.obj, command, from_file, said, place, is_shell=shell)
    if dry_run:
        return _try(ctx.obj, specs, place.environment, as_json=as_json)
    report = _in_json if as_json else _bare if parsable else _in_words
    return _send(ctx.obj, specs, place.environment, report=report, wait=wait)


def _line_options(words: Sequence[str]) -> Said:
    """What the options before a line's command say.

    Raises:
        UsageError: one of them is none of one job, or means nothing.
    """
    parsed = parse(OPTIONS, words)
    if parsed is None or parsed[1]:
        raise UsageError(
            f"{' '.join(words)!r}: before -- stand options of 'iod submit' for this one job, such "
            "as -J name -n 4 -t 90m"
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
) -> list[JobSpec]:
    """Each command with what is said of it; one line a hint that makes no sense."""
    check_options(said, place)  # what is wrong with them is told before what is with the command
    scripts = Scripts(place)
    commands = _commands(session, command, from_file, place, scripts, is_shell=is_shell)
    merged: dict[tuple[int, int, int], Said] = {}
    made: dict[tuple[int, str], tuple[JobOptions, str]] = {}
    specs: list[JobSpec] = []
    for command_words, line, own in commands:
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
    return specs


def _called(said: Said, command: Sequence[str]) -> str:
    """The job's name, as the daemon will show it."""
    from iodaemon.core.job import JobSpec as Spec
    from iodaemon.core.signature import name_of

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
    """The commands to submit, each checked.

    Raises:
        UsageError: none is given, or one here and others in a file.
        RequestError: one could not be started from this place.
    """
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
        output.say("not known whether it was submitted: 'iod queue' shows the jobs")
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

    from iodaemon.cli.document import document_lines

    if len(specs) == 1:
        [spec] = specs
        shown = {"command": shlex.join(spec["command"]), **_others(spec)}
        print("\n".join(document_lines(shown)))
    else:
        print("\n".join(shlex.join(spec["command"]) for spec in specs))
    output.say(f"{output.count_of(len(specs), 'job')} would be submitted; nothing was")


def _others(spec: JobSpec) -> dict[str, Any]:
    """All but the command; the umask as people write it."""
    others = {key: value for key, value in spec.items() if key not in ("command", "umask")}
    return {**others, "umask": f"{spec['umask']:04o}"}
