"""``iod node``, ``iod mode``, ``iod drain``: the machine, its regulation, what may start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from iodaemon.api.model import JsonObject, ModeAnswer
from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Word, argument, option, verb
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.output import Column, document_lines
from iodaemon.cli.queue import condition_lines, drain_words
from iodaemon.cli.selector import format_ids, job_words
from iodaemon.cli.session import Session
from iodaemon.core.words import MODES
from iodaemon.errors import RequestError
from iodaemon.text import printable
from iodaemon.units import format_duration

if TYPE_CHECKING:
    from iodaemon.api.client import Client
    from iodaemon.api.model import DrainAnswer

app = App()


@verb(app, "node")
def node(session: Session, as_json: AsJson = OFF) -> int:
    """Show sockets, CPUs, devices, and what is measured how."""
    answer = session.client().node()
    output.show(answer, lambda: _node_lines(answer), as_json=as_json)
    return 0


def _node_lines(answer: JsonObject) -> list[str]:
    """What is wrong with the calibrations stands in their place; limits where there are any."""
    shown: dict[str, Any] = {}
    for key, value in answer.items():
        rows: list[Any] = value if isinstance(value, list) else []
        if key == "calibration_problem":
            shown["calibration"] = {"problem": value}
        elif key == "stopped_by":
            shown["stop it with"] = value
        elif key == "sockets":
            shown[key] = [_socket(row) for row in rows]
        elif key == "limits" and rows:
            none = [{"limit": "none"} if row["limit"] is None else {} for row in rows]
            shown[key] = [{**row, **no} for row, no in zip(rows, none, strict=True)]
        elif key not in ("condition", "limits"):
            shown[key] = value
    condition = answer.get("condition")
    above = condition_lines(condition if isinstance(condition, dict) else None)
    return [*above, *document_lines(shown)]


def _socket(row: dict[str, Any]) -> dict[str, Any]:
    """A job is given CPUs, which the API counts as slots: more than there are where they share."""
    free = f"{row.pop('slots_free')} of {row.pop('slots')}"
    return {"id": row.pop("id"), "cpus": format_ids(row.pop("cpus")), "cpus_free": free, **row}


_COLUMNS: Final = (
    Column("JOB", lambda stood: str(stood[0]), is_number=True),
    Column("WOULD HAVE STOOD", lambda s: format_duration(round(s[1], 1)), is_number=True),
)


@verb(app, "mode")
def mode(
    session: Session, to: Annotated[Word, argument("on|shadow|off")] = None, as_json: AsJson = OFF
) -> int:
    """Show what regulation may do, or switch it: on, shadow, off.

    In shadow it decides and records, and touches nothing. A switch outlives the daemon.
    """
    if to is not None and to not in MODES:
        raise UsageError(f"no mode {to!r}{nearest(to, MODES, 'one of on, shadow, off')}")
    client = session.client()
    if to is not None:
        client.switch(to)
    answer = client.mode()
    output.show(answer, lambda: mode_lines(answer), as_json=as_json)
    return 0


def mode_lines(answer: ModeAnswer) -> list[str]:
    """The mode; in shadow, how long each job would have stood still."""
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
    return [*lines, *output.listing(_COLUMNS, stood_s)]


_WORDS: Final = ("on", "off")
_POLL_S: Final = 20
"""Below the client's patience."""

Reason = Annotated[Word, option("--reason", metavar="TEXT", text="What for; every job shows it.")]
Wait = Annotated[bool, option("--wait", text="Drain, and return when no job holds CPUs any more.")]


@verb(app, "drain")
def drain(
    session: Session,
    to: Annotated[Word, argument("on|off")] = None,
    reason: Reason = None,
    wait: Wait = OFF,
    off: Annotated[bool, option("--off", text="As 'iod drain off'.")] = OFF,
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
    """Until no job holds CPUs; who stands still by somebody's wish is named, for it may not end."""
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
    left = f"CPUs are held by {job_words(holding)}" if holding else "no job holds CPUs"
    if not answer["draining"]:
        return "the node is not drained: jobs start"
    return printable(f"{drain_words(answer)}; {left}")
