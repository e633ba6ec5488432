"""``iod logs``: what a job wrote."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal

from iodaemon.api.client import Client
from iodaemon.api.model import FINAL_STATES, Job
from iodaemon.api.patience import ask_patiently
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    SELECTED,
    App,
    Context,
    Word,
    option,
    verb,
)
from iodaemon.cli.failure import ExitCode, UsageError, count, exit_code
from iodaemon.cli.selector import find_ids, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.cli.wait import Holds, tell_lost
from iodaemon.errors import NoDaemon, RequestError

app = App()

Stream = Literal["stdout", "stderr"]

_RETRY_S: Final = 0.25
_LAYOUT: Final = "\n\t\r"
"""Control characters that a terminal gets: lines, columns, and progress that is written over."""

Follow = Annotated[bool, option("-f", "--follow", text="Go on until the job has ended.")]
Err = Annotated[bool, option("--err", text="Standard error.")]
Tail = Annotated[Word, option("--tail", metavar="N", text="Only the last N lines.")]
Raw = Annotated[
    bool, option("--raw", text="Send a terminal the bytes as they are, escape sequences too.")
]


@verb(app, "logs", options=SELECTED)
def logs(
    ctx: Context,
    follow: Follow = OFF,
    err: Err = OFF,
    tail: Tail = None,
    raw: Raw = OFF,
    **chosen: Any,
) -> int:
    r"""Print what jobs have written.

    JOB is 7, 3-9, 1,4 or last. The output of several jobs is separated by lines with their numbers.
    -f follows one job, also one that has not started yet. Standard error is in standard output,
    unless the job was submitted with -e. On a terminal, control characters are shown as \x1b; a
    pipe or file gets the bytes as they are.
    """
    session: Session = ctx.obj
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
    """Print until the job has ended, over restarts of the daemon and of the job; tell its end.

    Raises:
        NoDaemon: the daemon went away and did not come back.
    """
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
