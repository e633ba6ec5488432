"""``iod queue``: what runs, what waits and why."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, NoReturn

from iodaemon.api.client import Client
from iodaemon.api.model import STATE_CODES, Job, JobsAnswer, LoadLine
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    SELECTED,
    App,
    AsJson,
    Context,
    NoHeader,
    Word,
    option,
    verb,
)
from iodaemon.cli.failure import UsageError, count
from iodaemon.cli.output import Column, expected_cell
from iodaemon.cli.selector import Selection, format_ids, parse_selectors
from iodaemon.cli.session import SIMULATED, Session
from iodaemon.core.condition import MODES, drained
from iodaemon.errors import NoDaemon, NotFound
from iodaemon.text import printable

app = App()

COLUMNS: Final = (
    Column("ID", is_number=True),
    Column("NAME", width_max=14),
    Column("USER", width_max=8, drop=4),
    Column("ST"),
    Column("SOCK", is_number=True, drop=3),
    Column("CPUS", is_number=True, drop=6),
    Column("RUN", is_number=True),
    Column("SUSP", is_number=True, drop=5),
    Column("IO/s", is_number=True),
    Column("EXPECTED", is_number=True, drop=2),
    Column("REASON", least=40),
    Column("COMMAND", least=12, drop=1),
)
_STATE_AT: Final = 3
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"
_DOTS: Final = "..."


All = Annotated[bool, option("-a", "--all", text="Finished jobs too.")]
Limit = Annotated[Word, option("--limit", metavar="N", text="Only the newest N.")]
Watch = Annotated[
    Word, option("-w", "--watch", metavar="SECONDS", text="Show it again every SECONDS.")
]


@verb(app, "queue", options=SELECTED)
def queue(
    ctx: Context,
    all_jobs: All = OFF,
    limit: Limit = None,
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
    runs, i imported, m measured so far; ? is unknown. A narrow terminal leaves out COMMAND,
    EXPECTED, SOCK, USER, SUSP and CPUS, in this order.
    """
    session: Session = ctx.obj
    view = _View(
        client=session.client(),
        selection=parse_selectors(**{**chosen, "jobs": chosen.get("jobs") or ["all"]}),
        all_jobs=all_jobs,
        limit=None if limit is None else count("--limit", limit, "jobs", "20"),
        header=not no_header,
        as_json=as_json,
    )
    if watch is not None:
        _watch(view, _seconds(watch))
    view.show()
    return 0


class _View(NamedTuple):
    """One way to look at the queue, to be shown once or again and again."""

    client: Client
    selection: Selection
    all_jobs: bool
    limit: int | None
    header: bool
    as_json: bool

    def show(self) -> None:
        """Ask the daemon and print; raises NotFound after it, for numbers that no job has."""
        answer = self._ask()
        output.show(answer, lambda: self._lines(answer), as_json=self.as_json)
        if not self.selection.has_filters and self.limit is None:
            missing = set(self.selection.ids) - {job["id"] for job in answer["jobs"]}
            if missing:
                raise NotFound(f"no job {format_ids(missing)}: 'iod queue -a' lists them")

    def _ask(self) -> JobsAnswer:
        selection = self.selection
        select = "" if selection.is_all else selection.text
        return self.client.jobs(
            select=select,
            user=selection.user,
            name=selection.name,
            states=selection.states,
            all_jobs=self.all_jobs or bool(select),
            limit=self.limit,
        )

    def _lines(self, answer: JobsAnswer) -> list[str]:
        width = output.terminal_columns()
        rows = [job_row(job) for job in answer["jobs"]]
        lines = output.table(COLUMNS, rows, header=self.header, width=width)
        if output.has_colour():
            pairs = zip(lines[self.header :], rows, strict=True)
            lines[self.header :] = [_in_colour(line, row) for line, row in pairs]
        node = answer["node"]
        above = [
            load_line(node),
            *simulated_lines(self.client.socket_path),
            *condition_lines(node.get("condition")),
            *set_aside_lines(node),
        ]
        return [*above, *lines] if self.header else lines


def job_row(job: Job) -> list[str]:
    """The cells of one job."""
    bandwidth = job["bandwidth"]
    rate = output.UNKNOWN
    if bandwidth is not None:
        total = output.total_rate(bandwidth["read_bytes_per_s"], bandwidth["written_bytes_per_s"])
        rate = output.rate(total).removesuffix("/s")
    elif job["started_s"] is None or job["ended_s"] is not None:
        rate = output.NOTHING
    return [
        str(job["id"]),
        output.job_name(job),
        job["user"],
        shown_code(job),
        output.NOTHING if job["socket"] is None else str(job["socket"]),
        str(job["cpus"]),
        output.clock(job["run_s"]),
        output.clock(job["suspended_io_s"] + job["suspended_user_s"]),
        rate,
        expected_cell(job),
        output.told_reason(job["reason"]),
        output.command_line(job),
    ]


def shown_code(job: Job) -> str:
    """The state's code; with dots for a suspend that is on its way."""
    shown = job["state_shown"]
    if not shown.endswith(_DOTS):
        return job["code"]
    return STATE_CODES.get(shown.removesuffix(_DOTS), job["code"]) + _DOTS


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


def simulated_lines(socket_path: str) -> list[str]:
    """That the node is simulated, by the name of its place; nothing where it is a machine."""
    is_simulated = os.path.dirname(socket_path).endswith(SIMULATED)
    return ["a simulated node: its jobs run no programs"] if is_simulated else []


def set_aside_lines(node: LoadLine) -> list[str]:
    """The rules that failed, one line each; a daemon of the version before tells of none."""
    faults = node.get("set_aside", [])
    return [printable(f"set aside: {text}; mend it, {_RELOAD}") for text in faults]


_RELOAD: Final = "then 'iod config reload'"
_SHOWN_ABOVE: Final = frozenset({"HELD", "PENDING", "RUNNING", "SUSPENDED_IO", "SUSPENDED_USER"})


def _in_colour(line: str, row: list[str]) -> str:
    """The row with its state in colour; found from the left, where no cell holds a space."""
    code = row[_STATE_AT]
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


def _watch(view: _View, every_s: float) -> NoReturn:
    """Show the queue until Ctrl-C; a daemon that restarts is waited for."""
    view.show()
    while True:
        time.sleep(every_s)
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR_SCREEN)
        try:
            view.show()
        except NoDaemon as error:
            output.say(str(error))
        sys.stdout.flush()


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
