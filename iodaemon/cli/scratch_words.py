"""The space of a job, in words."""

from __future__ import annotations

from iodaemon.api.model import Job, Scratch
from iodaemon.cli import output
from iodaemon.text import printable


def scratch_pairs(job: Job) -> list[tuple[str, str]]:
    """A label and a value for all there is to say of it; nothing of a job that asked for none."""
    scratch = job.get("scratch")
    if not scratch:
        return []
    from iodaemon.units import format_duration

    pairs = [("Scratch", _asked(scratch)), ("Scratch is", _has(job, scratch))]
    pairs += _copied(job, scratch)
    if scratch["stage"]:
        pairs.append(("Copying", scratch["stage"]["step"]))
    if not scratch["over"] and (most := scratch.get("most_bytes")):
        pairs.append(("Too much", _had(most, scratch)))
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


def _copied(job: Job, scratch: Scratch) -> list[tuple[str, str]]:
    """What comes in and goes out, or came and went; without space nothing is copied."""
    says = (("Input", scratch["input_path"], _in), ("Output", scratch["output_path"], _out))
    pairs = []
    for label, path, say in says:
        if path and scratch.get("had_space") is False:
            pairs.append((label, f"{printable(path)}, in place: nothing is copied"))
        elif path:
            pairs.append(say(printable(path), job, scratch))
    return pairs


def _in(path: str, job: Job, scratch: Scratch) -> tuple[str, str]:
    done = scratch.get("copied_in")
    if done is None:
        return ("Input comes", f"from {path}") if job["ended_s"] is None else ("Input from", path)
    return ("Copied in" if done else "Not copied in", f"from {path}")


def _out(path: str, job: Job, scratch: Scratch) -> tuple[str, str]:
    done = scratch.get("copied_out")
    if job["ended_s"] is None:
        always = ", also if it fails" if scratch["output_on"] == "always" else ""
        return ("Output goes", f"to {path}{always}")
    if done is None:
        return ("Output to", path)
    return ("Copied out", f"to {path}") if done else ("Not copied out", path + _gone(scratch))


def _gone(scratch: Scratch) -> str:
    """Who had what was not copied out removed; nothing where it is kept."""
    unwanted = scratch.get("unwanted")
    if not unwanted:
        return ""
    verb = "is removed" if scratch["shares"] else "removed"
    if by := scratch.get("unwanted_by"):
        return f"; {verb} by {printable(by)}"
    return f"; {verb}: {printable(unwanted['text'])}"


def _had(most_bytes: int, scratch: Scratch) -> str:
    from iodaemon.units import format_bytes

    return f"had {format_bytes(most_bytes)} of {format_bytes(scratch['size_bytes'])}"


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
        return f"{where}: {', '.join(shares)}"
    if scratch.get("had_space") is False:
        return f"{where}, no space of its own"
    return where if job["ended_s"] is None else f"{where}, given back"
