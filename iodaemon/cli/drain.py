"""``iod drain``: lets nothing start, for maintenance; and ends that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.condition import drain_words
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.option import OFF, AsJson, Word, argument, option
from iodaemon.cli.selector import format_ids
from iodaemon.cli.session import Session
from iodaemon.errors import RequestError
from iodaemon.text import printable

if TYPE_CHECKING:
    from iodaemon.api.client import Client
    from iodaemon.api.model import DrainAnswer

app = App()

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
    if is_off:
        answer = end_drain(client)
    else:
        answer = begin_drain(client, reason or "") if is_on else show_drain(client)
    if wait and not answer["at_rest"]:
        output.say(_words(answer))
        answer = _wait(client)
    if as_json:
        output.print_json(answer)
    else:
        print(_words(answer))
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
