"""``iod submit``: hands commands to the daemon, after checking what the submitter can see."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from iodaemon.api.model import JobOptions, JobSpec
from iodaemon.cli import output
from iodaemon.cli.command import new_app, verb
from iodaemon.cli.failure import UsageError
from iodaemon.cli.option import OFF, AsJson, Word, Words, argument, option
from iodaemon.cli.request import Place, check_command, find_place, parse_limits
from iodaemon.cli.selector import job_words
from iodaemon.cli.session import Session
from iodaemon.errors import RequestError

app = new_app()


Command = Annotated[Words, argument("COMMAND")]
Name = Annotated[Word, option("-J", "--name", metavar="NAME", text="Shown in the queue.")]
Cpus = Annotated[Word, option("-n", "--cpus", metavar="N", text="CPUs, all of one socket [1].")]
Mem = Annotated[Word, option("--mem", metavar="SIZE", text="Memory limit: 16G; bare number: MiB.")]
Time = Annotated[
    Word,
    option(
        "-t",
        "--time",
        metavar="TIME",
        text="Bound on run time, suspensions apart: 90m, HH:MM:SS; bare number: minutes.",
    ),
]
IoRate = Annotated[
    Word, option("--io-rate", metavar="RATE", text="I/O it will do: 40 MB/s; bare number: MB/s.")
]
NoSuspend = Annotated[bool, option("--no-suspend", text="The regulation never suspends it.")]
MaxSuspend = Annotated[
    Word,
    option(
        "--max-suspend",
        metavar="TIME",
        text="Longest suspension in a row by the regulation; bare number: minutes.",
    ),
]
Requeue = Annotated[
    bool, option("--requeue", text="Run it again if the machine is restarted while it runs.")
]
Chdir = Annotated[Word, option("-D", "--chdir", metavar="DIR", text="Where it runs [here].")]
Out = Annotated[
    Word, option("-o", "--output", metavar="FILE", text="Standard output; %j: the job's number.")
]
Err = Annotated[
    Word, option("-e", "--error", metavar="FILE", text="Standard error [as the output].")
]
Hold = Annotated[bool, option("--hold", text="Hold it until 'iod resume'.")]
Env = Annotated[Words, option("--env", metavar="NAME=VALUE", text="Add to the environment.")]
CleanEnv = Annotated[
    bool,
    option("--clean-env", text="Send HOME, LANG, LOGNAME, SHELL, TZ, USER and a plain PATH."),
]
From = Annotated[
    Word, option("--from", metavar="FILE|-", text="One command a line; all of them or none.")
]
Wait = Annotated[bool, option("--wait", text="Wait for the end, return the job's exit code.")]
Parsable = Annotated[bool, option("--parsable", text="Print the number alone, one a line.")]
DryRun = Annotated[bool, option("--dry-run", text="Check, print, and submit nothing.")]


@verb(app, "submit", takes_command=True)
def submit(
    ctx: typer.Context,
    command: Command = None,
    name: Name = None,
    cpus: Cpus = None,
    mem: Mem = None,
    time: Time = None,
    io_rate: IoRate = None,
    no_suspend: NoSuspend = OFF,
    max_suspend: MaxSuspend = None,
    requeue: Requeue = OFF,
    chdir: Chdir = None,
    out: Out = None,
    err: Err = None,
    hold: Hold = OFF,
    env: Env = None,
    clean_env: CleanEnv = OFF,
    from_file: From = None,
    wait: Wait = OFF,
    parsable: Parsable = OFF,
    dry_run: DryRun = OFF,
    as_json: AsJson = OFF,
) -> int:
    """Submit a job.

    COMMAND is all from -- (or from the first word that is no option), run without a shell, as in
    'iod submit -n 4 -t 90m -- ./solve mesh.dat'.
    """
    limits = parse_limits(cpus=cpus, mem=mem, time=time, io_rate=io_rate, max_suspend=max_suspend)
    place = find_place(os.environ, chdir=chdir, out=out, err=err, env=env or [], is_clean=clean_env)
    flags = _flags(name=name, no_suspend=no_suspend, requeue=requeue, hold=hold)
    options = limits | place.options | flags
    specs: list[JobSpec] = [
        {**options, "command": words} for words in _commands(ctx.obj, command, from_file, place)
    ]
    _warn_of_shared_files(specs)
    report = _in_json if as_json else _bare if parsable else _in_words
    if dry_run:
        return _show(specs, as_json=as_json)
    return _send(ctx.obj, specs, place.environment, report=report, wait=wait)


def _flags(*, name: str | None, no_suspend: bool, requeue: bool, hold: bool) -> JobOptions:
    """What was said, and nothing that was not: the daemon has the defaults."""
    flags = JobOptions()
    if name is not None:
        flags["name"] = name
    if no_suspend:
        flags["no_suspend"] = True
    if requeue:
        flags["requeue"] = True
    if hold:
        flags["hold"] = True
    return flags


def _commands(
    session: Session, command: list[str] | None, from_file: str | None, place: Place
) -> list[list[str]]:
    """The commands to submit, each checked.

    Raises:
        UsageError: none is given, or one here and others in a file.
        RequestError: one could not be started from this place.
    """
    if from_file is not None:
        if command:
            raise UsageError("--from reads the commands from a file: leave the command away")
        from iodaemon.cli.commands import read_commands

        return read_commands(from_file, lambda words: _check(session, words, place))
    if not command:
        raise UsageError("no command to submit: write it after --, as in 'iod submit -- make -j4'")
    _check(session, command, place)
    return [command]


def _check(session: Session, words: Sequence[str], place: Place) -> None:
    """Refuse what could not be started; a simulated node's commands are no programs."""
    try:
        check_command(words, place)
    except RequestError:
        if not session.is_simulated():
            raise


def _warn_of_shared_files(specs: Sequence[JobSpec]) -> None:
    for path in {specs[0].get("stdout"), specs[0].get("stderr")}:
        if len(specs) > 1 and path and "%j" not in path and not path.startswith("/dev/"):
            output.say(f"{len(specs)} jobs write to the one file {path}: %j in its name parts them")


def _send(
    session: Session,
    specs: Sequence[JobSpec],
    environment: dict[str, str],
    *,
    report: Callable[[list[int]], None],
    wait: bool,
) -> int:
    client = session.client()
    ids = client.submit(specs, environment)
    report(ids)
    if not wait:
        return 0
    from iodaemon.cli.wait import wait_for

    sys.stdout.flush()  # whoever reads it may act on the job while it runs
    return wait_for(client, ids, as_json=False)


def _in_words(ids: list[int]) -> None:
    print(job_words(ids))


def _bare(ids: list[int]) -> None:
    print("\n".join(map(str, ids)))


def _in_json(ids: list[int]) -> None:
    output.print_json({"ids": ids})


def _show(specs: Sequence[JobSpec], *, as_json: bool) -> int:
    """What would be sent; the commands can be pasted into a shell."""
    if as_json:
        output.print_json({"jobs": specs})
        return 0
    import shlex

    from iodaemon.cli.document import document_lines

    if len(specs) == 1:
        [spec] = specs
        shown = {"command": shlex.join(spec["command"]), **_others(spec)}
        print("\n".join(document_lines(shown)))
    else:
        print("\n".join(shlex.join(spec["command"]) for spec in specs))
    output.say(f"{job_count(len(specs))} would be submitted; nothing was")
    return 0


def _others(spec: JobSpec) -> dict[str, Any]:
    """All but the command; the umask as people write it."""
    others = {key: value for key, value in spec.items() if key not in ("command", "umask")}
    return {**others, "umask": f"{spec['umask']:04o}"}


def job_count(count: int) -> str:
    """So many jobs, in words."""
    return "1 job" if count == 1 else f"{count} jobs"
