"""``iod``: finds the verb, runs it, and tells every failure in one line.

Only the module of the verb that is called gets imported.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.main import get_group

from iodaemon.cli import failure, output
from iodaemon.cli.command import WordGroup, new_app
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.option import OFF, Word, option
from iodaemon.cli.session import Session

VERBS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "submit": "submit",
        "queue": "queue",
        "show": "show",
        "why": "why",
        "logs": "logs",
        "wait": "wait",
        "cancel": "control",
        "requeue": "control",
        "suspend": "control",
        "resume": "control",
        "phase": "phase",
        "scratch": "scratch",
        "history": "history",
        "events": "events",
        "mode": "mode",
        "drain": "drain",
        "replay": "replay",
        "node": "node",
        "doctor": "doctor",
        "calibrate": "calibrate",
        "compare": "compare",
        "stack": "stack",
        "hint": "hint",
        "policy": "policy",
        "config": "config",
        "sim": "sim",
        "install": "install",
        "backup": "backup",
        "restore": "restore",
        "daemon": "daemon",
        "stop": "stop",
        "supervisor": "supervisor",
    }
)
"""Each verb and the module it lives in."""

ALIASES: Final[Mapping[str, str]] = MappingProxyType({"ls": "queue", "inspect": "show"})


_CANCEL: Final = "'iod cancel JOB' ends a job"
_QUEUE: Final = "'iod queue' shows the jobs, 'iod node' the machine"
_HOLD: Final = "'iod suspend JOB' holds a job that waits, and suspends one that runs"
_SUBMIT: Final = "'iod submit -- COMMAND' submits a job"
POINTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("hold", "pause", "stash"), _HOLD),
        **dict.fromkeys(
            ("release", "unhold", "continue", "unsuspend", "unpause"), "'iod resume JOB' lets it go"
        ),
        **dict.fromkeys(("kill", "dequeue", "rm", "del", "delete", "remove", "abort"), _CANCEL),
        **dict.fromkeys(("status", "stat", "ps", "list", "jobs", "top", "info"), _QUEUE),
        **dict.fromkeys(("add", "run", "sub", "batch"), _SUBMIT),
        **dict.fromkeys(
            ("edit", "update", "modify", "alter", "set"),
            "a job cannot be changed: 'iod cancel JOB' and submit it again",
        ),
        **dict.fromkeys(("log", "output", "cat", "tail"), "'iod logs JOB' prints what it wrote"),
        **dict.fromkeys(("restart", "retry", "rerun"), "'iod requeue JOB' runs it again"),
        **dict.fromkeys(("acct", "sacct"), "'iod history' shows what has ended"),
        **dict.fromkeys(("open", "undrain"), "'iod drain --off' lets jobs start again"),
        "start": "'iod daemon' starts the daemon, 'iod resume JOB' lets a held job go",
        "explain": "'iod why JOB' tells why a job waits",
        "reload": "'iod config reload' reads the configuration again",
    }
)
"""Verbs of other batch systems, and what does it here."""


class VerbGroup(WordGroup):
    """Imports a verb when it is asked for."""

    pointers = POINTERS

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """All verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of this name, or None."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in VERBS:
            return None
        app: typer.Typer = import_module(f"iodaemon.cli.{VERBS[name]}").app
        return get_group(app).get_command(ctx, name)


app = new_app(VerbGroup, help="I/O-aware batch jobs on one Linux server.")


def _version(value: bool) -> None:  # noqa: FBT001 - typer calls it
    if value:
        from iodaemon import __version__

        print(f"iod {__version__}")
        raise typer.Exit


Api = Annotated[
    Word,
    typer.Option("--api", metavar="PATH", envvar="IOD_API_SOCKET", help="The daemon's socket."),
]
ConfigFile = Annotated[Word, option("--config", metavar="FILE", text="The configuration file.")]
Debug = Annotated[bool, option("--debug", text="Show tracebacks.")]
Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
]


@app.callback()
def options(
    ctx: typer.Context,
    api: Api = None,
    config: ConfigFile = None,
    debug: Debug = OFF,
    version: Version = OFF,  # noqa: ARG001 - its callback answers
) -> None:
    """I/O-aware batch jobs on one Linux server."""
    session: Session = ctx.obj
    session.api, session.config, session.debug = api, config, debug


def run(argv: Sequence[str] | None) -> int:
    """Run one command line; its exit code. Every failure is one line on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    session = Session()
    _open_missing_streams()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with output.telling(""):
            code = _invoke(words, session)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return ExitCode.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the user sees one line; --debug shows the rest
        if session.debug:
            sys.excepthook(type(error), error, error.__traceback__)
        print(f"iod: {failure.line(error)}", file=sys.stderr)
        if isinstance(error, failure.OutputError):
            _forget_stdout()
        return failure.exit_code(error)
    return code


def _invoke(words: list[str], session: Session) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a job's name may hold anything
    command = get_group(app)
    try:
        with command.make_context("iod", words, obj=session) as ctx:
            return int(command.invoke(ctx) or 0)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort as end:
        raise KeyboardInterrupt from end


def _open_missing_streams() -> None:
    """Standard streams that are closed lead nowhere: else another file would get their numbers."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(nowhere)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _forget_stdout() -> None:
    """Send what is still buffered to nowhere, or Python complains about the pipe at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
