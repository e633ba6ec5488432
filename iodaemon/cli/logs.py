"""``iod logs``: what a job wrote."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from iodaemon.cli.command import new_app, verb
from iodaemon.cli.failure import UsageError
from iodaemon.cli.option import OFF, Word, argument, option
from iodaemon.cli.selector import find_ids, parse_selectors
from iodaemon.cli.session import Session

app = new_app()


Follow = Annotated[bool, option("-f", "--follow", text="Go on until the job has ended.")]
Err = Annotated[bool, option("--err", text="Standard error.")]
Tail = Annotated[Word, option("--tail", metavar="N", text="Only the last N lines.")]


@verb(app, "logs")
def logs(
    ctx: typer.Context,
    job: Annotated[Word, argument("JOB")] = None,
    follow: Follow = OFF,
    err: Err = OFF,
    tail: Tail = None,
) -> int:
    """Print what a job has written.

    JOB is 7 or last; with -f it need not even have started. Standard error is in standard output,
    unless the job was submitted with -e.
    """
    session: Session = ctx.obj
    client = session.client()
    selection = parse_selectors([job] if job else [])
    if len(selection.items) > 1 or not (selection.is_plain or selection.items == ("last",)):
        raise UsageError("logs shows one job: write 7 or last")
    [job_id] = find_ids(client, selection, finished=True)
    pieces = client.logs(
        job_id,
        stream_name="stderr" if err else "stdout",
        follow=follow,
        tail=None if tail is None else _lines(tail),
    )
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return 0


def _lines(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--tail: {text!r} is no number of lines: write for example --tail 20")
    return int(text)
