"""``iod history`` and ``iod events``: what has ended, what happened and happens, one line each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

from iodaemon.api.client import Client
from iodaemon.api.model import (
    FINAL_STATES,
    Evidence,
    Job,
    JsonObject,
    Sum,
    SumsAnswer,
    TrialStep,
)
from iodaemon.cli import output
from iodaemon.cli.command import (
    OFF,
    SELECTED,
    App,
    AsJson,
    Named,
    NoHeader,
    OfUser,
    Word,
    Words,
    argument,
    option,
    verb,
)
from iodaemon.cli.failure import UsageError, count, nearest
from iodaemon.cli.output import Column, ratio_cell
from iodaemon.cli.selector import (
    find_ids,
    format_ids,
    parse_moment_s,
    parse_selectors,
    parse_states,
)
from iodaemon.cli.session import Session
from iodaemon.cli.wait import tell_lost
from iodaemon.errors import NoDaemon, NotFound
from iodaemon.text import printable
from iodaemon.units import format_bytes, format_duration

app = App()

LIMIT: Final = 100
"""Jobs shown where no limit is given; sums are over all."""


def _moved(key: str) -> Callable[[Any], str]:
    def cell(job: Any) -> str:
        size: int | None = job[key]
        if size is None:
            return _unknown(job)
        return format_bytes(size) + ("+" if job.get("io_at_least") else "")

    return cell


def _unknown(job: Job) -> str:
    return output.NOTHING if job["started_s"] is None else output.UNKNOWN


def _exit(job: Job) -> str:
    """The exit code, the signal's name, ``-`` for a job that never ran, ``?`` where unknown."""
    if job["exit_code"] is not None:
        return str(job["exit_code"])
    if job["signal"] is not None:
        return output.signal_name(job["signal"]).partition("(")[2][:-1] or f"sig {job['signal']}"
    return _unknown(job)


def _charged_s(job: Job) -> float | None:
    """What its run is charged; None: as long as it ran."""
    scratch = job.get("scratch")
    return scratch["charged_s"] if scratch else None


def _charged(job: Job) -> str:
    charged_s = _charged_s(job)
    return output.clock(job["run_s"] if charged_s is None else charged_s)


_JOBS: Final = (
    Column("ID", lambda job: str(job["id"]), is_number=True),
    Column("NAME", output.job_name, width_max=14),
    Column("USER", lambda job: job["user"], width_max=8, drop=3),
    Column("ST", lambda job: job["code"]),
    Column("ENDED", lambda job: output.local_time(job["ended_s"])[:-3], drop=7),
    Column("RUN", lambda job: output.clock(job["run_s"]), is_number=True),
    Column("SUSP", output.suspended_cell, is_number=True, drop=4),
    Column("READ", _moved("read_bytes"), is_number=True, drop=5),
    Column("WRITTEN", _moved("written_bytes"), is_number=True, drop=6),
    Column("EXPECTED", ratio_cell, is_number=True, drop=2),
    Column("EXIT", _exit, is_number=True),
    Column("CHARGED", _charged, is_number=True),
    Column("COMMAND", output.command_line, least=12, drop=1),
)
"""CHARGED, the time that a run takes on the slowest tier, is shown where somebody had space."""


def _sum_moved(key: str) -> Callable[[Any], str]:
    """What is known, with ``+`` where something is not."""

    def cell(line: Any) -> str:
        size: int | None = line[key]
        if size is None:
            return output.UNKNOWN
        return format_bytes(size) + ("+" if line["unknown_io_jobs"] else "")

    return cell


def _ratio(key: str) -> Callable[[Any], str]:
    def cell(line: Sum) -> str:
        ratio = line.get(key)
        return output.NOTHING if ratio is None else f"{ratio:.2f}"

    return cell


def _sum_rate(line: Sum) -> str:
    return output.rate(line["bandwidth_bytes_per_s"]).removesuffix("/s")


_SUMS: Final = (
    Column("JOBS", lambda line: str(line["jobs"]), is_number=True),
    Column("FAILED", lambda line: str(line["failed"]), is_number=True),
    Column("CANC", lambda line: str(line["cancelled"]), is_number=True),
    Column("RUN", lambda line: output.clock(line["run_s"]), is_number=True),
    Column("SUSP-IO", lambda line: output.clock(line["suspended_io_s"]), is_number=True),
    Column("SUSP-USER", lambda line: output.clock(line["suspended_user_s"]), is_number=True),
    Column("READ", _sum_moved("read_bytes"), is_number=True),
    Column("WRITTEN", _sum_moved("written_bytes"), is_number=True),
    Column("IO/s", _sum_rate, is_number=True),
    Column("SLOWDOWN", _ratio("mean_slowdown"), is_number=True, drop=2),
    Column("FAIR", _ratio("jain_index"), is_number=True, drop=1),
    Column("CHARGED", lambda line: output.clock(_sum_charged_s(line)), is_number=True),
)


def _sum_charged_s(line: Sum) -> float:
    return line.get("charged_s", line["run_s"])


State = Annotated[Words, option("-s", "--state", metavar="STATE", text="Only these: FAILED, to.")]
Limit = Annotated[
    Word, option("--limit", metavar="COUNT", text="The last so many [100; sums: all].")
]


@verb(app, "history")
def history(
    session: Session,
    jobs: Annotated[Words, argument("JOB")] = None,
    user: OfUser = None,
    name: Named = None,
    state: State = None,
    since: Annotated[Word, option("--since", metavar="WHEN", text="Ended then or later.")] = None,
    until: Annotated[Word, option("--until", metavar="WHEN", text="Ended before.")] = None,
    limit: Limit = None,
    by: Annotated[Word, option("--by", metavar="user|name", text="Added up.")] = None,
    no_header: NoHeader = OFF,
    as_json: AsJson = OFF,
) -> int:
    """Show what has ended, the last at the bottom.

    JOB is 7, 3-9, 1,4, last or all. WHEN is 2d or '2 hours ago', 12:00 (the last one), 2026-11-21
    (its first moment), '2026-11-21 12:00', today or yesterday.

    SUSP is time in which it stood still; EXPECTED what its I/O was expected to be over what it
    was; IO/s what a running job read and wrote on average. A + stands behind what was at least so
    much. A narrow terminal leaves out COMMAND, EXPECTED, USER, SUSP, READ, WRITTEN and ENDED, in
    this order.

    SLOWDOWN is the mean time from submission to end over the run time (of runs of less than 10 s,
    over 10 s), FAIR how evenly it is spread over the jobs: 1: all alike, 1/n: one of n has it all.
    """
    if by not in (None, "user", "name"):
        raise UsageError(f"--by: {by!r} adds nothing up: write --by user or --by name")
    selection = parse_selectors(jobs) if jobs else None
    query = []
    if user is not None:
        query.append(("user", str(os.geteuid()) if user == "me" else user))
    if name is not None:
        query.append(("name", name))
    for word in parse_states(state or []):
        if word not in FINAL_STATES:
            raise UsageError(f"--state: {word} jobs have not ended: 'iod queue -s {word}' has them")
        query.append(("state", word))
    for key, text in (("since", since), ("until", until)):
        if text is not None:
            query.append((f"{key}_s", repr(parse_moment_s(text, time.time(), f"--{key}"))))
    if selection is not None and not selection.is_all:
        query.append(("select", selection.text))
    if limit is not None:
        query.append(("limit", str(count("--limit", limit, "jobs", "20"))))
    elif by is None and selection is None:
        query.append(("limit", str(LIMIT)))
    client = session.client()
    if by is not None:
        sums = client.history_sums(by, query)
        output.show(sums, lambda: _sum_lines(sums, header=not no_header), as_json=as_json)
        return 0
    answer = client.history(query)
    is_charged = any(_charged_s(job) is not None for job in answer["jobs"])
    columns = [column for column in _JOBS if is_charged or column.title != "CHARGED"]
    rows = partial(output.listing, columns, answer["jobs"], header=not no_header)
    output.show(answer, rows, as_json=as_json)
    missing = set(selection.ids if selection else ()) - {job["id"] for job in answer["jobs"]}
    if missing and not any((user, name, state, since, until, limit)):
        raise NotFound(
            f"no ended job {format_ids(missing)}: 'iod queue -a' lists all that are known"
        )
    return 0


def _sum_lines(answer: SumsAnswer, *, header: bool) -> list[str]:
    """One line a user or name, and the total where there are several."""
    lines: list[Any] = [*answer["sums"]]
    if header and len(lines) > 1:
        lines.append({"key": "(total)", **answer["total"]})
    is_charged = any(_sum_charged_s(line) != line["run_s"] for line in lines)
    by = Column(answer["by"].upper(), lambda line: line["key"], width_max=20)
    columns = [by, *(each for each in _SUMS if is_charged or each.title != "CHARGED")]
    return output.listing(columns, lines, header=header)


LAST_S: Final = 3600.0
"""How far back, where nothing is said."""

_RETRY_S: Final = 0.25
"""Between attempts to reach a daemon that went away."""

Since = Annotated[Word, option("--since", metavar="WHEN", text="From then on [1h; -f: now].")]
Kind = Annotated[
    Words, option("-k", "--kind", metavar="KIND", text="Only moved, evidence, shadow, mode, ...")
]


@verb(app, "events", SELECTED)
def events(
    session: Session,
    follow: Annotated[bool, option("-f", "--follow", text="Go on with what happens.")] = OFF,
    since: Since = None,
    kind: Kind = None,
    as_json: AsJson = OFF,
    **chosen: Any,
) -> int:
    """Show what happened in the last hour, or happens now.

    JOB is 7, 3-9, 1,4, last (your newest) or all; nothing: all. -J, -u and -s select the jobs that
    are such now. WHEN is 2d or '2 hours ago', 12:00 (the last one),
    2026-11-21, '2026-11-21 12:00', today or yesterday.

    A job moved from state to state; regulation saw evidence and acted; it would have acted in
    shadow; it tried how many jobs should contend for a resource at once (trial); its mode was
    switched; what was kept in a job's space goes (scratch); the node was drained (drain), the
    configuration read again (config), the journal restored (restored). With --json, one object a
    line.
    """
    kinds = tuple(part for word in kind or [] for part in word.split(","))
    for part in kinds:
        if part not in KINDS:
            hint = f"one of {', '.join(KINDS)}"
            raise UsageError(f"--kind: no kind {part!r}{nearest(part, KINDS, hint)}")
    since_s = None if follow else -LAST_S
    if since is not None:
        since_s = parse_moment_s(since, time.time(), "--since")
    selection = None
    if any(word not in (None, []) for word in chosen.values()):
        selection = parse_selectors(**chosen)
    client = session.client()
    ids: frozenset[int] | None = None
    if selection is not None and (not selection.is_all or selection.has_filters):
        ids = frozenset(find_ids(client, selection, finished=True))
    happened = _follow(client, since_s) if follow else client.events(since_s=since_s, follow=False)
    for event in happened:
        is_kind = not kinds or event["kind"] in kinds
        if is_kind and (ids is None or not ids.isdisjoint(_concerned(event))):
            print(json.dumps(event) if as_json else event_line(event), flush=follow)
    return 0


def _follow(client: Client, since_s: float | None) -> Iterator[JsonObject]:
    """What happens, over restarts of the daemon, each event once."""
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

Event = Mapping[str, Any]


def event_cells(event: Event) -> tuple[str, str, str]:
    """Which job (or ``-``), what happened, and why."""
    match event["kind"]:
        case "moved":
            return str(event["job_id"]), _moved_words(event), _reason(event)
        case "shadow":
            return str(event["job_id"]), _shadow_words(event), _reason(event)
        case "scratch":
            return str(event["job_id"]), "kept scratch space cleared", _reason(event)
        case "evidence":
            evidence = cast("Evidence", event)
            return output.NOTHING, _decided_words(evidence), _signal_words(evidence)
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


def _moved_words(event: Event) -> str:
    """A step in a job's life: ``RUNNING -> SUSPENDED_IO``."""
    before, after = event["before"], event["after"]
    return f"submitted, {after}" if before is None else f"{before} -> {after}"


def trial_words(trial: TrialStep) -> str:
    """What was decided of how many jobs at once: ``keep 2 for memory``."""
    verb = _TRIAL_VERBS.get(trial["verdict"], trial["verdict"])  # else of a newer daemon
    would = "would " if trial["is_shadow"] else ""
    return f"{would}{verb} {trial['tried']} for {trial['resource']}"


def _concerned(event: Event) -> Iterator[int]:
    """The jobs that something happened to; none for an event that concerns all."""
    if event["kind"] == "evidence":
        rows = cast("Evidence", event)["jobs"]
        yield from (row["job_id"] for row in rows if row["verdict"] in ("suspend", "resume"))
    elif "job_id" in event:
        yield event["job_id"]


def _signal_words(evidence: Evidence) -> str:
    """What was looked at: ``total of all jobs 90 MB/s, threshold 40 MB/s``."""
    signal, value, threshold = evidence["signal"], evidence["value"], evidence["threshold"]
    fits = evidence.get("fits")
    back = "" if fits is None else f"; jobs come back up to {_load_words(fits, evidence)}"
    match evidence.get("quantity", ""):
        case "bandwidth":
            against = f", threshold {output.rate(threshold)}" if threshold > 0.0 else ""
            return f"{signal} {output.rate(value)}{against}{back}"
        case "wait":
            return (
                f"{signal} {value:.1f} times a lone request's, threshold {threshold:.1f}; "
                f"{evidence['load']:.1f} requests in flight, {evidence['allowed']:.1f} may be{back}"
            )
        case "absence":
            return f"{signal} for {value:.0f} slices"
        case _:  # of a newer or an older daemon
            return f"{signal} {value:g}, threshold {threshold:g}"


def _load_words(load: float, evidence: Evidence) -> str:
    """A load in its unit: bytes/s of jobs, or requests in flight at a device."""
    match evidence.get("quantity", ""):
        case "bandwidth":
            return output.rate(load)
        case "wait" | "absence":
            return f"{load:.1f} req"
        case _:
            return f"{load:g}"


def evidence_lines(evidence: Evidence) -> list[str]:
    """The signal in one line, then a line a job."""
    columns = (
        Column("JOB", lambda row: str(row["job_id"]), is_number=True),
        Column("MOVED", lambda row: output.rate(row["rate_bytes_per_s"]), is_number=True),
        Column("PART", lambda row: _load_words(row["load"], evidence), is_number=True),
        Column("VERDICT", lambda row: row["verdict"]),
        Column("WHY", lambda row: row["why"]),
    )
    at = output.local_time(evidence["at_s"])
    head = f"In the slice that ended {at}: {_signal_words(evidence)}"
    return [head, *output.listing(columns, evidence["jobs"])]


def _reason(event: Event) -> str:
    return output.told_reason(event.get("reason"))


def _shadow_words(event: Event) -> str:
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
