"""``iod hint``: what is known of jobs' I/O from earlier runs, here and elsewhere."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated, Any, Final, NamedTuple, Self

from iodaemon.api.model import Hint, HintsAnswer, ImportedRun, Lesson
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    App,
    AsJson,
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
from iodaemon.errors import ConfigError, NotFound
from iodaemon.units import format_bytes, format_duration

app = App()
hints = App("What is known of jobs' I/O: show, import, forget.")
app.verbs["hint"] = hints


def _share(share: float | None) -> str:
    return NOTHING if share is None else percent(share)


def _requests(requests: float | None) -> str:
    return NOTHING if requests is None else f"{requests:.3g}"


def _minute(at_s: float) -> str:
    return NOTHING if at_s == 0.0 else output.local_time(at_s)[:-3]


def _run_time(hint: Hint) -> str:
    return NOTHING if hint["run_s"] is None else format_duration(hint["run_s"])


COLUMNS: Final = (
    Column("SOURCE", lambda hint: hint["expected"]["source"]),
    Column("EXPECTED", lambda h: output.rate(h["expected"]["rate_bytes_per_s"]), is_number=True),
    Column("IN-I/O", lambda h: _share(h["expected"]["io_share"]), is_number=True, drop=3),
    Column("REQ/s", lambda h: _requests(h["expected"]["operations_per_s"]), is_number=True, drop=1),
    Column("CONF", lambda hint: f"{hint['expected']['confidence']:.2f}", is_number=True),
    Column("RUNS", lambda hint: str(hint["expected"]["runs"]), is_number=True),
    Column("RUN", _run_time, is_number=True, drop=6),
    Column("LAST", lambda hint: _minute(hint["last_s"]), drop=4),
    Column(
        "WRONG", lambda h: NOTHING if h["off"] is None else factor(h["off"]), is_number=True, drop=2
    ),
    Column("USER", lambda hint: hint["user"], width_max=8, drop=5),
    Column("KEY", lambda hint: hint["key"]),
)


def _gain(lesson: Lesson) -> str:
    is_known = lesson["limit"] is not None and lesson["too_many"] is not None
    return factor(lesson["gain"]) if is_known else NOTHING


def _number(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def _memory(lesson: Lesson) -> str:
    size = lesson["footprint_bytes"]
    return NOTHING if size is None else format_bytes(size)


_LESSON_COLUMNS: Final = (
    Column("FOR", lambda lesson: lesson["resource"] or NOTHING),
    Column("AT-ONCE", lambda lesson: _number(lesson["limit"]), is_number=True),
    Column("TOO-MANY", lambda lesson: _number(lesson["too_many"]), is_number=True),
    Column("GAIN", _gain, is_number=True),
    Column("TRIED", lambda lesson: str(lesson["tries"]), is_number=True, drop=1),
    Column("MEMORY", _memory, is_number=True, drop=4),
    Column("LEARNED", lambda lesson: _minute(lesson["at_s"]), drop=2),
    Column("USER", lambda lesson: lesson["user"], width_max=8, drop=3),
    Column("KEY", lambda lesson: lesson["key"]),
)


def _run_rate(run: ImportedRun) -> str:
    return output.rate((run["read_bytes"] + run["written_bytes"]) / run["run_s"])


def _run_requests(run: ImportedRun) -> str:
    operations = run["operations"]
    return _requests(None if operations is None else operations / run["run_s"])


_RUN_COLUMNS: Final = (
    Column("EXPECTED", lambda pair: _run_rate(pair[1]), is_number=True),
    Column("IN-I/O", lambda p: _share(min(1.0, p[1]["io_s"] / p[1]["run_s"])), is_number=True),
    Column("REQ/s", lambda pair: _run_requests(pair[1]), is_number=True),
    Column("RUN", lambda pair: format_duration(pair[1]["run_s"]), is_number=True),
    Column("UID", lambda pair: str(pair[1]["uid"]), is_number=True),
    Column("LOG", lambda pair: os.path.basename(pair[0].path)),
    Column("COMMAND", lambda pair: " ".join(pair[1]["command"])),
)
"""Of a log and the run that is told in it."""
_NONE_YET: Final = "nothing is known yet"
_NONE_NOW: Final = "no key is known now"
"""Where the accuracy is left of what was forgotten."""
_TEACHERS: Final = "jobs teach when they end, 'iod hint import' takes Darshan logs"
_NONE_OF_THESE: Final = "nothing is known of these: 'iod hint show' lists all"
_MOST_AT_ONCE: Final = 1000
_LARGEST_UID: Final = 2**32 - 1

Limit = Annotated[Word, option("--limit", metavar="COUNT", text="The last so many [1000].")]


@verb(hints, "show")
def show(
    session: Session,
    name: Annotated[Word, argument("NAME")] = None,
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
    titles = header and bool(answer["hints"])
    lines = output.listing(COLUMNS, answer["hints"], header=titles)
    if not header:
        return lines
    for accuracy in answer["accuracy"]:
        jobs = output.count_of(accuracy["predictions"], "job")
        off = factor(accuracy["off"])
        lines.append(f"{accuracy['source']}: wrong by {off}, typically, for {jobs}")
    if lessons := answer.get("lessons", []):
        table = output.listing(_LESSON_COLUMNS, lessons)
        lines += ["", *table] if lines else table
    return lines


# -- import ----------------------------------------------------------------------------------------

User = Annotated[
    Word, option("-u", "--user", metavar="USER", text="Of whose jobs, also me [as in the log].")
]
Name = Annotated[
    Word, option("-J", "--name", metavar="NAME", text="Of the jobs with this name, too.")
]


@verb(hints, "import")
def import_logs(
    session: Session,
    logs: Annotated[Words, argument("LOG")] = None,
    user: User = None,
    name: Name = None,
    dry_run: Annotated[bool, option("--dry-run", text="Read, print, and import nothing.")] = OFF,
    as_json: AsJson = OFF,
) -> int:
    """Import what runs elsewhere did, from Darshan logs.

    LOG is a file, or a folder with *.darshan in or below it. It speaks of its own user's jobs;
    others than your own are for root to import, or for you as your own with --user me.

    Darshan's library is needed: pip install 'iodaemon[darshan]'.
    """

    if not logs:
        raise UsageError("no log given: name files or folders")
    require_library()
    uid = None if user is None else find_uid(user)
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
    """The number of a user; ``me`` is who asks."""
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
        print("\n".join(output.listing(_RUN_COLUMNS, zip(used, runs, strict=True))))
    if dry_run:
        output.say(f"{output.count_of(len(runs), 'run')} would be imported; nothing was")
    else:
        known = f", {counts['known']} known before" if counts["known"] else ""
        print(f"{output.count_of(counts['imported'], 'run')} imported{known}")


# -- forget ----------------------------------------------------------------------------------------

Owner = Annotated[Word, option("-u", "--user", metavar="USER", text="Of whose jobs [yours].")]


@verb(hints, "forget")
def forget(
    session: Session, keys: Annotated[Words, argument("KEY")] = None, user: Owner = None
) -> int:
    """Forget what earlier runs say under these keys.

    KEY is as 'iod hint show' has it, for example name:lu. Later runs teach it anew. With
    a like: key how many such jobs should contend, and what memory one needs, are forgotten too.
    """
    from iodaemon.api.hints import forget_hints

    if not keys:
        raise UsageError("no key given: 'iod hint show' lists them")
    uid = None if user is None else find_uid(user)
    forgotten = forget_hints(session.client(), keys, uid)
    for key in forgotten:
        print(f"{key} forgotten")
    if missing := [key for key in keys if key not in forgotten]:
        raise NotFound(f"nothing is known under {', '.join(missing)}: 'iod hint show' lists them")
    return 0


SUFFIX: Final = ".darshan"
PATIENCE_S: Final = 60.0
"""For one log; the largest that ship with the library take 0.2 s."""


class Reading(NamedTuple):
    """One log: what its run moved, or why that is not known."""

    path: str
    run: dict[str, Any] | None
    problem: str = ""


def find_logs(names: Iterable[str]) -> Iterator[str]:
    """The files, and of folders all logs in and below them, by name.

    A folder without any is given as it is: reading it says so.
    """
    for name in names:
        logs = list(_logs_below(name)) if os.path.isdir(name) else []
        yield from logs or [name]


def _logs_below(folder: str) -> Iterator[str]:
    for path, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.endswith(SUFFIX):
                yield os.path.join(path, file)


def require_library() -> None:
    """Refuse where Darshan's library is not installed."""
    if find_spec("darshan") is None:
        raise ConfigError("Darshan's library is missing: pip install 'iodaemon[darshan]'")


class Reader:
    """Reads logs one after the other, in a process beside this one.

    Use in a ``with``: no process is left behind.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def read(self, path: str) -> Reading:
        """What one log tells; never raises for what is in it."""
        if problem := _problem_of(path):
            return Reading(path, None, problem)
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(os.path.abspath(path)).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise ConfigError(
                "Darshan's library does not start: 'python -m darshan' says why; install it anew"
            )
        answer = json.loads(line)
        if "problem" in answer:
            return Reading(path, None, answer["problem"])
        return Reading(path, answer)

    def _begin(self) -> subprocess.Popen[bytes]:
        program = ("-P", "-m", "iodaemon.darshan_log")  # -P: nothing of this folder
        self._process = subprocess.Popen(
            [sys.executable, *program, repr(self._patience_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        return self._process


def _problem_of(path: str) -> str:
    """Why it is not even given to the library, or nothing."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return f"no *{SUFFIX} in this folder"
        if not stat.S_ISREG(mode):
            return "no regular file"
        with open(path, "rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return "empty" if is_empty else ""
