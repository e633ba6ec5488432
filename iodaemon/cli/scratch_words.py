"""The space of a job, in words."""

from __future__ import annotations

from typing import Final

from iodaemon.api.model import Job
from iodaemon.api.scratch import Scratch
from iodaemon.cli import output
from iodaemon.text import printable

_LIMITED: Final = "; more than that cannot be written (project quota)"
_MEASURED: Final = "; more than that is seen, not held back (no project quota)"


def scratch_pairs(job: Job) -> list[tuple[str, str]]:
    """A label and a value for all there is to say of it; nothing of a job that asked for none."""
    scratch = job.get("scratch")
    if not scratch:
        return []
    from iodaemon.units import format_duration

    pairs = [("Scratch", _asked(scratch)), ("Scratch is", _has(job, scratch))]
    pairs += _copied(scratch)
    if scratch["stage"]:
        pairs.append(("Copying", _progress(scratch)))
    for label, reason in (("Too much", scratch["over"]), ("Kept", scratch["kept"])):
        if reason:
            pairs.append((label, printable(reason["text"])))
    pairs += kept_until_pairs(job)
    if unwanted := scratch.get("unwanted"):
        label = "Is removed" if scratch["shares"] else "Removed"
        pairs.append((label, printable(unwanted["text"])))
    if scratch["charged_s"] is not None:
        charged = format_duration(scratch["charged_s"])
        pairs.append(("Charged", f"{charged}, what its run takes on the slowest tier"))
    return pairs


def kept_until_pairs(job: Job) -> list[tuple[str, str]]:
    """Until when what could not be copied out is kept; nothing where nobody has set an end."""
    scratch = job.get("scratch")
    until_s = scratch.get("kept_until_s") if scratch else None
    if until_s is None:
        return []
    return [("Kept until", f"{output.local_time(until_s)}, then removed (scratch_keep)")]


def _copied(scratch: Scratch) -> list[tuple[str, str]]:
    """What comes in and goes out; without space nothing is copied."""
    has_none = scratch.get("had_space") is False
    in_place = ", in place: nothing is copied" if has_none else ""
    pairs = []
    if scratch["input_path"]:
        label = "Input" if has_none else "Copied in"
        pairs.append((label, printable(scratch["input_path"]) + in_place))
    if scratch["output_path"]:
        path = printable(scratch["output_path"])
        always = ", also if it fails" if scratch["output_on"] == "always" else ""
        out = ("Output", path + in_place) if has_none else ("Copied out", f"to {path}{always}")
        pairs.append(out)
    return pairs


def _asked(scratch: Scratch) -> str:
    from iodaemon.units import format_bytes

    tier = f"tier {scratch['asked_tier']}" if scratch["asked_tier"] else "any tier"
    otherwise = {"slow": "else on the slowest", "fail": "else it fails"}
    fallback = otherwise.get(scratch["fallback"], "else it waits")
    return f"{format_bytes(scratch['size_bytes'])} of {tier}, {fallback}"


def _has(job: Job, scratch: Scratch) -> str:
    from iodaemon.units import format_bytes

    shares = [f"{format_bytes(s['size_bytes'])} on {s['disk']}" for s in scratch["shares"]]
    if scratch["tier"] is None:
        return "not allocated yet"
    where = f"tier {scratch['tier']}"
    if shares:
        limited = scratch.get("limited")
        how = "" if limited is None else _LIMITED if limited else _MEASURED
        return f"{where}: {', '.join(shares)}{how}"
    if scratch.get("had_space") is False:
        return f"{where}, no space of its own"
    return where if job["ended_s"] is None else f"{where}, given back"


def _progress(scratch: Scratch) -> str:
    from iodaemon.units import format_bytes

    stage = scratch["stage"]
    assert stage is not None
    done, total = format_bytes(stage["bytes"]), format_bytes(stage["total_bytes"])
    return f"{stage['step']}: {done} of {total}, {stage['files']} of {stage['total_files']} files"
