"""``iod wait``, ``iod logs``, ``iod phase``: until jobs end, what they write, whose turn it is."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from iodaemon.api.client import Client
from iodaemon.api.model import FINAL_STATES, Job
from iodaemon.api.patience import ask_patiently
from iodaemon.api.shape import Selector
from iodaemon.cli import output
from iodaemon.cli.command import OFF, SELECTED, App, AsJson, Word, option, verb
from iodaemon.cli.failure import (
    ExitCode,
    UsageError,
    count,
    duration_s,
    exit_code,
    size_bytes,
)
from iodaemon.cli.selector import (
    Selection,
    find_ids,
    format_ids,
    job_words,
    may_act_on,
    parse_moment_s,
    parse_selectors,
)
from iodaemon.cli.session import Session
from iodaemon.errors import NoDaemon, RequestError
from iodaemon.text import printable

app = App()

Since = Annotated[
    Word, option("--since", metavar="WHEN", text="With all: also ended jobs submitted since then.")
]


@verb(app, "wait", SELECTED)
def wait(session: Session, since: Since = None, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Wait for jobs, return their exit code.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all. The code is the job's own, the highest of several; 128 + N for signal N, 124 for a
    job that reached its --time. Ctrl-C ends the waiting, not the job. A job that stands still until
    'iod resume' is named, and waited for all the same.

    'all' means your jobs that have not ended, and those that ended since the last 'iod wait all' of
    this session (a terminal, a cron job), or since its first submission. --since sets another
    time: 2d, '2 hours ago', 12:00, 2026-11-21 or today. In a session that submitted nothing,
    your last 'iod wait all' in any session counts. At most one day counts. With -J, -u or -s
    the time of the last 'iod wait all' stays as it was. The job in which the command runs is
    left out.
    """
    client = session.client()
    selection = parse_selectors(**chosen)
    own = client.own_job()
    if own in selection.ids:
        raise RequestError(f"job {own} is the one that waits here: it would never end")
    since_s = None if since is None else parse_moment_s(since, time.time(), "--since")
    if selection.is_all:
        return _wait_for_all(client, selection, since_s, own, as_json=as_json)
    if since is not None:
        raise UsageError("--since goes with all, -J, -u and -s: jobs named by number are all meant")
    found = find_ids(client, selection, finished=True)
    if not (ids := [job_id for job_id in found if job_id != own]):
        output.say(f"no other job than this one, {own}: nothing to wait for")
    return wait_for(client, ids, as_json=as_json)


def _wait_for_all(
    client: Client, selection: Selection, since_s: float | None, own: int | None, *, as_json: bool
) -> int:
    """Wait for what has not ended; what was submitted since the mark counts as well."""
    selector = Selector("", selection.user, selection.name, selection.states)
    awaited = client.awaited(selector, since_s=since_s)
    ids = [job_id for job_id in awaited["ids"] if job_id != own]
    mark = output.local_time(awaited["since_s"])
    if not ids:
        output.say(f"no unfinished job, and none submitted since {mark}: nothing to wait for")
        return ExitCode.OK
    output.say(
        f"waiting for {output.count_of(len(ids), 'job')}: all unfinished, and those submitted "
        f"since {mark} (--since changes that)"
    )

    def note() -> None:
        if since_s is None and not selection.has_filters:
            client.note_told(awaited["now_s"])

    return wait_for(client, ids, as_json=as_json, on_end=note)


def wait_for(
    client: Client,
    ids: Sequence[int],
    *,
    as_json: bool,
    on_end: Callable[[], None] = lambda: None,
) -> int:
    """Wait for these jobs and tell how those ended that did not end well; the highest code.

    Args:
        on_end: called when all have ended and that is told.
    """
    try:
        answer = client.wait(ids, on_lost=tell_lost, on_told=Holds().tell)
    except KeyboardInterrupt:
        goes = "go" if len(ids) > 1 else "goes"
        again = job_words(ids).partition(" ")[2]
        output.say(f"{job_words(ids)} {goes} on: 'iod wait {again}' waits again")
        return ExitCode.INTERRUPTED
    if as_json:
        output.print_json(answer)
    for job in answer["jobs"]:
        if _code(job) != 0:
            output.say(f"job {job['id']} {output.end_words(job)}")
    on_end()
    return max(map(_code, answer["jobs"]), default=ExitCode.OK)


_HOLDS: Final[Mapping[str, str]] = MappingProxyType(
    {"HELD": "waits to be released", "SUSPENDED_USER": "stands still"}
)
"""What only a person lets go on, in the words of 'iod why'."""

_CURE: Final = "'iod resume"
_OTHERS_CURE: Final = "their users or an administrator to let them go"
_IDS_CHARACTERS: Final = 20
"""Longest list of jobs that is told whole: it stands in a line three times."""


class Holds:
    """Names the jobs that wait for a person, each once for as long as it does."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def tell(self, jobs: Sequence[Job]) -> None:
        """These are the jobs now: name those that are held since they were looked at last."""
        held = [job for job in jobs if job["state"] in _HOLDS]
        new = [job for job in held if job["id"] not in self._told]
        self._told = {job["id"] for job in held}
        for may_act in (True, False):
            if some := [job for job in new if may_act_on(job) is may_act]:
                output.say(_held_words(some, may_act=may_act))


def _held_words(jobs: Sequence[Job], *, may_act: bool) -> str:
    """What these jobs wait for, in one line that does not grow with their number."""
    if len(jobs) == 1:
        return _own_words(jobs[0]) if may_act else _others_words(jobs[0])
    ids = format_ids(job["id"] for job in jobs)
    if len(ids) <= _IDS_CHARACTERS:
        cure = f"{_CURE} {ids}'" if may_act else _OTHERS_CURE
        return f"jobs {ids} wait for {cure}: 'iod why {ids}' tells why"
    cure = f"{_CURE}'" if may_act else _OTHERS_CURE
    some = ids[: _IDS_CHARACTERS + 1].rpartition(",")[0] or ids.partition(",")[0]
    return f"{len(jobs)} jobs wait for {cure}, among them {some}: 'iod queue -s h,su' lists them"


def _own_words(job: Job) -> str:
    words = f"job {job['id']} {_HOLDS[job['state']]}{output.reason_words(job)}"
    says_cure = job["reason"] is not None and job["reason"].get("cure")
    return words if says_cure else f"{words}; {_CURE} {job['id']}' lets it go"


def _others_words(job: Job) -> str:
    reason = job["reason"]
    why = f": {printable(reason['text'])}" if reason is not None else ""  # its cure is not theirs
    who = f"its user, {job['user']}, or an administrator"
    return f"job {job['id']} {_HOLDS[job['state']]}{why}; {who} can let it go"


def _code(job: Job) -> int:
    """The job's code as a shell has it; unknown is never 0."""
    code = job["shell_code"]
    return int(ExitCode.REFUSED) if code is None else code


def tell_lost(_: NoDaemon) -> None:
    """Say that the daemon went away while it was waited for."""
    output.say("the daemon does not answer; waiting for it to come back, jobs go on meanwhile")


Stream = Literal["stdout", "stderr"]

_RETRY_S: Final = 0.25
_LAYOUT: Final = "\n\t\r"
"""Control characters that a terminal gets: lines, columns, and progress that is written over."""

Raw = Annotated[
    bool, option("--raw", text="Send a terminal the bytes as they are, escape sequences too.")
]


@verb(app, "logs", SELECTED)
def logs(
    session: Session,
    follow: Annotated[bool, option("-f", "--follow", text="Go on until the job has ended.")] = OFF,
    err: Annotated[bool, option("--err", text="Standard error.")] = OFF,
    tail: Annotated[Word, option("--tail", metavar="N", text="Only the last N lines.")] = None,
    raw: Raw = OFF,
    **chosen: Any,
) -> int:
    r"""Print what jobs have written.

    JOB is 7, 3-9, 1,4 or last. The output of several jobs is separated by lines with their numbers.
    -f follows one job, also one that has not started yet. Standard error is in standard output,
    unless the job was submitted with -e. On a terminal, control characters are shown as \x1b; a
    pipe or file gets the bytes as they are.
    """
    client = session.client()
    lines = None if tail is None else count("--tail", tail, "lines", "20", least=0)
    ids = find_ids(client, parse_selectors(**chosen), finished=True)
    write = _write_bytes if raw or not sys.stdout.isatty() else _Terminal().write
    stream: Stream = "stderr" if err else "stdout"
    if follow:
        if len(ids) != 1:
            raise UsageError("-f follows one job: write 7 or last")
        if ids[0] == client.own_job():
            raise RequestError(f"job {ids[0]} would follow what it writes itself, and never end")
        _follow(client, ids[0], stream, lines, write)
        return ExitCode.OK
    if len(ids) == 1:
        _write_all(client.logs(ids[0], stream_name=stream, tail=lines), write)
        return ExitCode.OK
    code = ExitCode.OK
    for place, job_id in enumerate(ids):
        gap = "\n" if place else ""
        write(f"{gap}==> job {job_id} <==\n".encode())
        try:
            _write_all(client.logs(job_id, stream_name=stream, tail=lines), write)
        except RequestError as error:  # of one of them; NoDaemon is of all
            output.say(str(error))
            code = exit_code(error)
    return code


Write = Callable[[bytes], None]


def _write_all(pieces: Iterable[bytes], write: Write) -> None:
    for piece in pieces:
        write(piece)


def _write_bytes(piece: bytes) -> None:
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


class _Terminal:
    """Shows bytes on a terminal; none of them is an order to it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, piece: bytes) -> None:
        """Print a piece; a character that is cut at its end waits for the next one."""
        text = self._decoder.decode(piece)
        shown = (c if c.isprintable() or c in _LAYOUT else repr(c)[1:-1] for c in text)
        sys.stdout.write("".join(shown))
        sys.stdout.flush()


def _follow(client: Client, job_id: int, key: Stream, tail: int | None, write: Write) -> None:
    """Print until the job has ended, over restarts of the daemon and of the job; tell its end."""
    job: Job = client.job(job_id)
    _tell_waiting(job)
    at = 0

    def mark_begin(begin: int) -> None:
        nonlocal at, tail
        at, tail = begin, None

    while True:
        is_over = job["state"] in FINAL_STATES
        pieces = client.logs(
            job_id, stream_name=key, follow=True, tail=tail, begin=at, on_begin=mark_begin
        )
        try:
            for piece in pieces:
                at += len(piece)
                write(piece)
        except NoDaemon as error:
            tell_lost(error)
            is_over = False
        if is_over:
            break
        file = job[key] or job["stdout"]
        job = ask_patiently(lambda: client.job(job_id), client.reconnect_s)
        if file not in (None, job[key] or job["stdout"]):
            at = 0  # requeued: its output begins again, unless it has -o
        elif job["state"] not in FINAL_STATES:
            time.sleep(_RETRY_S)  # a daemon that is about to stop ends its answers early
    if job["shell_code"] != 0:
        output.say(f"job {job_id} {output.end_words(job)}")


def _tell_waiting(job: Job) -> None:
    """Say why nothing comes of a job that has not started."""
    if job["state"] == "PENDING":
        output.say(f"job {job['id']} has not started{output.reason_words(job)}")
    else:
        Holds().tell([job])


phases = App("Tell of I/O phases in a job's script: io, done.")
app.verbs["phase"] = phases

Expect = Annotated[
    Word, option("--expect", metavar="SIZE", text="How much will be read and written, as 2G.")
]
Timeout = Annotated[
    Word, option("--timeout", metavar="TIME", text="Go on without a turn after so long.")
]
Strict = Annotated[
    bool, option("--strict", text="Fail where there is no turn to be had, also outside a job.")
]


@verb(phases, "io")
def io(
    session: Session, expect: Expect = None, timeout: Timeout = None, strict: Strict = OFF
) -> int:
    """Wait until it is this job's turn to do I/O.

    A script goes on in any case: outside a job at once, where no daemon answers after 30 s.
    """
    from iodaemon.phase import ask_turn

    expected = None if expect is None else size_bytes("--expect", expect)
    timeout_s = None if timeout is None else duration_s("--timeout", timeout)
    return _tell(lambda: ask_turn(expected, timeout_s=timeout_s, api=session.api), is_strict=strict)


@verb(phases, "done")
def done(session: Session, strict: Strict = OFF) -> int:
    """Give the turn back: the I/O is done. Without a turn it does nothing."""
    from iodaemon.phase import give_back

    return _tell(lambda: give_back(api=session.api), is_strict=strict)


def _tell(ask: Callable[[], None], *, is_strict: bool) -> int:
    from iodaemon.phase import NoTurn

    try:
        ask()
    except NoTurn as error:
        if not is_strict:
            output.say(f"{error}; going on")
            return ExitCode.OK
        output.say(f"{error}: {_ADVICE[error.why]}")
        return ExitCode.NO_DAEMON if error.why == "daemon" else ExitCode.REFUSED
    return ExitCode.OK


_ADVICE = {
    "outside": "submit the script with 'iod submit'",
    "daemon": "start it with 'iod daemon'",
    "refused": "look at 'iod queue'",
    "timeout": "'iod why' tells who has it",
}
