"""``iod show`` and ``iod why``: everything of a job; where it is, and what would let it go on."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from iodaemon.api.model import (
    FINAL_STATES,
    Job,
    JobDetail,
    LimitState,
    Scratch,
    WhyAnswer,
)
from iodaemon.cli import output
from iodaemon.cli.command import OFF, SELECTED, App, AsJson, verb
from iodaemon.cli.history import event_cells, evidence_lines, trial_words
from iodaemon.cli.output import expected_words, percent
from iodaemon.cli.selector import Selection, find_ids, format_ids, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.text import printable
from iodaemon.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from iodaemon.api.client import Client

app = App()

_FALLBACKS: Final = {"slow": "else on the slowest", "fail": "else it fails"}


@verb(app, "show", SELECTED)
def show(session: Session, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Show all of a job (alias: inspect).

    JOB is 7, 3-9, 1,4, last (your newest) or all. -J, -u and -s select among them, or without JOB
    among all of yours.
    """
    return tell_each(
        session,
        parse_selectors(**chosen),
        lambda client, job_id: client.job(job_id),
        lambda job: output.aligned(job_lines(job)),
        as_json=as_json,
    )


def job_lines(job: JobDetail) -> list[tuple[str, str]]:
    """A label and a value for all there is to say."""
    is_over, never = job["state"] in FINAL_STATES, job["started_s"] is None
    for_io, by_person = map(format_duration, (job["suspended_io_s"], job["suspended_user_s"]))
    kept, kept_s = "", job.get("output_kept_s")
    if kept_s is not None:  # it is the daemon's to remove
        kept = f" (removed {format_duration(kept_s)} after its end; -o writes to a file of yours)"
    pairs = [
        ("Job", f"{job['id']}  {output.job_name(job)}"),
        ("User", f"{job['user']} (uid {job['uid']})"),
        ("State", f"{job['state_shown']} ({job['code']}){output.reason_words(job)}"),
        ("Command", shlex.join(job["command"])),
        ("Directory", job["cwd"]),
        ("Asked for", _asked(job)),
        ("Placed", _placed(job)),
        ("Submitted", output.local_time(job["submitted_s"])),
        ("Started", "never" if is_over and never else output.local_time(job["started_s"])),
        ("Ended", output.local_time(job["ended_s"])),
        ("Exit", _exit(job)),
        ("Ran", format_duration(job["run_s"])),
        ("Suspended", f"{for_io} for I/O, {by_person} by a person"),
        *_phase(job),
        *scratch_pairs(job),
        *_io(job),
        ("Output", (job["stdout"] or "unknown") + kept),
        ("Errors", job["stderr"] or "with the output"),
    ]
    if pids := job.get("pids"):
        pairs.append(("Processes", " ".join(map(str, pids))))
    for name, value in (job.get("counters") or {}).items():
        pairs.append((f"  {name}", "unknown" if value is None else str(value)))
    return pairs


def _asked(job: Job) -> str:
    parts = [output.count_of(job["cpus"], "CPU")]
    if job.get("shares_cores"):
        parts = ["shared CPUs"]
    if job["memory_bytes"] is not None:
        parts.append(f"{format_bytes(job['memory_bytes'])} memory")
    if job["walltime_s"] is not None:
        parts.append(f"{format_duration(job['walltime_s'])} run time")
    if job["io_rate_bytes_per_s"] is not None:
        share = job.get("io_share")
        part = "" if share is None else f" in {percent(share)} of its run time"
        parts.append(f"{format_rate(job['io_rate_bytes_per_s'])} I/O{part}")
    if job["no_suspend"]:
        parts.append("never to be suspended")
    elif job["max_suspend_s"] is not None:
        parts.append(f"suspended for {format_duration(job['max_suspend_s'])} in a row at most")
    if job["requeue"]:
        parts.append("to be run again after a reboot")
    return ", ".join(parts)


def _placed(job: Job) -> str:
    if job["socket"] is None:
        return "never" if job["state"] in FINAL_STATES else "not yet"
    cpus = f", CPUs {format_ids(job['slots'])}" if job["slots"] else ""
    if job.get("shares_cores"):
        cpus = ", any of its CPUs"
    return f"socket {job['socket']}{cpus}, attempt {job['attempt']}"


def _exit(job: Job) -> str:
    if job["state"] not in FINAL_STATES:
        return "not yet"
    if job["started_s"] is None:
        return output.NOTHING
    if job["signal"] is not None:
        return f"signal {output.signal_name(job['signal'])}"
    return "unknown" if job["exit_code"] is None else f"code {job['exit_code']}"


def _phase(job: Job) -> list[tuple[str, str]]:
    phase = job.get("phase")
    if not phase:
        return []
    granted_s, expect_bytes = phase["granted_s"], phase["expect_bytes"]
    word = "waits for its turn" if granted_s is None else "has its turn"
    since = output.local_time(phase["asked_s"] if granted_s is None else granted_s)
    told = "" if expect_bytes is None else f", {format_bytes(expect_bytes)} expected"
    return [("I/O phase", f"{word} since {since}{told}")]


def _io(job: Job) -> list[tuple[str, str]]:
    bound = "at least " if job.get("io_at_least") else ""
    moved = _read_written(format_bytes, job["read_bytes"], job["written_bytes"])
    pairs = [("I/O so far", bound + moved)]
    if now := job["bandwidth"]:
        rates = now["read_bytes_per_s"], now["written_bytes_per_s"]
        pairs.append(("I/O now", _read_written(format_rate, *rates)))
    if predicted := job["predicted"]:
        confidence = predicted["confidence"]
        sure = "" if confidence is None else f", confidence {confidence:.2g}"
        source = f" ({predicted['source']}{sure})" if predicted["source"] else ""
        rate = output.rate(predicted["rate_bytes_per_s"])
        known = predicted["source"] != "unknown"
        pairs.append(("I/O next", f"{rate}{source}" if known else "unknown"))
    pairs.append(("I/O expected", expected_words(job)))
    return pairs


def _read_written(words: Callable[[Any], str], *values: float | None) -> str:
    read, written = ("unknown" if value is None else words(value) for value in values)
    return f"{read} read, {written} written"


LAST_STEPS: Final = 8
"""Of a job's life, shown; a regulated job takes a step every few seconds."""


@verb(app, "why", SELECTED)
def why(session: Session, as_json: AsJson = OFF, **chosen: Any) -> int:
    """Tell why a job is where it is, and what would let it go on.

    JOB is 7, 3-9, 1,4, last (your newest) or all. -J, -u and -s select among them, or without JOB
    among all of yours.
    """
    return tell_each(
        session,
        parse_selectors(**chosen),
        lambda client, job_id: client.why(job_id),
        lambda answer: why_lines(answer, time.time()),
        as_json=as_json,
    )


def why_lines(answer: WhyAnswer, now_s: float) -> list[str]:
    """The explanation, the table where there is one, and the last steps."""
    job = answer["job"]
    head = f"Job {job['id']}  {printable(output.job_name(job))} ({job['user']})"
    lasted = format_duration(float(round(max(0.0, now_s - answer["since_s"]))))
    since = output.local_time(answer["since_s"])
    pairs = [("State", f"{job['state_shown']}, since {since}, for {lasted}")]
    pairs.append(("Why", answer["is_so"]))
    if answer["until"]:
        pairs.append(("Until", answer["until"]))
    pairs += [("Limit", limit_words(limit)) for limit in answer.get("limits", [])]
    for trial in answer.get("trials", []):
        told = f"{output.local_time(trial['at_s'])}  {trial_words(trial)}: {trial['text']}"
        pairs.append(("Tried", printable(told)))
    pairs += kept_until_pairs(job)
    lines = [head, *output.aligned(pairs)]
    if answer["evidence"] is not None:
        table = evidence_lines(answer["evidence"])
        lines += ["", *table]
    steps = answer["history"]
    lines.append("")
    if len(steps) > LAST_STEPS:
        lines.append(f"({len(steps) - LAST_STEPS} earlier steps)")
    for step in steps[-LAST_STEPS:]:
        _, what, reason = event_cells(step)
        at = output.local_time(float(str(step["at_s"])))
        lines.append(printable(f"{at}  {what}" + (f": {reason}" if reason else "")))
    return lines


def limit_words(limit: LimitState) -> str:
    """How many should contend for a resource, how many do, and why: in one line."""
    most = "no limit" if limit["limit"] is None else f"{limit['limit']} at once"
    why = f": {limit['text']}" if limit["text"] else ""
    return printable(f"{limit['resource']}: {most}, {limit['contending']} now{why}")


A = TypeVar("A")


def tell_each(
    session: Session,
    selection: Selection,
    ask: Callable[[Client, int], A],
    lines: Callable[[A], Sequence[str]],
    *,
    as_json: bool,
) -> int:
    """Print a block of lines a job; or JSON, for one number an object, else a list."""
    client = session.client()
    answers = [ask(client, job_id) for job_id in find_ids(client, selection, finished=True)]
    if as_json:
        is_one = len(answers) == 1 and len(selection.items) == 1
        output.print_json(answers[0] if is_one else answers)
    else:
        print("\n\n".join("\n".join(lines(answer)) for answer in answers))
    return 0


def scratch_pairs(job: Job) -> list[tuple[str, str]]:
    """A label and a value for all there is to say of it; nothing of a job that asked for none."""
    scratch = job.get("scratch")
    if not scratch:
        return []
    size = format_bytes(scratch["size_bytes"])
    tier = f"tier {scratch['asked_tier']}" if scratch["asked_tier"] else "any tier"
    fallback = _FALLBACKS.get(scratch["fallback"], "else it waits")
    pairs = [
        ("Scratch", f"{size} of {tier}, {fallback}"),
        ("Scratch is", _has(job, scratch)),
        *_copied(job, scratch),
    ]
    if scratch["stage"]:
        pairs.append(("Copying", scratch["stage"]["step"]))
    if not scratch["over"] and (most := scratch.get("most_bytes")):
        pairs.append(("Too much", f"had {format_bytes(most)} of {size}"))
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
    pairs = []
    for label, path, towards, done in (
        ("Input", scratch["input_path"], "from", scratch.get("copied_in")),
        ("Output", scratch["output_path"], "to", scratch.get("copied_out")),
    ):
        if not path:
            continue
        is_in, shown = label == "Input", printable(path)
        if scratch.get("had_space") is False:
            pairs.append((label, f"{shown}, in place: nothing is copied"))
        elif job["ended_s"] is None and (done is None or not is_in):
            always = not is_in and scratch["output_on"] == "always"
            also = ", also if it fails" if always else ""
            pairs.append((f"{label} {'comes' if is_in else 'goes'}", f"{towards} {shown}{also}"))
        elif done is None:
            pairs.append((f"{label} {towards}", shown))
        elif done or is_in:
            said = "Copied" if done else "Not copied"
            pairs.append((f"{said} {'in' if is_in else 'out'}", f"{towards} {shown}"))
        else:
            pairs.append(("Not copied out", shown + _gone(scratch)))
    return pairs


def _gone(scratch: Scratch) -> str:
    """Who had what was not copied out removed; nothing where it is kept."""
    unwanted = scratch.get("unwanted")
    if not unwanted:
        return ""
    removed = "is removed" if scratch["shares"] else "removed"
    by = scratch.get("unwanted_by")
    return (
        f"; {removed} by {printable(by)}" if by else f"; {removed}: {printable(unwanted['text'])}"
    )


def _has(job: Job, scratch: Scratch) -> str:
    shares = [f"{format_bytes(s['size_bytes'])} on {s['disk']}" for s in scratch["shares"]]
    if scratch["tier"] is None:
        return "not allocated yet"
    where = f"tier {scratch['tier']}"
    if shares:
        return f"{where}: {', '.join(shares)}"
    if scratch.get("had_space") is False:
        return f"{where}, no space of its own"
    return where if job["ended_s"] is None else f"{where}, given back"
