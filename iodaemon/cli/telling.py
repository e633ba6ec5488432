"""What happened, in one line each; and the table of a regulation's decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from iodaemon.api.model import Evidence, TrialStep
from iodaemon.cli import output
from iodaemon.cli.output import Column
from iodaemon.cli.selector import format_ids

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
