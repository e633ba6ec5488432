"""``iod events``: what happened, and what happens, one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

from iodaemon.api.client import Client
from iodaemon.api.model import Evidence, JsonObject, TrialStep
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    SELECTED,
    App,
    AsJson,
    Context,
    Word,
    Words,
    option,
    verb,
)
from iodaemon.cli.failure import UsageError, nearest
from iodaemon.cli.output import Column
from iodaemon.cli.selector import find_ids, format_ids, parse_moment_s, parse_selectors
from iodaemon.cli.session import Session
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


@verb(app, "events", options=SELECTED)
def events(
    ctx: Context,
    follow: Follow = OFF,
    since: Since = None,
    kind: Kinds = None,
    as_json: AsJson = OFF,
    **chosen: Any,
) -> int:
    """Show what happened in the last hour, or happens now.

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
    if any(word not in (None, []) for word in chosen.values()):
        selection = parse_selectors(**chosen)
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


KINDS: Final = (
    "moved",
    "evidence",
    "shadow",
    "trial",
    "scratch",
    "mode",
    "drain",
    "config",
    "restored",
)
"""Of events."""
_TRIAL_VERBS: Final[Mapping[str, str]] = MappingProxyType(
    {"began": "try", "kept": "keep", "undone": "give up", "learned": "learn"}
)

_COLUMNS: Final = (
    Column("JOB", is_number=True),
    Column("MOVED", is_number=True),
    Column("PART", is_number=True),
    Column("VERDICT"),
    Column("WHY"),
)
Event = Mapping[str, Any]


def event_cells(event: Event) -> tuple[str, str, str]:
    """Which job (or ``-``), what happened, and why."""
    match event["kind"]:
        case "moved":
            return str(event["job_id"]), moved_words(event), _reason(event)
        case "shadow":
            return str(event["job_id"]), _shadow_words(event), _reason(event)
        case "scratch":
            return str(event["job_id"]), "kept scratch space cleared", _reason(event)
        case "evidence":
            evidence = cast("Evidence", event)
            return output.NOTHING, _decided_words(evidence), signal_words(evidence)
        case "trial":
            trial = cast("TrialStep", event)
            return output.NOTHING, trial_words(trial), trial["text"]
        case "mode":
            return output.NOTHING, f"regulation {event['mode']}", f"switched by {event['by']}"
        case "drain":
            return output.NOTHING, *_drain_words(event)
        case "config":
            told = "; ".join(event["changes"])
            return output.NOTHING, "reconfigured", f"by {event['by']}: {told}"
        case "restored":
            return output.NOTHING, "journal restored", f"by {event['by']} {event['text']}"
        case kind:  # of a newer daemon
            return output.NOTHING, str(kind), ""


def _drain_words(event: Event) -> tuple[str, str]:
    if not event["is_on"]:
        return "jobs start again", f"drain ended by {event['by']}"
    why = f": {event['reason']}" if event["reason"] else ""
    return "nothing starts", f"drained by {event['by']}{why}"


def moved_words(event: Event) -> str:
    """A step in a job's life: ``RUNNING -> SUSPENDED_IO``."""
    before, after = event["before"], event["after"]
    return f"submitted, {after}" if before is None else f"{before} -> {after}"


def trial_words(trial: TrialStep) -> str:
    """What was decided of how many jobs at once: ``keep 2 for memory``."""
    verb = _TRIAL_VERBS.get(trial["verdict"], trial["verdict"])  # else of a newer daemon
    would = "would " if trial["is_shadow"] else ""
    return f"{would}{verb} {trial['tried']} for {trial['resource']}"


def concerned(event: Event) -> Iterator[int]:
    """The jobs that something happened to; none for an event that concerns all."""
    if event["kind"] == "evidence":
        rows = cast("Evidence", event)["jobs"]
        yield from (row["job_id"] for row in rows if row["verdict"] in ("suspend", "resume"))
    elif "job_id" in event:
        yield event["job_id"]


def signal_words(evidence: Evidence) -> str:
    """What was looked at: ``total of all jobs 90 MB/s, threshold 40 MB/s``."""
    signal, value, threshold = evidence["signal"], evidence["value"], evidence["threshold"]
    match _quantity(evidence):
        case "bandwidth":
            against = f", threshold {output.rate(threshold)}" if threshold > 0.0 else ""
            return f"{signal} {output.rate(value)}{against}{_return_words(evidence)}"
        case "wait":
            return (
                f"{signal} {value:.1f} times a lone request's, threshold {threshold:.1f}; "
                f"{evidence['load']:.1f} requests in flight, {evidence['allowed']:.1f} may be"
                + _return_words(evidence)
            )
        case "absence":
            return f"{signal} for {value:.0f} slices"
        case _:  # of a newer or an older daemon
            return f"{signal} {value:g}, threshold {threshold:g}"


def load_words(load: float, evidence: Evidence) -> str:
    """A load in its unit: bytes/s of jobs, or requests in flight at a device."""
    match _quantity(evidence):
        case "bandwidth":
            return output.rate(load)
        case "wait" | "absence":
            return f"{load:.1f} req"
        case _:
            return f"{load:g}"


def _quantity(evidence: Evidence) -> str:
    """What the figures are; empty in a note from before that was said."""
    return evidence.get("quantity", "")


def _return_words(evidence: Evidence) -> str:
    fits = evidence.get("fits")
    return "" if fits is None else f"; jobs come back up to {load_words(fits, evidence)}"


def evidence_lines(evidence: Evidence, *, width: int | None) -> list[str]:
    """The signal in one line, then a line a job."""
    at = output.local_time(evidence["at_s"])
    rows = [
        (
            str(row["job_id"]),
            output.rate(row["rate_bytes_per_s"]),
            load_words(row["load"], evidence),
            row["verdict"],
            row["why"],
        )
        for row in evidence["jobs"]
    ]
    head = f"In the slice that ended {at}: {signal_words(evidence)}"
    return [head, *output.table(_COLUMNS, rows, width=width)]


def _reason(event: Event) -> str:
    return output.told_reason(event.get("reason"))


def _shadow_words(event: Event) -> str:
    from iodaemon.units import format_duration

    if event["lasted_s"] is None:
        return f"would {event['verdict']}"
    return f"would {event['verdict']}, after {format_duration(event['lasted_s'])}"


def _decided_words(evidence: Evidence) -> str:
    parts = []
    for verdict in ("suspend", "resume"):
        ids = [row["job_id"] for row in evidence["jobs"] if row["verdict"] == verdict]
        if ids:
            parts.append(f"{verdict} {format_ids(ids)}")
    return ("would " if evidence["is_shadow"] else "") + ", ".join(parts)
