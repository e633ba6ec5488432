"""``iod events``: what happened, and what happens, one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Final, cast

from iodaemon.api.client import Client
from iodaemon.api.model import JsonObject
from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.moment import parse_moment_s
from iodaemon.cli.option import OFF, AsJson, InState, Jobs, Named, OfUser, Word, Words, option
from iodaemon.cli.selector import find_ids, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.cli.telling import KINDS, Event, concerned, event_cells
from iodaemon.cli.wait import tell_lost
from iodaemon.errors import NoDaemon
from iodaemon.text import printable

app = App()

LAST_S: Final = 3600.0
"""How far back, where nothing is said."""

_RETRY_S: Final = 0.25
"""Between attempts to reach a daemon that went away."""

Follow = Annotated[bool, option("-f", "--follow", text="Go on with what happens.")]
Since = Annotated[Word, option("--since", metavar="WHEN", text="From then on [1h; -f: now].")]
Kinds = Annotated[
    Words, option("-k", "--kind", metavar="KIND", text="Only moved, evidence, shadow, mode, ...")
]


@verb(app, "events")
def events(
    ctx: Context,
    jobs: Jobs = None,
    name: Named = None,
    user: OfUser = None,
    state: InState = None,
    follow: Follow = OFF,
    since: Since = None,
    kind: Kinds = None,
    as_json: AsJson = OFF,
) -> int:
    """Show what happened in the last hour, or what happens.

    JOB is 7, 3-9, 1,4, last (your newest) or all; nothing: all. -J, -u and -s select the jobs that
    are such now. WHEN is 2d or 90m (ago), 12:00 (the last one),
    2026-11-21, '2026-11-21 12:00', today or yesterday.

    A job moved from state to state; regulation saw evidence and acted; it would have acted in
    shadow; it tried how many jobs should contend for a resource at once (trial); its mode was
    switched; what was kept in a job's space goes (scratch); the node was drained (drain), the
    configuration read again (config), the journal restored (restored). With --json, one object a
    line.
    """
    kinds = parse_kinds(kind or [])
    since_s = None if follow else -LAST_S
    if since is not None:
        since_s = parse_moment_s(since, time.time(), "--since")
    selection = None
    if jobs or name is not None or user is not None or state:
        selection = parse_selectors(jobs or [], name=name, user=user, states=state)
    session: Session = ctx.obj
    client = session.client()
    ids: Collection[int] | None = None
    if selection is not None and (not selection.is_all or selection.has_filters):
        ids = frozenset(find_ids(client, selection, finished=True))
    happened = _follow(client, since_s) if follow else client.events(since_s=since_s, follow=False)
    for event in happened:
        if is_meant(event, kinds, ids):
            print(json.dumps(event) if as_json else event_line(event), flush=follow)
    return 0


def _follow(client: Client, since_s: float | None) -> Iterator[JsonObject]:
    """What happens, over restarts of the daemon, each event once.

    Raises:
        NoDaemon: the daemon went away and did not come back, or gives no ids.
        Gone: the events that happened meanwhile are not all known.
    """
    told: int | None = None
    lost_s: float | None = None

    def begin(after: int | None) -> None:
        nonlocal told, lost_s
        told, lost_s = after, None

    while True:
        since = since_s if told is None else None
        try:
            for event in client.events(since_s=since, after=told, on_begin=begin):
                if isinstance(event.get("id"), int):
                    told = cast("int", event["id"])
                yield event
        except NoDaemon as error:
            if told is None:
                raise
            if lost_s is None:
                lost_s = time.monotonic()
                tell_lost(error)
            elif time.monotonic() - lost_s > client.reconnect_s:
                raise
        else:
            if told is None:
                return
        time.sleep(_RETRY_S)  # a daemon that is about to stop ends its answers early


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
