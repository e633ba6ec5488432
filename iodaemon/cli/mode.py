"""``iod mode``: what regulation may do, and switching it."""

from __future__ import annotations

from typing import Annotated, Final

from iodaemon.api.model import ModeAnswer
from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.option import OFF, AsJson, Word, argument
from iodaemon.cli.output import Column
from iodaemon.cli.session import Session
from iodaemon.core.condition import MODES

app = App()

_COLUMNS: Final = (Column("JOB", is_number=True), Column("WOULD HAVE STOOD", is_number=True))


@verb(app, "mode")
def mode(
    ctx: Context,
    to: Annotated[Word, argument("on|shadow|off")] = None,
    as_json: AsJson = OFF,
) -> int:
    """Show what regulation may do, or switch it: on, shadow, off.

    In shadow it decides and records, and touches nothing. A switch outlives the daemon.
    """
    if to is not None and to not in MODES:
        raise UsageError(f"no mode {to!r}{nearest(to, MODES, 'one of on, shadow, off')}")
    session: Session = ctx.obj
    client = session.client()
    if to is not None:
        client.switch(to)
    answer = client.mode()
    if as_json:
        output.print_json(answer)
    else:
        print("\n".join(mode_lines(answer)))
    return 0


def mode_lines(answer: ModeAnswer) -> list[str]:
    """The mode; in shadow, how long each job would have stood still."""
    from iodaemon.units import format_duration

    mode = answer["mode"]
    told = MODES.get(mode, f"regulation is {mode}")
    if mode != "shadow":
        return [told]
    lines = [f"{told}; 'iod events --kind shadow' has what it would have done"]
    stood_s = sorted(
        (int(job_id), held_s) for job_id, held_s in answer["shadow_suspended_s"].items()
    )
    if not stood_s:
        return [*lines, "it would have suspended none of the jobs that run now"]
    rows = [(str(job_id), format_duration(round(held_s, 1))) for job_id, held_s in stood_s]
    return [*lines, *output.table(_COLUMNS, rows)]
