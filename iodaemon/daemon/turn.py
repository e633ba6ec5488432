"""What one turn of the driver makes of its events and its plan: order, notes, log lines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from iodaemon.core import event as ev
from iodaemon.core.decision import Free, Plan, TrialStep
from iodaemon.core.job import Job, JobId
from iodaemon.daemon.notebook import Note, note_of, note_of_clearing
from iodaemon.text import quoted

log = logging.getLogger(__name__)


def in_order(events: Sequence[ev.Event]) -> list[ev.Event]:
    """By time, but never an effect before its cause.

    A job's end carries the time at which it ended, which may be before the time at which it was
    learned that it runs; of one job the events stay as they came.
    """
    reached_s: dict[JobId, float] = {}
    keys: list[float] = []
    for event in events:
        job_id = event.job.id if isinstance(event, ev.JobSubmitted) else _job_of(event)
        at_s = event.at_s
        if job_id is not None:
            at_s = reached_s[job_id] = max(at_s, reached_s.get(job_id, at_s))
        keys.append(at_s)
    return [events[place] for place in sorted(range(len(events)), key=keys.__getitem__)]


def notes_of(plan: Plan, jobs: Mapping[JobId, Job], now_s: float) -> tuple[Note, ...]:
    """What regulation saw, tried, and would have done in this turn; whose kept results go.

    Args:
        plan: of the turn.
        jobs: as they are after it.
        now_s: when it was.
    """
    seen = [note_of(evidence) for evidence in plan.evidence]
    frees = (each for each in plan.decisions if isinstance(each, Free) and each.is_wanted)
    gone = [note_of_clearing(jobs[free.job_id], now_s) for free in frees]
    tried = [note_of(trial) for trial in plan.trials]
    return (*seen, *(note_of(shadow) for shadow in plan.shadow), *tried, *gone)


def _job_of(event: ev.Event) -> JobId | None:
    job_id: JobId | None = getattr(event, "job_id", None)
    return job_id


def log_plan(plan: Plan) -> None:
    """One line an event or decision; many new jobs at once are one line."""
    born = [step.job_id for step in plan.transitions if step.before is None]
    if born:
        log.info("event=submitted jobs=%d first=%d last=%d", len(born), born[0], born[-1])
    for step in plan.transitions:
        if step.before is not None:
            reason = (
                ""
                if step.reason is None
                else f" reason={step.reason.code} text={quoted(step.reason.text)}"
            )
            log.info(
                "event=moved job=%d from=%s to=%s%s", step.job_id, step.before, step.after, reason
            )
    for trial in plan.trials:
        log.info("event=trial %s", _trial_words(trial))
    for fault in plan.faults:
        log.error("event=rule_set_aside text=%s", quoted(fault.text))
        if fault.trace:
            log.error("event=rule_traceback\n%s", fault.trace.rstrip())
    for decision in plan.decisions:
        log.info("decision=%s job=%d", type(decision).__name__.lower(), decision.job_id)


def _trial_words(trial: TrialStep) -> str:
    gain = "unknown" if trial.gain is None else f"{trial.gain:.3g}"
    return (
        f"resource={quoted(trial.resource)} verdict={trial.verdict} before={trial.before} "
        f"tried={trial.tried} gain={gain} shadow={'yes' if trial.is_shadow else 'no'} "
        f"text={quoted(trial.text)}"
    )
