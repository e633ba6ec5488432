"""``iod scratch``: what ended jobs have left in their space of storage tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from iodaemon.api.model import FINAL_STATES, Job
from iodaemon.cli import output
from iodaemon.cli.command import new_app, verb
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.option import OFF, AsJson, Jobs
from iodaemon.cli.selector import find_ids, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.text import printable

if TYPE_CHECKING:
    from iodaemon.api.client import Client

app = new_app()
scratch = new_app(help="What ended jobs have left on storage tiers: copy, remove.")
app.add_typer(scratch, name="scratch")


@verb(scratch, "copy")
def copy(
    ctx: typer.Context,
    jobs: Jobs = None,
    as_json: AsJson = OFF,
) -> int:
    """Copy out what was kept of jobs that have ended, then remove it.

    JOB is 7, 3-9, 1,4, last or all. It goes to the --output of each job; what an earlier try has
    copied is not copied again.
    """
    from iodaemon.api.scratch import copy_scratch

    client, ids = _find(ctx, jobs)
    answers = [copy_scratch(client, job_id) for job_id in ids]
    if as_json:
        output.print_json(answers)
    elif not answers:
        output.say("nothing is kept of these jobs")
    is_refused = False
    for answer in answers:
        job, scratch_of = answer["job"], answer["job"]["scratch"]
        kept = scratch_of["kept"] if scratch_of else None
        if answer["copied"]:
            _tell(job, f"copied to {_output_of(job)}", as_json=as_json)
            continue
        if kept and kept["code"] != "ScratchCopying":
            is_refused = True
            output.say(f"job {job['id']}: not copied: {printable(kept['text'])}")
        else:
            output.say(f"job {job['id']}: still being copied; 'iod why {job['id']}' tells")
    return ExitCode.REFUSED if is_refused else 0


@verb(scratch, "remove")
def remove(
    ctx: typer.Context,
    jobs: Jobs = None,
    as_json: AsJson = OFF,
) -> int:
    """Remove what was kept of jobs that have ended.

    JOB is 7, 3-9, 1,4, last or all. What could not be copied out of a job's space is
    kept; this deletes it for good.
    """
    from iodaemon.api.scratch import remove_scratch

    client, ids = _find(ctx, jobs)
    answers = [remove_scratch(client, job_id) for job_id in ids]
    if as_json:
        output.print_json(answers)
    elif not answers:
        output.say("nothing is kept of these jobs")
    for answer in answers:
        job = answer["job"]
        if answer["removed"]:
            _tell(job, "removed", as_json=as_json)
        else:
            output.say(f"job {job['id']}: not removed yet{output.reason_words(job)}")
    return 0 if all(answer["removed"] for answer in answers) else ExitCode.REFUSED


def _tell(job: Job, text: str, *, as_json: bool) -> None:
    if not as_json:
        print(f"job {job['id']}: {text}", flush=True)


def _output_of(job: Job) -> str:
    scratch_of = job["scratch"]
    return printable(scratch_of["output_path"] or "") if scratch_of else "its output directory"


def _find(ctx: typer.Context, words: list[str] | None) -> tuple[Client, list[int]]:
    """The jobs that are named, and those of ``all``, ``last`` and ranges that have anything."""
    session: Session = ctx.obj
    client = session.client()
    selection = parse_selectors(words or [])
    found = find_ids(client, selection, finished=True)
    if selection.is_plain:
        return client, found
    jobs = client.jobs(select=selection.text, all_jobs=True)["jobs"]
    kept = {job["id"] for job in jobs if _has_kept(job)}
    return client, [job_id for job_id in found if job_id in selection.ids or job_id in kept]


def _has_kept(job: Job) -> bool:
    scratch = job.get("scratch")
    return bool(scratch and scratch["shares"]) and job["state"] in FINAL_STATES
