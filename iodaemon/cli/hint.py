"""``iod hint``: what is known of jobs' I/O from earlier runs, here and elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

from iodaemon.api.model import Accuracy, Hint, HintsAnswer, ImportedRun, Lesson
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    App,
    AsJson,
    Context,
    NoHeader,
    OfUser,
    Word,
    Words,
    argument,
    option,
    verb,
)
from iodaemon.cli.failure import ExitCode, UsageError
from iodaemon.cli.output import NOTHING, Column, factor, percent
from iodaemon.cli.session import Session
from iodaemon.errors import NotFound

if TYPE_CHECKING:
    from iodaemon.cli.darshan import Reading

app = App()
hints = App("What is known of jobs' I/O: show, import, forget.")
app.verbs["hint"] = hints

COLUMNS: Final = (
    Column("SOURCE"),
    Column("EXPECTED", is_number=True),
    Column("IN-I/O", is_number=True),
    Column("REQ/s", is_number=True),
    Column("CONF", is_number=True),
    Column("RUNS", is_number=True),
    Column("RUN", is_number=True),
    Column("LAST"),
    Column("WRONG", is_number=True),
    Column("USER", width_max=8),
    Column("KEY"),
)
_LESSON_COLUMNS: Final = (
    Column("FOR"),
    Column("AT-ONCE", is_number=True),
    Column("TOO-MANY", is_number=True),
    Column("GAIN", is_number=True),
    Column("TRIED", is_number=True),
    Column("MEMORY", is_number=True),
    Column("LEARNED"),
    Column("USER", width_max=8),
    Column("KEY"),
)
_RUN_COLUMNS: Final = (
    Column("EXPECTED", is_number=True),
    Column("IN-I/O", is_number=True),
    Column("REQ/s", is_number=True),
    Column("RUN", is_number=True),
    Column("UID", is_number=True),
    Column("LOG"),
    Column("COMMAND"),
)
_NONE_YET: Final = "nothing is known yet"
_NONE_NOW: Final = "no key is known now"
"""Where the accuracy is left of what was forgotten."""
_TEACHERS: Final = "jobs teach when they end, 'iod hint import' takes Darshan logs"
_NONE_OF_THESE: Final = "nothing is known of these: 'iod hint show' lists all"
_MOST_AT_ONCE: Final = 1000
_LARGEST_UID: Final = 2**32 - 1

Logs = Annotated[Words, argument("LOG")]
Keys = Annotated[Words, argument("KEY")]
Glob = Annotated[Word, argument("NAME")]
Limit = Annotated[Word, option("--limit", metavar="COUNT", text="The last so many [1000].")]
Whose = Annotated[
    Word, option("-u", "--user", metavar="USER", text="Of whose jobs, also me [as in the log].")
]
Owner = Annotated[Word, option("-u", "--user", metavar="USER", text="Of whose jobs [yours].")]
OfName = Annotated[
    Word, option("-J", "--name", metavar="NAME", text="Of the jobs with this name, too.")
]
DryRun = Annotated[bool, option("--dry-run", text="Read, print, and import nothing.")]


@verb(hints, "show")
def show(
    ctx: Context,
    name: Glob = None,
    user: OfUser = None,
    limit: Limit = None,
    no_header: NoHeader = OFF,
    as_json: AsJson = OFF,
) -> int:
    """Show what is known, learned last first.

    NAME is a glob over keys, with their kind or without: lu, 'like:*', '*.py'.

    SOURCE is learned (here) or imported (from logs). EXPECTED is the mean over a run, IN-I/O the
    part of its time in I/O, REQ/s the requests a second in that part. CONF is how sure that is, 0
    to 1, RUNS how many runs taught it, RUN how long one takes, LAST when one taught last, WRONG
    the factor by which what was foretold is wrong, typically.

    KEY is what such runs have in common, and belongs to USER.

    Below, of jobs of which it is known: how many AT-ONCE get the most done where they contend FOR
    memory or a disk, GAIN times as much as TOO-MANY; how many numbers were TRIED; and the MEMORY
    that one needs. --no-header leaves this out.
    """
    from iodaemon.api.hints import list_hints

    query = [] if user is None else [("user", str(os.geteuid()) if user == "me" else user)]
    query += [(key, word) for key, word in (("name", name), ("limit", limit)) if word is not None]
    session: Session = ctx.obj
    answer = list_hints(session.client(), query)
    if as_json:
        output.print_json(answer)
        return 0
    if lines := _lines(answer, header=not no_header):
        print("\n".join(lines))
    if not answer["hints"] and not answer.get("lessons"):
        none = _NONE_NOW if answer["accuracy"] else _NONE_YET
        output.say(_NONE_OF_THESE if query else f"{none}: {_TEACHERS}")
    return 0


def _lines(answer: HintsAnswer, *, header: bool) -> list[str]:
    rows = [_row(hint) for hint in answer["hints"]]
    titles = header and bool(rows)
    lines = output.table(COLUMNS, rows, header=titles, width=output.terminal_columns())
    if not header:
        return lines
    lines += map(accuracy_line, answer["accuracy"])
    lessons = [_lesson_row(lesson) for lesson in answer.get("lessons", [])]
    if lessons:
        table = output.table(_LESSON_COLUMNS, lessons, width=output.terminal_columns())
        lines += ["", *table] if lines else table
    return lines


def _lesson_row(lesson: Lesson) -> list[str]:
    from iodaemon.units import format_bytes

    limit, many, memory = lesson["limit"], lesson["too_many"], lesson["footprint_bytes"]
    return [
        lesson["resource"] or NOTHING,
        NOTHING if limit is None else str(limit),
        NOTHING if many is None else str(many),
        NOTHING if limit is None or many is None else factor(lesson["gain"]),
        str(lesson["tries"]),
        NOTHING if memory is None else format_bytes(memory),
        NOTHING if lesson["at_s"] == 0.0 else output.local_time(lesson["at_s"])[:-3],
        lesson["user"],
        lesson["key"],
    ]


def _row(hint: Hint) -> list[str]:
    from iodaemon.units import format_duration

    expected = hint["expected"]
    return [
        expected["source"],
        output.rate(expected["rate_bytes_per_s"]),
        *_share_and_requests(expected["io_share"], expected["operations_per_s"]),
        f"{expected['confidence']:.2f}",
        str(expected["runs"]),
        NOTHING if hint["run_s"] is None else format_duration(hint["run_s"]),
        output.local_time(hint["last_s"])[:-3],
        NOTHING if hint["off"] is None else factor(hint["off"]),
        hint["user"],
        hint["key"],
    ]


def _share_and_requests(share: float | None, requests: float | None) -> list[str]:
    return [
        NOTHING if share is None else percent(share),
        NOTHING if requests is None else f"{requests:.3g}",
    ]


def accuracy_line(accuracy: Accuracy) -> str:
    """How wrong the predictions of one source were."""
    jobs = output.count_of(accuracy["predictions"], "job")
    return f"{accuracy['source']}: wrong by {factor(accuracy['off'])}, typically, for {jobs}"


# -- import ----------------------------------------------------------------------------------------


@verb(hints, "import")
def import_logs(
    ctx: Context,
    logs: Logs = None,
    user: Whose = None,
    name: OfName = None,
    dry_run: DryRun = OFF,
    as_json: AsJson = OFF,
) -> int:
    """Import what runs elsewhere did, from Darshan logs.

    LOG is a file, or a folder with *.darshan in or below it. It speaks of its own user's jobs;
    others than your own are for root to import, or for you as your own with --user me.

    Darshan's library is needed: pip install 'iodaemon[darshan]'.
    """
    from iodaemon.cli.darshan import Reader, find_logs, require_library

    if not logs:
        raise UsageError("no log given: name files or folders")
    require_library()
    uid = None if user is None else find_uid(user)
    session: Session = ctx.obj
    with Reader() as reader:
        readings = [_judged(reader.read(path), uid, name) for path in find_logs(logs)]
    for reading in readings:
        if reading.problem:
            output.say(f"{reading.path}: {reading.problem}")
        elif reading.run is not None and reading.run["is_partial"]:
            output.say(f"{reading.path}: Darshan had no room for all of it; taken as a lower bound")
    used = [reading for reading in readings if not reading.problem]
    runs = [_run_of(reading, uid, name) for reading in used]
    counts = {"imported": 0, "known": 0} if dry_run else _send(session, runs)
    _tell(readings, used, runs, counts, dry_run=dry_run, as_json=as_json)
    return ExitCode.OK if len(used) == len(readings) else ExitCode.REFUSED


def find_uid(user: str) -> int:
    """The number of a user; ``me`` is who asks.

    Raises:
        NotFound: there is no such user.
    """
    if user == "me":
        return os.geteuid()
    if user.isascii() and user.isdigit():
        return min(int(user[:20]), _LARGEST_UID)
    import pwd

    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError) as error:
        raise NotFound(f"no user {user!r} on this machine; write a name or a number") from error


def _judged(reading: Reading, uid: int | None, name: str | None) -> Reading:
    """The reading, or why it may not be imported or speaks of no jobs."""
    run = reading.run
    if run is None:
        return reading
    me = os.geteuid()
    if uid is None and me not in (0, run["uid"]):
        problem = f"of user {run['uid']}; you are {me}: --user me counts it as yours"
        return reading._replace(problem=problem)
    if uid is None and not 0 <= run["uid"] <= _LARGEST_UID:
        return reading._replace(problem="its user means nothing: say with --user whose it is")
    if not run["command"] and not name:
        return reading._replace(problem="names no program: say with --name of which jobs it is")
    return reading


def _run_of(reading: Reading, uid: int | None, name: str | None) -> ImportedRun:
    run = reading.run
    assert run is not None
    return ImportedRun(
        command=run["command"],
        ended_s=run["ended_s"],
        run_s=run["run_s"],
        processes=run["processes"],
        read_bytes=run["read_bytes"],
        written_bytes=run["written_bytes"],
        io_s=run["io_s"],
        operations=run["operations"],
        uid=run["uid"] if uid is None else uid,
        name=name or "",
        job=run["job"],
    )


def _send(session: Session, runs: list[ImportedRun]) -> dict[str, int]:
    from iodaemon.api.hints import import_runs

    client = session.client()
    imported = known = 0
    for first in range(0, len(runs), _MOST_AT_ONCE):
        answer = import_runs(client, runs[first : first + _MOST_AT_ONCE])
        imported, known = imported + answer["imported"], known + answer["known"]
    return {"imported": imported, "known": known}


def _tell(
    readings: list[Reading],
    used: list[Reading],
    runs: list[ImportedRun],
    counts: dict[str, int],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        problems = [{"log": r.path, "problem": r.problem} for r in readings if r.problem]
        told: dict[str, Any] = {**counts, "runs": runs, "problems": problems}
        output.print_json(told)
        return
    if dry_run and runs:
        rows = [_run_row(reading, run) for reading, run in zip(used, runs, strict=True)]
        print("\n".join(output.table(_RUN_COLUMNS, rows, width=output.terminal_columns())))
    if dry_run:
        output.say(f"{output.count_of(len(runs), 'run')} would be imported; nothing was")
    else:
        known = f", {counts['known']} known before" if counts["known"] else ""
        print(f"{output.count_of(counts['imported'], 'run')} imported{known}")


def _run_row(reading: Reading, run: ImportedRun) -> list[str]:
    from iodaemon.units import format_duration

    operations = run["operations"]
    requests = None if operations is None else operations / run["run_s"]
    return [
        output.rate((run["read_bytes"] + run["written_bytes"]) / run["run_s"]),
        *_share_and_requests(min(1.0, run["io_s"] / run["run_s"]), requests),
        format_duration(run["run_s"]),
        str(run["uid"]),
        os.path.basename(reading.path),
        " ".join(run["command"]),
    ]


# -- forget ----------------------------------------------------------------------------------------


@verb(hints, "forget")
def forget(ctx: Context, keys: Keys = None, user: Owner = None) -> int:
    """Forget what earlier runs say under these keys.

    KEY is as 'iod hint show' has it, for example name:lu. Later runs teach it anew. With
    a like: key how many such jobs should contend, and what memory one needs, are forgotten too.
    """
    from iodaemon.api.hints import forget_hints

    if not keys:
        raise UsageError("no key given: 'iod hint show' lists them")
    session: Session = ctx.obj
    uid = None if user is None else find_uid(user)
    forgotten = forget_hints(session.client(), keys, uid)
    for key in forgotten:
        print(f"{key} forgotten")
    if missing := [key for key in keys if key not in forgotten]:
        raise NotFound(f"nothing is known under {', '.join(missing)}: 'iod hint show' lists them")
    return 0
