"""``iod events``: what happened, and what happens, one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final

import typer

from iodaemon.cli import output
from iodaemon.cli.command import new_app, verb
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.moment import parse_moment_s
from iodaemon.cli.option import OFF, AsJson, Jobs, Word, Words, option
from iodaemon.cli.selector import find_ids, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.cli.telling import KINDS, Event, concerned, event_cells
from iodaemon.text import printable

app = new_app()

LAST_S: Final = 3600.0
"""How far back, where nothing is said."""

Follow = Annotated[bool, option("-f", "--follow", text="Go on with what happens.")]
Since = Annotated[Word, option("--since", metavar="WHEN", text="From then on [1h; -f: now].")]
Kinds = Annotated[
    Words, option("-k", "--kind", metavar="KIND", text="Only moved, evidence, shadow, mode, ...")
]


@verb(app, "events")
def events(
    ctx: typer.Context,
    jobs: Jobs = None,
    follow: Follow = OFF,
    since: Since = None,
    kind: Kinds = None,
    as_json: AsJson = OFF,
) -> int:
    """Show what happened in the last hour, or what happens.

    JOB is 7, 3-9, 1,4, last or all; nothing: all. WHEN is 2d or 90m (ago), 12:00 (the last one),
    2026-11-21, '2026-11-21 12:00', today or yesterday.

    A job moved from state to state; regulation saw evidence and acted; it would have acted in
    shadow; its mode was switched; what was kept in a job's space goes (scratch); the node was
    drained (drain), the configuration read again (config), the journal restored (restored). With
    --json, one object a line.
    """
    kinds = parse_kinds(kind or [])
    now_s = time.time()
    since_s = None if follow else now_s - LAST_S
    if since is not None:
        since_s = parse_moment_s(since, now_s, "--since")
    selection = parse_selectors(jobs) if jobs else None
    session: Session = ctx.obj
    client = session.client()
    ids: Collection[int] | None = None
    if selection is not None and not selection.is_all:
        ids = frozenset(find_ids(client, selection, finished=True))
    for event in client.events(since_s=since_s, follow=follow):
        if is_meant(event, kinds, ids):
            print(json.dumps(event) if as_json else event_line(event), flush=follow)
    return 0


def parse_kinds(words: Sequence[str]) -> tuple[str, ...]:
    """The kinds of events, several in one word or not; none given: all.

    Raises:
        UsageError: there is no such kind.
    """
    kinds = tuple(part for word in words for part in word.split(","))
    for kind in kinds:
        if kind not in KINDS:
            hint = f"one of {', '.join(KINDS)}"
            raise UsageError(f"--kind: no kind {kind!r}{nearest(kind, KINDS, hint)}")
    return kinds


def is_meant(event: Event, kinds: Collection[str], ids: Collection[int] | None) -> bool:
    """True for an event of these kinds (none: any) that concerns these jobs (None: any)."""
    if kinds and event["kind"] not in kinds:
        return False
    return ids is None or any(job_id in ids for job_id in concerned(event))


def event_line(event: dict[str, Any]) -> str:
    """Local time, job, what, why."""
    job, what, why = event_cells(event)
    at = output.local_time(event["at_s"])
    return printable(f"{at} {job:>6} {what:<28} {why}".rstrip())
