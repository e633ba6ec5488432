"""``iod history``: what has ended, job by job or added up."""

from __future__ import annotations

import os
import time
from typing import Annotated, Final

from iodaemon.api.model import FINAL_STATES, HistoryAnswer, Job, Sum, SumsAnswer
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    App,
    AsJson,
    Context,
    Jobs,
    Named,
    NoHeader,
    OfUser,
    Word,
    Words,
    option,
    verb,
)
from iodaemon.cli.failure import UsageError, count
from iodaemon.cli.output import Column, ratio_cell
from iodaemon.cli.selector import (
    format_ids,
    parse_moment_s,
    parse_selectors,
    parse_states,
)
from iodaemon.cli.session import Session
from iodaemon.errors import NotFound

app = App()

LIMIT: Final = 100
"""Jobs shown where no limit is given; sums are over all."""
COLUMNS: Final = (
    Column("ID", is_number=True),
    Column("NAME", width_max=14),
    Column("USER", width_max=8, drop=3),
    Column("ST"),
    Column("ENDED", drop=7),
    Column("RUN", is_number=True),
    Column("SUSP", is_number=True, drop=4),
    Column("READ", is_number=True, drop=5),
    Column("WRITTEN", is_number=True, drop=6),
    Column("EXPECTED", is_number=True, drop=2),
    Column("EXIT", is_number=True),
)
_COMMAND: Final = Column("COMMAND", least=12, drop=1)
_SUM_COLUMNS: Final = (
    Column("JOBS", is_number=True),
    Column("FAILED", is_number=True),
    Column("CANC", is_number=True),
    Column("RUN", is_number=True),
    Column("SUSP-IO", is_number=True),
    Column("SUSP-USER", is_number=True),
    Column("READ", is_number=True),
    Column("WRITTEN", is_number=True),
    Column("IO/s", is_number=True),
    Column("SLOWDOWN", is_number=True, drop=2),
    Column("FAIR", is_number=True, drop=1),
)
_CHARGED: Final = Column("CHARGED", is_number=True)
"""Shown where somebody had space: the time that a run takes on the slowest tier."""
Query = list[tuple[str, str]]

States = Annotated[Words, option("-s", "--state", metavar="STATE", text="Only these: FAILED, to.")]
Since = Annotated[Word, option("--since", metavar="WHEN", text="Ended then or later.")]
Until = Annotated[Word, option("--until", metavar="WHEN", text="Ended before.")]
Limit = Annotated[
    Word, option("--limit", metavar="COUNT", text=f"The last so many [{LIMIT}; sums: all].")
]
By = Annotated[Word, option("--by", metavar="user|name", text="Added up.")]


@verb(app, "history")
def history(
    ctx: Context,
    jobs: Jobs = None,
    user: OfUser = None,
    name: Named = None,
    state: States = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    by: By = None,
    no_header: NoHeader = OFF,
    as_json: AsJson = OFF,
) -> int:
    """Show what has ended, the last at the bottom.

    JOB is 7, 3-9, 1,4, last or all. WHEN is 2d or 90m (ago), 12:00 (the last one), 2026-11-21 (its
    first moment), '2026-11-21 12:00', today or yesterday.

    SUSP is time in which it stood still; EXPECTED what its I/O was expected to be over what it
    was; IO/s what a running job read and wrote on average. A narrow terminal leaves out COMMAND,
    EXPECTED, USER, SUSP, READ, WRITTEN and ENDED, in this order.

    SLOWDOWN is the mean time from submission to end over the run time (of runs of less than 10 s,
    over 10 s), FAIR how evenly it is spread over the jobs: 1: all alike, 1/n: one of n has it all.
    """
    if by not in (None, "user", "name"):
        raise UsageError(f"--by: {by!r} adds nothing up: write --by user or --by name")
    selection = parse_selectors(jobs) if jobs else None
    query = _filters(user=user, name=name, states=state or [], since=since, until=until)
    if selection is not None and not selection.is_all:
        query.append(("select", selection.text))
    query += _limit(limit, default=LIMIT if by is None and selection is None else None)
    session: Session = ctx.obj
    client = session.client()
    if by is not None:
        sums = client.history_sums(by, query)
        output.show(sums, lambda: sum_lines(sums, header=not no_header), as_json=as_json)
        return 0
    answer = client.history(query)
    output.show(answer, lambda: job_lines(answer, header=not no_header), as_json=as_json)
    if selection is not None and not any((user, name, state, since, until, limit)):
        _miss(set(selection.ids) - {job["id"] for job in answer["jobs"]})
    return 0


def _miss(ids: set[int]) -> None:
    """Raise NotFound for numbers that no ended job has."""
    if ids:
        raise NotFound(f"no ended job {format_ids(ids)}: 'iod queue -a' lists all that are known")


def _filters(
    *, user: str | None, name: str | None, states: list[str], since: str | None, until: str | None
) -> Query:
    """The query of these options.

    Raises:
        UsageError: one of them means nothing.
    """
    query: Query = []
    if user is not None:
        query.append(("user", str(os.geteuid()) if user == "me" else user))
    if name is not None:
        query.append(("name", name))
    for word in parse_states(states):
        if word not in FINAL_STATES:
            raise UsageError(f"--state: {word} jobs have not ended: 'iod queue -s {word}' has them")
        query.append(("state", word))
    now_s = time.time()
    for option_name, text in (("since", since), ("until", until)):
        if text is not None:
            moment_s = parse_moment_s(text, now_s, f"--{option_name}")
            query.append((f"{option_name}_s", repr(moment_s)))
    return query


def _limit(text: str | None, *, default: int | None) -> Query:
    if text is None:
        return [] if default is None else [("limit", str(default))]
    return [("limit", str(count("--limit", text, "jobs", "20")))]


def job_lines(answer: HistoryAnswer, *, header: bool) -> list[str]:
    """One line a job."""
    rows = [job_row(job) for job in answer["jobs"]]
    columns: tuple[Column, ...] = COLUMNS
    if any(_charged_s(job) is not None for job in answer["jobs"]):  # some had space of a tier
        columns = (*COLUMNS, _CHARGED)
        for row, job in zip(rows, answer["jobs"], strict=True):
            charged_s = _charged_s(job)
            row.append(output.clock(job["run_s"] if charged_s is None else charged_s))
    columns = (*columns, _COMMAND)
    for row, job in zip(rows, answer["jobs"], strict=True):
        row.append(output.command_line(job))
    return output.table(columns, rows, header=header, width=output.terminal_columns())


def _charged_s(job: Job) -> float | None:
    """What its run is charged; None: as long as it ran."""
    scratch = job.get("scratch")
    return scratch["charged_s"] if scratch else None


def job_row(job: Job) -> list[str]:
    """The cells of one job."""
    return [
        str(job["id"]),
        output.job_name(job),
        job["user"],
        job["code"],
        output.local_time(job["ended_s"])[:-3],
        output.clock(job["run_s"]),
        output.clock(job["suspended_io_s"] + job["suspended_user_s"]),
        *(_bytes(job[key], started=job["started_s"]) for key in ("read_bytes", "written_bytes")),
        ratio_cell(job),
        exit_word(job),
    ]


def exit_word(job: Job) -> str:
    """The exit code, the signal's name, ``-`` for a job that never ran, ``?`` where unknown."""
    if job["exit_code"] is not None:
        return str(job["exit_code"])
    if job["signal"] is not None:
        return output.signal_name(job["signal"]).partition("(")[2][:-1] or f"sig {job['signal']}"
    return output.NOTHING if job["started_s"] is None else output.UNKNOWN


def _bytes(size_bytes: int | None, *, started: float | None) -> str:
    from iodaemon.units import format_bytes

    if size_bytes is not None:
        return format_bytes(size_bytes)
    return output.NOTHING if started is None else output.UNKNOWN


def sum_lines(answer: SumsAnswer, *, header: bool) -> list[str]:
    """One line a user or name, and the total where there are several."""
    columns: tuple[Column, ...] = (Column(answer["by"].upper(), width_max=20), *_SUM_COLUMNS)
    rows = [[line["key"], *_sum_cells(line)] for line in answer["sums"]]
    lines: list[Sum] = [*answer["sums"]]
    if header and len(rows) > 1:
        rows.append(["(total)", *_sum_cells(answer["total"])])
        lines.append(answer["total"])
    if any(line.get("charged_s", line["run_s"]) != line["run_s"] for line in lines):
        columns = (*columns, _CHARGED)
        for row, line in zip(rows, lines, strict=True):
            row.append(output.clock(line.get("charged_s", line["run_s"])))
    return output.table(columns, rows, header=header, width=output.terminal_columns())


def _sum_cells(line: Sum) -> list[str]:
    is_lower_bound = "+" if line["unknown_io_jobs"] else ""
    moved = (line["read_bytes"], line["written_bytes"])
    return [
        str(line["jobs"]),
        str(line["failed"]),
        str(line["cancelled"]),
        output.clock(line["run_s"]),
        output.clock(line["suspended_io_s"]),
        output.clock(line["suspended_user_s"]),
        *(_sum_bytes(size, is_lower_bound) for size in moved),
        output.rate(line["bandwidth_bytes_per_s"]).removesuffix("/s"),
        *map(_ratio_cell, (line.get("mean_slowdown"), line.get("jain_index"))),
    ]


def _ratio_cell(ratio: float | None) -> str:
    return output.NOTHING if ratio is None else f"{ratio:.2f}"


def _sum_bytes(size_bytes: int | None, suffix: str) -> str:
    """What is known, with ``+`` where something is not."""
    from iodaemon.units import format_bytes

    return output.UNKNOWN if size_bytes is None else f"{format_bytes(size_bytes)}{suffix}"
