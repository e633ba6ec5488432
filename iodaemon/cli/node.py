"""``iod node``: sockets, slots, devices, and what is measured how."""

from __future__ import annotations

from iodaemon.api.model import JsonObject, JsonValue
from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.condition import condition_lines
from iodaemon.cli.document import document_lines
from iodaemon.cli.option import OFF, AsJson
from iodaemon.cli.session import Session

app = App()


@verb(app, "node")
def node(
    ctx: Context,
    as_json: AsJson = OFF,
) -> int:
    """Show sockets, slots, devices, and what is measured how."""
    session: Session = ctx.obj
    answer = session.client().node()
    if as_json:
        output.print_json(answer)
    else:
        condition = answer.pop("condition", None)
        above = condition_lines(condition if isinstance(condition, dict) else None)
        print("\n".join([*above, *document_lines(_in_place(answer))]))
    return 0


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
