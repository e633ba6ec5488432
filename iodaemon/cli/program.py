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
from typing import Final

from iodaemon.cli import failure, output
from iodaemon.cli.command import OFF, App, Verb, Word, option, parse, read
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.session import Session

GROUPS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "Jobs": {
            "submit": "submit",
            "queue": "queue",
            "show": "show",
            "why": "show",
            "logs": "wait",
            "wait": "wait",
            "cancel": "control",
            "requeue": "control",
            "suspend": "control",
            "resume": "control",
            "phase": "wait",
            "scratch": "control",
            "history": "history",
            "events": "history",
        },
        "Regulation": {
            "node": "node",
            "mode": "node",
            "policy": "config",
            "hint": "hint",
            "calibrate": "calibrate",
        },
        "Administration": {
            "drain": "node",
            "config": "config",
            "doctor": "install",
            "install": "install",
            "backup": "daemon",
            "restore": "daemon",
            "daemon": "daemon",
            "stop": "daemon",
            "completion": "completion",
        },
        "Experiments": {
            "compare": "compare",
            "replay": "replay",
            "sim": "sim",
        },
        "": {"supervisor": "daemon"},
    }
)
"""Each verb and the module it lives in, as the help groups them; the last group is not shown."""
VERBS: Final[Mapping[str, str]] = MappingProxyType(
    {name: module for verbs in GROUPS.values() for name, module in verbs.items()}
)

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
        **dict.fromkeys(
            ("kill", "dequeue", "scancel", "qdel", "rm", "del", "delete", "remove", "abort"),
            _CANCEL,
        ),
        **dict.fromkeys(
            ("status", "stat", "qstat", "squeue", "sinfo", "ps", "list", "jobs", "top", "info"),
            _QUEUE,
        ),
        **dict.fromkeys(("add", "run", "sub", "batch", "sbatch", "srun", "qsub"), _SUBMIT),
        **dict.fromkeys(
            ("edit", "update", "modify", "alter", "set"),
            "a job cannot be changed: 'iod cancel JOB' and submit it again",
        ),
        **dict.fromkeys(("log", "output", "cat", "tail"), "'iod logs JOB' prints what it wrote"),
        **dict.fromkeys(("restart", "retry", "rerun"), "'iod requeue JOB' runs it again"),
        **dict.fromkeys(("acct", "sacct"), "'iod history' shows what has ended"),
        **dict.fromkeys(("open", "undrain"), "'iod drain off' lets jobs start again"),
        "start": "'iod daemon' starts the daemon, 'iod resume JOB' lets a held job go",
        "explain": "'iod why JOB' tells why a job waits",
        "shutdown": "'iod stop' ends a daemon that was started by hand; its jobs run on",
        "help": "'iod --help' lists the verbs, 'iod submit --help' explains one",
        "version": "'iod --version' shows it",
        "reload": "'iod config reload' reads the configuration again",
    }
)
"""Verbs of other batch systems, and what does it here."""


GLOBALS: Final = (
    option("--api", metavar="PATH", text="The daemon's socket [IOD_API_SOCKET]."),
    option("--config", metavar="FILE", text="The configuration file."),
    option("--debug", text="Show tracebacks."),
    option("--version", text="Show the version."),
)
"""The options before the verb."""
_API_VARIABLE: Final = "IOD_API_SOCKET"
COMPLETE: Final = "_IOD_COMPLETE"
"""In the environment of a call that a shell makes to complete words."""


def begin(
    session: Session,
    *,
    api: Word = None,
    config: Word = None,
    debug: bool = OFF,
    version: bool = OFF,
) -> None:
    """Take the options that stand before the verb."""
    session.api = api or os.environ.get(_API_VARIABLE)
    session.config, session.debug = config, debug
    if version:
        from iodaemon import __version__

        print(f"iod {__version__}")
        raise SystemExit(0)


def find_top(name: str) -> App | Verb | None:
    """The verb; only its module is imported. None: there is no such verb."""
    name = ALIASES.get(name, name)
    module = VERBS.get(name)
    if module is None:
        return None
    app: App = import_module(f"iodaemon.cli.{module}").app
    return app.verbs[name]


def find(words: Sequence[str]) -> tuple[Verb, Sequence[str]] | None:
    """The verb that these words begin with, and its words; None: typer will say what is."""
    found = find_top(words[0]) if words else None
    rest = words[1:]
    while isinstance(found, App):
        found, rest = found.verbs.get(rest[0]) if rest else None, rest[1:]
    return found and (found, rest)


def run(argv: Sequence[str] | None) -> int:
    """Run one command line; its exit code. Every failure is one line on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    session = Session()
    _open_missing_streams()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a job's name may hold anything
        with output.telling(lambda: "it was done" if session.change[0] == "answered" else ""):
            code = _invoke(words, session)
    except KeyboardInterrupt:
        state, told_by = session.change
        if state == "sent":
            output.say(f"not known whether that was done: {told_by}")
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
    """Call the verb where all is as declared, else have typer do it, or say what is wrong."""
    try:
        if COMPLETE in os.environ:
            from iodaemon.cli.typer_app import complete

            complete(session)
        if parsed := parse(GLOBALS, words, takes_command=True):
            begin(session, **parsed[0])
            found = find(parsed[1])
            values = None if found is None else read(*found)
            if found is not None and values is not None:
                return found[0].call(session, values)
        from iodaemon.cli.typer_app import run_by_typer

        return run_by_typer(words, session)
    except SystemExit as end:
        return int(end.code or 0)


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
