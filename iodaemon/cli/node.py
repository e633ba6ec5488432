"""``iod node``, ``iod mode``, ``iod drain``: the machine, its regulation, what may start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.api.model import JsonObject, JsonValue, ModeAnswer
from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Context, Word, argument, option, verb
from iodaemon.cli.document import document_lines
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.output import Column
from iodaemon.cli.queue import condition_lines, drain_words
from iodaemon.cli.selector import format_ids
from iodaemon.cli.session import Session
from iodaemon.core.condition import MODES
from iodaemon.errors import RequestError
from iodaemon.text import printable

if TYPE_CHECKING:
    from iodaemon.api.client import Client
    from iodaemon.api.model import DrainAnswer

app = App()


@verb(app, "node")
def node(ctx: Context, as_json: AsJson = OFF) -> int:
    """Show sockets, slots, devices, and what is measured how."""
    session: Session = ctx.obj
    answer = session.client().node()
    output.show(answer, lambda: _node_lines(answer), as_json=as_json)
    return 0


def _node_lines(answer: JsonObject) -> list[str]:
    condition = answer.pop("condition", None)
    above = condition_lines(condition if isinstance(condition, dict) else None)
    return [*above, *document_lines(_in_place(answer))]


def _in_place(answer: JsonObject) -> JsonObject:
    """The answer, with what is wrong with the calibrations where they would stand.

    Limits of how many jobs contend are shown where there are any.
    """
    shown: JsonObject = {}
    for key, value in answer.items():
        if key == "calibration_problem":
            shown["calibration"] = {"problem": value}
        elif key == "limits":
            shown |= {"limits": _limits(value)} if value else {}
        else:
            shown[key] = value
    return shown


def _limits(limits: JsonValue) -> JsonValue:
    """One that is not known is none."""
    if not isinstance(limits, list):
        return limits
    rows = [dict(limit) for limit in limits if isinstance(limit, dict)]
    for row in rows:
        if row.get("limit") is None:
            row["limit"] = "none"
    return [*rows]


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
    output.show(answer, lambda: mode_lines(answer), as_json=as_json)
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


_WORDS: Final = ("on", "off")
_POLL_S: Final = 20
"""Below the client's patience."""

Reason = Annotated[Word, option("--reason", metavar="TEXT", text="What for; every job shows it.")]
Wait = Annotated[bool, option("--wait", text="Drain, and return when no job holds CPUs any more.")]
Off = Annotated[bool, option("--off", text="As 'iod drain off'.")]


@verb(app, "drain")
def drain(
    ctx: Context,
    to: Annotated[Word, argument("on|off")] = None,
    reason: Reason = None,
    wait: Wait = OFF,
    off: Off = OFF,
    as_json: AsJson = OFF,
) -> int:
    """Show whether jobs may start, or drain: on, off.

    Drained, nothing starts any more, until 'iod drain off'. What is submitted waits; what runs goes
    on, and is regulated as before. It outlives the daemon. --reason and --wait drain as well; a
    drain that goes on keeps its reason, unless another is given. To drain is for administrators.
    """
    from iodaemon.api.care import begin_drain, end_drain, show_drain

    if to not in (None, "on", "off"):
        raise UsageError(f"no {to!r}{nearest(to or '', _WORDS, 'write on or off')}")
    is_off = off or to == "off"
    is_on = to == "on" or wait or reason is not None
    if is_on and is_off:
        raise UsageError("off goes with neither on, --wait nor --reason: it lets jobs start again")
    session: Session = ctx.obj
    client = session.client()
    if wait and (own := client.own_job()) is not None:
        raise RequestError(f"job {own} is the one that waits here, and holds CPUs itself")
    if is_off:
        answer = end_drain(client)
    else:
        answer = begin_drain(client, reason or "") if is_on else show_drain(client)
    if wait and not answer["at_rest"]:
        output.say(_words(answer))
        answer = _wait(client)
    output.show(answer, lambda: [_words(answer)], as_json=as_json)
    return 0


def _wait(client: Client) -> DrainAnswer:
    """Until no job holds CPUs; who stands still by somebody's wish is named, for it may not end.

    Raises:
        RequestError: somebody ended the drain meanwhile.
    """
    from iodaemon.api.care import show_drain

    named: list[int] = []
    while True:
        answer = show_drain(client, _POLL_S)
        if not answer["draining"]:
            raise RequestError("the drain was ended meanwhile: see 'iod events --kind drain'")
        if answer["at_rest"]:
            return answer
        held = [job["id"] for job in answer["holding"] if job["state"] == "SUSPENDED_USER"]
        if held and held != named:
            output.say(f"stands still until somebody resumes or cancels it: {format_ids(held)}")
            named = held


def _words(answer: DrainAnswer) -> str:
    holding = [job["id"] for job in answer["holding"]]
    left = f"CPUs are held by {format_ids(holding)}" if holding else "no job holds CPUs"
    if not answer["draining"]:
        return "the node is not drained: jobs start"
    return printable(f"{drain_words(answer)}; {left}")
