"""``iod queue``: what runs, what waits and why."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

from iodaemon.api.model import STATE_CODES, Job, JobsAnswer, LoadLine
from iodaemon.cli import output
from iodaemon.cli.command import OFF, SELECTED, App, AsJson, NoHeader, Word, option, verb
from iodaemon.cli.failure import UsageError, count
from iodaemon.cli.output import Column, expected_cell
from iodaemon.cli.selector import format_ids, parse_selectors
from iodaemon.cli.session import SIMULATED, Session
from iodaemon.core.words import MODES, drained
from iodaemon.errors import NoDaemon, NotFound
from iodaemon.text import printable

app = App()

_DOTS: Final = "..."


def _state_code(job: Job) -> str:
    """The state's code; with dots for a suspend that is on its way."""
    shown = job["state_shown"]
    if not shown.endswith(_DOTS):
        return job["code"]
    return STATE_CODES.get(shown.removesuffix(_DOTS), job["code"]) + _DOTS


def _present_rate(job: Job) -> str:
    if now := job["bandwidth"]:
        total = output.total_rate(now["read_bytes_per_s"], now["written_bytes_per_s"])
        return output.rate(total).removesuffix("/s")
    is_running = job["started_s"] is not None and job["ended_s"] is None
    return output.UNKNOWN if is_running else output.NOTHING


def _socket(job: Job) -> str:
    return output.NOTHING if job["socket"] is None else str(job["socket"])


COLUMNS: Final = (
    Column("ID", lambda job: str(job["id"]), is_number=True),
    Column("NAME", output.job_name, width_max=14),
    Column("USER", lambda job: job["user"], width_max=8, drop=4),
    Column("ST", _state_code),
    Column("SOCK", _socket, is_number=True, drop=2),
    Column("CPUS", lambda job: str(job["cpus"]), is_number=True, drop=6),
    Column("RUN", lambda job: output.clock(job["run_s"]), is_number=True),
    Column("SUSP", output.suspended_cell, is_number=True, drop=3),
    Column("IO/s", _present_rate, is_number=True),
    Column("EXPECTED", expected_cell, is_number=True, drop=1),
    Column("REASON", lambda job: output.told_reason(job["reason"]), least=35),
    Column("COMMAND", output.command_line, least=12, drop=5),
)
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"

Watch = Annotated[
    Word, option("-w", "--watch", metavar="SECONDS", text="Show it again every SECONDS.")
]


@verb(app, "queue", SELECTED)
def queue(
    session: Session,
    all_jobs: Annotated[bool, option("-a", "--all", text="Finished jobs too.")] = OFF,
    limit: Annotated[Word, option("--limit", metavar="N", text="Only the newest N.")] = None,
    no_header: NoHeader = OFF,
    watch: Watch = None,
    as_json: AsJson = OFF,
    **chosen: Any,
) -> int:
    """Show the queue (alias: ls).

    JOB is 7, 3-9, 1,4, last (your newest) or all; without JOB, all jobs that have not ended.

    ST is the state's code: H held, PD pending, ST starting, R running, SI suspended for I/O,
    SU suspended by a person, SG stopping; CD completed, F failed, CA cancelled, TO timeout,
    OM out of memory, LO lost.

    IO/s is its present rate, EXPECTED its mean over the run: d declared, l learned from earlier
    runs, i imported, m measured so far; ? is unknown. A narrow terminal leaves out EXPECTED,
    SOCK, SUSP, USER, COMMAND and CPUS, in this order.
    """
    client = session.client()
    selection = parse_selectors(**{**chosen, "jobs": chosen.get("jobs") or ["all"]})
    most = None if limit is None else count("--limit", limit, "jobs", "20")
    every_s = None if watch is None else _seconds(watch)
    select = "" if selection.is_all else selection.text

    def show() -> None:
        answer = client.jobs(
            select=select,
            user=selection.user,
            name=selection.name,
            states=selection.states,
            all_jobs=all_jobs or bool(select),
            limit=most,
        )
        output.show(
            answer, lambda: _lines(answer, client.socket_path, not no_header), as_json=as_json
        )
        missing = set(selection.ids) - {job["id"] for job in answer["jobs"]}
        if missing and not selection.has_filters and most is None:
            raise NotFound(f"no job {format_ids(missing)}: 'iod queue -a' lists them")

    show()
    while every_s is not None:
        time.sleep(every_s)
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR_SCREEN)
        try:
            show()
        except NoDaemon as error:  # one that restarts is waited for
            output.say(str(error))
        sys.stdout.flush()
    return 0


def _lines(answer: JobsAnswer, socket_path: str, header: bool) -> list[str]:  # noqa: FBT001
    lines = output.listing(COLUMNS, answer["jobs"], header=header)
    if output.has_colour():
        pairs = zip(lines[header:], map(_state_code, answer["jobs"]), strict=True)
        lines[header:] = [_in_colour(line, code) for line, code in pairs]
    if not header:
        return lines
    node = answer["node"]
    above = [load_line(node), *condition_lines(node.get("condition"))]
    if os.path.dirname(socket_path).endswith(SIMULATED):
        above.insert(1, "a simulated node: its jobs run no programs")
    failed = [f"set aside: {text}; mend it, {_RELOAD}" for text in node.get("set_aside", [])]
    return [*above, *map(printable, failed), *lines]


def load_line(node: LoadLine) -> str:
    """The node in one line: policy, I/O against its bound, free CPUs, jobs by state."""
    total = output.total_rate(node["read_bytes_per_s"], node["written_bytes_per_s"])
    bound = node["io_bound_bytes_per_s"]
    parts = [
        f"policy {node['policy']}",
        f"I/O {output.rate(total)}" + ("" if bound is None else f" of {output.rate(bound)}"),
        f"{node['slots_free']} of {node['slots']} CPUs free",
    ]
    counts = [
        f"{node['states'][state]} {state.lower()}"
        for state in STATE_CODES
        if node["states"].get(state) and state in _SHOWN_ABOVE
    ]
    return " | ".join(parts + ([", ".join(counts)] if counts else []))


_RELOAD: Final = "then 'iod config reload'"
_SHOWN_ABOVE: Final = frozenset({"HELD", "PENDING", "RUNNING", "SUSPENDED_IO", "SUSPENDED_USER"})


def _in_colour(line: str, code: str) -> str:
    """The row with its state in colour; found from the left, where no cell holds a space."""
    before, found, after = line.partition(f" {code} ")
    return f"{before} {output.coloured(code, code)} {after}" if found else line


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise UsageError(f"--watch: {text!r} is no number of seconds: write for example -w 2")
    return seconds


def condition_lines(condition: Mapping[str, Any] | None) -> list[str]:
    """One line for each thing that is not as usual; a daemon of the version before tells none."""
    if condition is None:
        return []
    lines = []
    if condition["starts_blocked"]:
        lines.append(f"no job starts: {condition['starts_blocked']}")
    if condition["drain"] is not None:
        lines.append(drain_words(condition["drain"]))
    if (mode := condition["mode"]) != "on":
        lines.append(MODES.get(mode, f"regulation is {mode}"))
    return list(map(printable, lines))


def drain_words(drain: Mapping[str, Any]) -> str:
    """Who drained the node, since when and what for."""
    since = output.local_time(drain["since_s"])
    return f"{drained(drain['by'], drain['reason'])} (since {since})"
