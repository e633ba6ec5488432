"""``iod phase``: in a job's script, around its I/O: wait for the turn, give it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.failure import ExitCode, UsageError
from iodaemon.cli.option import OFF, Word, option
from iodaemon.cli.session import Session
from iodaemon.errors import ConfigError

app = App()
phases = App("In a job's script, around its I/O: io, done.")
app.verbs["phase"] = phases

Expect = Annotated[
    Word, option("--expect", metavar="SIZE", text="How much will be read and written, as 2G.")
]
Timeout = Annotated[
    Word, option("--timeout", metavar="TIME", text="Go on without a turn after so long.")
]
Strict = Annotated[
    bool, option("--strict", text="Fail where there is no turn to be had, also outside a job.")
]


@verb(phases, "io")
def io(ctx: Context, expect: Expect = None, timeout: Timeout = None, strict: Strict = OFF) -> int:
    """Wait until it is this job's turn to do I/O.

    A script goes on in any case: outside a job at once, where no daemon answers after 30 s.
    """
    from iodaemon.phase import ask_turn

    session: Session = ctx.obj
    size_bytes, timeout_s = _size_bytes(expect), _duration_s(timeout)
    return _tell(
        lambda: ask_turn(size_bytes, timeout_s=timeout_s, api=session.api), is_strict=strict
    )


@verb(phases, "done")
def done(ctx: Context, strict: Strict = OFF) -> int:
    """Give the turn back: the I/O is done. Without a turn it does nothing."""
    from iodaemon.phase import give_back

    session: Session = ctx.obj
    return _tell(lambda: give_back(api=session.api), is_strict=strict)


def _tell(ask: Callable[[], None], *, is_strict: bool) -> int:
    from iodaemon.phase import NoTurn

    try:
        ask()
    except NoTurn as error:
        if not is_strict:
            output.say(f"{error}; going on")
            return ExitCode.OK
        output.say(f"{error}: {_ADVICE[error.why]}")
        return ExitCode.NO_DAEMON if error.why == "daemon" else ExitCode.REFUSED
    return ExitCode.OK


_ADVICE = {
    "outside": "submit the script with 'iod submit'",
    "daemon": "start it with 'iod daemon'",
    "refused": "look at 'iod queue'",
    "timeout": "'iod why' tells who has it",
}


def _size_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    from iodaemon.units import parse_bytes

    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise UsageError(f"--expect: {error}") from error


def _duration_s(text: str | None) -> float | None:
    if text is None:
        return None
    from iodaemon.units import parse_duration_s

    try:
        return parse_duration_s(text)
    except ConfigError as error:
        raise UsageError(f"--timeout: {error}") from error
