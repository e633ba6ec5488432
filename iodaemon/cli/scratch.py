"""``iod scratch``: what ended jobs have left in their space of storage tiers."""

from __future__ import annotations

from collections.abc import Callable

from iodaemon.api.model import Job, JobAnswer
from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.control import report
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.option import OFF, AsJson, InState, Jobs, Named, OfUser
from iodaemon.cli.selector import Selection, parse_selectors
from iodaemon.cli.session import Session
from iodaemon.errors import RequestError
from iodaemon.text import printable

app = App()
scratch = App("What ended jobs have left on storage tiers: remove.")
app.verbs["scratch"] = scratch


@verb(scratch, "remove")
def remove(
    ctx: Context,
    jobs: Jobs = None,
    name: Named = None,
    user: OfUser = None,
    state: InState = None,
    as_json: AsJson = OFF,
) -> int:
    """Remove what was kept of jobs that have ended.

    JOB is 7, 3-9, 1,4, last (your newest) or all; -J, -u and -s select among them, or without JOB
    among all of yours. What could not be copied out of a job's space is kept; this deletes it for
    good.
    """
    selection = parse_selectors(jobs or [], name=name, user=user, states=state)
    return _act(ctx.obj, "scratch/remove", selection, _tell_removed, as_json=as_json)


def _act(
    session: Session,
    action: str,
    selection: Selection,
    tell: Callable[[JobAnswer, bool], int],
    *,
    as_json: bool,
) -> int:
    outcomes = session.client().act(action, selection.selector)
    if as_json:
        answers = [outcome for _, outcome in outcomes if not isinstance(outcome, RequestError)]
        output.print_json(answers)
    elif not outcomes:
        output.say("nothing is kept of these jobs")
    is_one = selection.is_plain and len(outcomes) == 1
    return report(outcomes, lambda answer: tell(answer, as_json), is_one=is_one, as_json=False)


def _tell_removed(answer: JobAnswer, as_json: bool) -> int:  # noqa: FBT001
    job = answer["job"]
    if answer.get("removed"):
        _tell(job, "removed", as_json=as_json)
        return ExitCode.OK
    kept = job["scratch"]["kept"] if job["scratch"] else None
    why = f": {printable(kept['text'])}" if kept else ""
    output.say(f"job {job['id']}: not removed yet{why}")
    return ExitCode.REFUSED


def _tell(job: Job, text: str, *, as_json: bool) -> None:
    if not as_json:
        print(f"job {job['id']}: {text}", flush=True)
