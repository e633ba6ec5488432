"""``iod queue``: what runs, what waits and why."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated, Final

import typer

from iodaemon.api.client import Client
from iodaemon.api.model import STATE_CODES, Job, JobsAnswer, LoadLine
from iodaemon.cli import output
from iodaemon.cli.command import new_app, verb
from iodaemon.cli.expectation import expected_cell
from iodaemon.cli.failure import UsageError
from iodaemon.cli.option import OFF, AsJson, Jobs, Word, Words, option
from iodaemon.cli.output import Column
from iodaemon.cli.selector import Selection, format_ids, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.cli.state import parse_states
from iodaemon.errors import NoDaemon, NotFound

app = new_app()

COLUMNS: Final = (
    Column("ID", is_number=True),
    Column("NAME", width_max=14),
    Column("USER", width_max=8),
    Column("ST"),
    Column("SOCK", is_number=True),
    Column("CPUS", is_number=True),
    Column("RUN", is_number=True),
    Column("SUSP", is_number=True),
    Column("IO/s", is_number=True),
    Column("EXPECTED", is_number=True),
    Column("REASON"),
)
_STATE_AT: Final = 3
_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"
_DOTS: Final = "..."
_EVERYTHING: Final = Selection((), ())


All = Annotated[bool, option("-a", "--all", text="Finished jobs too.")]
States = Annotated[
    Words, option("-s", "--state", metavar="STATE", text="Only these: RUNNING, SI, r,pd.")
]
User = Annotated[Word, option("-u", "--user", metavar="USER", text="Only this user's; or me.")]
NoHeader = Annotated[bool, option("--no-header", text="Rows alone.")]
Watch = Annotated[
    Word, option("-w", "--watch", metavar="SECONDS", text="Show again every so often.")
]


@verb(app, "queue")
def queue(
    ctx: typer.Context,
    jobs: Jobs = None,
    all_jobs: All = OFF,
    state: States = None,
    user: User = None,
    no_header: NoHeader = OFF,
    watch: Watch = None,
    as_json: AsJson = OFF,
) -> int:
    """Show the queue (alias: ls).

    JOB is 7, 3-9, 1,4, last or all; nothing: all that have not ended.

    ST is the state's code: H held, PD pending, ST starting, R running, SI suspended for I/O,
    SU suspended by a person, SG stopping; CD completed, F failed, CA cancelled, TO timeout,
    OM out of memory, LO lost.

    IO/s is what it moves now, EXPECTED the mean over its run: d declared, l learned from earlier
    runs, i imported, m its own mean until now; ? is unknown.
    """
    session: Session = ctx.obj
    view = _View(
        client=session.client(),
        selection=parse_selectors(jobs) if jobs else _EVERYTHING,
        states=parse_states(state or []),
        user=user,
        all_jobs=all_jobs,
        header=not no_header,
        as_json=as_json,
    )
    if watch is None:
        view.show()
        return 0
    return _watch(view, _seconds(watch))


class _View:
    """One way to look at the queue, to be shown once or again and again."""

    def __init__(
        self,
        *,
        client: Client,
        selection: Selection,
        states: list[str],
        user: str | None,
        all_jobs: bool,
        header: bool,
        as_json: bool,
    ) -> None:
        self.client = client
        self.selection = selection
        self.states = states
        self.user = user
        self.all_jobs = all_jobs
        self.header = header
        self.as_json = as_json

    def show(self) -> None:
        """Ask the daemon and print; raises NotFound after it, for numbers that no job has."""
        answer = self._ask()
        if self.as_json:
            output.print_json(answer)
        else:
            print("\n".join(self._lines(answer)))
        if not self.states and self.user is None:
            missing = set(self.selection.ids) - {job["id"] for job in answer["jobs"]}
            if missing:
                raise NotFound(f"no job {format_ids(missing)}: 'iod queue -a' lists them")

    def _ask(self) -> JobsAnswer:
        select = "" if self.selection.is_all else self.selection.text
        answer = self.client.jobs(
            select=select, states=self.states, all_jobs=self.all_jobs or bool(select)
        )
        if self.user is not None:
            name = str(os.geteuid()) if self.user == "me" else self.user
            answer["jobs"] = [
                job for job in answer["jobs"] if name in (job["user"], str(job["uid"]))
            ]
        return answer

    def _lines(self, answer: JobsAnswer) -> list[str]:
        width = output.terminal_columns()
        rows = [job_row(job) for job in answer["jobs"]]
        lines = output.table(COLUMNS, rows, header=self.header, width=width)
        if output.has_colour():
            pairs = zip(lines[self.header :], rows, strict=True)
            lines[self.header :] = [_in_colour(line, row) for line, row in pairs]
        return [load_line(answer["node"]), *lines] if self.header else lines


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
        job["reason"]["text"] if job["reason"] else "",
    ]


def shown_code(job: Job) -> str:
    """The state's code; with dots for a suspend that is on its way."""
    shown = job["state_shown"]
    if not shown.endswith(_DOTS):
        return job["code"]
    return STATE_CODES.get(shown.removesuffix(_DOTS), job["code"]) + _DOTS


def load_line(node: LoadLine) -> str:
    """The node in one line: policy, I/O against its bound, free slots, jobs by state."""
    total = output.total_rate(node["read_bytes_per_s"], node["written_bytes_per_s"])
    bound = node["io_bound_bytes_per_s"]
    parts = [
        f"policy {node['policy']}",
        f"I/O {output.rate(total)}" + ("" if bound is None else f" of {output.rate(bound)}"),
        f"{node['slots_free']} of {node['slots']} slots free",
    ]
    counts = [
        f"{node['states'][state]} {state.lower()}"
        for state in STATE_CODES
        if node["states"].get(state) and state in _SHOWN_ABOVE
    ]
    return " | ".join(parts + ([", ".join(counts)] if counts else []))


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


def _watch(view: _View, every_s: float) -> int:
    """Show the queue until Ctrl-C; a daemon that restarts is waited for."""
    view.show()
    try:
        while True:
            time.sleep(every_s)
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR_SCREEN)
            try:
                view.show()
            except NoDaemon as error:
                output.say(str(error))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 0
