"""``iod scratch``: what ended jobs have left in their space of storage tiers."""

from __future__ import annotations

import typer

from iodaemon.api.model import FINAL_STATES, Job
from iodaemon.cli import output
from iodaemon.cli.command import new_app, verb
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.option import OFF, AsJson, Jobs
from iodaemon.cli.selector import find_ids, parse_selectors
from iodaemon.cli.session import Session

app = new_app()
scratch = new_app(help="What ended jobs have left in their space of storage tiers: remove.")
app.add_typer(scratch, name="scratch")


@verb(scratch, "remove")
def remove(
    ctx: typer.Context,
    jobs: Jobs = None,
    as_json: AsJson = OFF,
) -> int:
    """Remove what was kept of jobs that have ended.

    JOB is 7, 3-9, 1,4, last or all. What could not be copied out is kept until then; it is gone
    afterwards.
    """
    from iodaemon.api.scratch import remove_scratch

    session: Session = ctx.obj
    client = session.client()
    selection = parse_selectors(jobs or [])
    found = find_ids(client, selection, finished=True)
    answers = [
        remove_scratch(client, job_id)
        for job_id in found
        if job_id in selection.ids or _has_kept(client.job(job_id))
    ]
    if as_json:
        output.print_json(answers)
    elif not answers:
        output.say("nothing is kept of these jobs")
    for answer in answers:
        if not answer["removed"]:
            job = answer["job"]
            output.say(f"job {job['id']}: not removed yet{output.reason_words(job)}")
    return 0 if all(answer["removed"] for answer in answers) else ExitCode.REFUSED


def _has_kept(job: Job) -> bool:
    """Whether there is anything to remove; ``all``, ``last`` and ranges pass over the others."""
    scratch = job.get("scratch")
    return bool(scratch and scratch["shares"]) and job["state"] in FINAL_STATES
