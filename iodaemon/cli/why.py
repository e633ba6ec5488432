"""``iod why``: where a job is, why, since when, and what would let it go on."""

from __future__ import annotations

import time
from typing import Final

from iodaemon.api.model import LimitState, TrialStep, WhyAnswer
from iodaemon.cli import output
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.each import tell_each
from iodaemon.cli.option import OFF, AsJson, InState, Jobs, Named, OfUser
from iodaemon.cli.scratch_words import kept_until_pairs
from iodaemon.cli.selector import parse_selectors
from iodaemon.cli.telling import event_cells, evidence_lines, trial_words
from iodaemon.text import printable

app = App()

LAST_STEPS: Final = 8
"""Of a job's life, shown; a regulated job takes a step every few seconds."""


@verb(app, "why")
def why(
    ctx: Context,
    jobs: Jobs = None,
    name: Named = None,
    user: OfUser = None,
    state: InState = None,
    as_json: AsJson = OFF,
) -> int:
    """Tell why a job is where it is, and what would let it go on.

    JOB is 7, 3-9, 1,4, last (your newest) or all. -J, -u and -s select among them, or without JOB
    among all of yours.
    """
    return tell_each(
        ctx.obj,
        parse_selectors(jobs or [], name=name, user=user, states=state),
        lambda client, job_id: client.why(job_id),
        lambda answer: why_lines(answer, time.time()),
        as_json=as_json,
    )


def why_lines(answer: WhyAnswer, now_s: float) -> list[str]:
    """The explanation, the table where there is one, and the last steps."""
    job = answer["job"]
    head = f"Job {job['id']}  {printable(output.job_name(job))} ({job['user']})"
    pairs = [("State", f"{job['state_shown']}, {_since(answer['since_s'], now_s)}")]
    pairs.append(("Why", answer["is_so"]))
    if answer["until"]:
        pairs.append(("Until", answer["until"]))
    pairs += [("Limit", limit_words(limit)) for limit in answer.get("limits", [])]
    pairs += [("Tried", _trial_words(trial)) for trial in answer.get("trials", [])]
    pairs += kept_until_pairs(job)
    lines = [head, *output.aligned(pairs)]
    if answer["evidence"] is not None:
        table = evidence_lines(answer["evidence"], width=output.terminal_columns())
        lines += ["", *table]
    return [*lines, "", *_life_lines(answer)]


def limit_words(limit: LimitState) -> str:
    """How many should contend for a resource, how many do, and why: in one line."""
    most = "no limit" if limit["limit"] is None else f"{limit['limit']} at once"
    why = f": {limit['text']}" if limit["text"] else ""
    return printable(f"{limit['resource']}: {most}, {limit['contending']} now{why}")


def _trial_words(trial: TrialStep) -> str:
    return printable(f"{output.local_time(trial['at_s'])}  {trial_words(trial)}: {trial['text']}")


def _since(since_s: float, now_s: float) -> str:
    from iodaemon.units import format_duration

    lasted = format_duration(float(round(max(0.0, now_s - since_s))))
    return f"since {output.local_time(since_s)}, for {lasted}"


def _life_lines(answer: WhyAnswer) -> list[str]:
    steps = answer["history"]
    lines = []
    if len(steps) > LAST_STEPS:
        lines.append(f"({len(steps) - LAST_STEPS} earlier steps)")
    for step in steps[-LAST_STEPS:]:
        _, what, reason = event_cells(step)
        at = output.local_time(float(str(step["at_s"])))
        lines.append(printable(f"{at}  {what}" + (f": {reason}" if reason else "")))
    return lines
