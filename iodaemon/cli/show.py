"""``iod show``: everything of a job."""

from __future__ import annotations

import shlex

from iodaemon.api.model import FINAL_STATES, Job, JobDetail
from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.each import tell_each
from iodaemon.cli.expectation import expected_words, percent
from iodaemon.cli.option import OFF, AsJson, InState, Jobs, Named, OfUser
from iodaemon.cli.scratch_words import scratch_pairs
from iodaemon.cli.selector import format_ids, parse_selectors

app = App()


@verb(app, "show")
def show(
    ctx: Context,
    jobs: Jobs = None,
    name: Named = None,
    user: OfUser = None,
    state: InState = None,
    as_json: AsJson = OFF,
) -> int:
    """Show all of a job (alias: inspect).

    JOB is 7, 3-9, 1,4, last (your newest) or all. -J, -u and -s select among them, or without JOB
    among all of yours.
    """
    return tell_each(
        ctx.obj,
        parse_selectors(jobs or [], name=name, user=user, states=state),
        lambda client, job_id: client.job(job_id),
        lambda job: output.aligned(job_lines(job)),
        as_json=as_json,
    )


def job_lines(job: JobDetail) -> list[tuple[str, str]]:
    """A label and a value for all there is to say."""
    pairs = [
        ("Job", f"{job['id']}  {output.job_name(job)}"),
        ("User", f"{job['user']} (uid {job['uid']})"),
        ("State", f"{job['state_shown']} ({job['code']}){output.reason_words(job)}"),
        ("Command", shlex.join(job["command"])),
        ("Directory", job["cwd"]),
        ("Asked for", _asked(job)),
        ("Placed", _placed(job)),
        ("Submitted", output.local_time(job["submitted_s"])),
        ("Started", output.local_time(job["started_s"])),
        ("Ended", output.local_time(job["ended_s"])),
        ("Exit", _exit(job)),
        *_times(job),
        *_phase(job),
        *scratch_pairs(job),
        *_io(job),
        ("Output", (job["stdout"] or "unknown") + _kept(job)),
        ("Errors", job["stderr"] or "with the output"),
    ]
    if pids := job.get("pids"):
        pairs.append(("Processes", " ".join(map(str, pids))))
    for name, value in (job.get("counters") or {}).items():
        pairs.append((f"  {name}", "unknown" if value is None else str(value)))
    return pairs


def _kept(job: JobDetail) -> str:
    """How long the daemon keeps the output where it is the daemon's to remove."""
    from iodaemon.units import format_duration

    kept_s = job.get("output_kept_s")
    if kept_s is None:
        return ""
    return f" (removed {format_duration(kept_s)} after its end; -o writes to a file of yours)"


def _asked(job: Job) -> str:
    from iodaemon.units import format_bytes, format_duration, format_rate

    parts = [f"{job['cpus']} CPU{'s' if job['cpus'] > 1 else ''}"]
    if job.get("shares_cores"):
        parts = ["a part of its socket's CPUs"]
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
        return "not yet"
    slots = f", slots {format_ids(job['slots'])}" if job["slots"] else ""
    return f"socket {job['socket']}{slots}, attempt {job['attempt']}"


def _exit(job: Job) -> str:
    if job["state"] not in FINAL_STATES:
        return "not yet"
    if job["signal"] is not None:
        return f"signal {output.signal_name(job['signal'])}"
    return "unknown" if job["exit_code"] is None else f"code {job['exit_code']}"


def _times(job: Job) -> list[tuple[str, str]]:
    from iodaemon.units import format_duration

    for_io, by_person = map(format_duration, (job["suspended_io_s"], job["suspended_user_s"]))
    return [
        ("Ran", format_duration(job["run_s"])),
        ("Suspended", f"{for_io} for I/O, {by_person} by a person"),
    ]


def _phase(job: Job) -> list[tuple[str, str]]:
    phase = job.get("phase")
    if not phase:
        return []
    from iodaemon.units import format_bytes

    granted_s, expect_bytes = phase["granted_s"], phase["expect_bytes"]
    word = "waits for its turn" if granted_s is None else "has its turn"
    since = output.local_time(phase["asked_s"] if granted_s is None else granted_s)
    told = "" if expect_bytes is None else f", {format_bytes(expect_bytes)} expected"
    return [("I/O phase", f"{word} since {since}{told}")]


def _io(job: Job) -> list[tuple[str, str]]:
    from iodaemon.units import format_bytes

    read, written = (
        "unknown" if total is None else format_bytes(total)
        for total in (job["read_bytes"], job["written_bytes"])
    )
    bound = "at least " if job.get("io_at_least") else ""
    pairs = [("I/O so far", f"{bound}{read} read, {written} written")]
    if bandwidth := job["bandwidth"]:
        now_read, now_written = (
            "unknown" if rate is None else output.rate(rate)
            for rate in (bandwidth["read_bytes_per_s"], bandwidth["written_bytes_per_s"])
        )
        pairs.append(("I/O now", f"{now_read} read, {now_written} written"))
    if predicted := job["predicted"]:
        confidence = predicted["confidence"]
        sure = "" if confidence is None else f", confidence {confidence:.2g}"
        source = f" ({predicted['source']}{sure})" if predicted["source"] else ""
        rate = output.rate(predicted["rate_bytes_per_s"])
        known = predicted["source"] != "unknown"
        pairs.append(("I/O next", f"{rate}{source}" if known else "unknown"))
    pairs.append(("I/O expected", expected_words(job)))
    return pairs
