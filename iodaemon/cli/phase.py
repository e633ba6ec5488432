"""``iod phase``: in a job's script, around its I/O: wait for the turn, give it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, Context, Word, option, verb
from iodaemon.cli.failure import ExitCode, duration_s, size_bytes
from iodaemon.cli.session import Session

app = App()
phases = App("Tell of I/O phases in a job's script: io, done.")
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
    expected = None if expect is None else size_bytes("--expect", expect)
    timeout_s = None if timeout is None else duration_s("--timeout", timeout)
    return _tell(lambda: ask_turn(expected, timeout_s=timeout_s, api=session.api), is_strict=strict)


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
