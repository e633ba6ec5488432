"""Traces of a controller: what happens, what is decided, and what is so afterwards, a line each."""

from builders import MB, counters, sampled

from iodaemon.core.decision import RegulationPlan
from iodaemon.core.job import JobId


def told(decisions):
    """Each decision as "stop 1"."""
    return [f"{type(each).__name__.lower()} {each.job_id}" for each in decisions]


def then(rig, events, *decided, job_id=1, **facts):
    """Take a step, check that exactly this was decided, and check facts; returns the plan.

    Args:
        events: one event, or a tuple of those of one instant.
        decided: as ``told`` has them.
        job_id: whose facts.
        facts: fields of the job, ``code`` and ``why`` of its reason, ``waits``, the code of what it
            waits for, and ``wakes``, when the plan asks to be woken.
    """
    plan = rig.step(*(events if isinstance(events, tuple) else (events,)))
    assert list(decided) == told(rig.backend.take())
    for name, expected in facts.items():
        assert (name, expected) == (name, _fact(rig, plan, job_id, name))
    return plan


def _fact(rig, plan, job_id, name):
    if name == "wakes":
        return plan.wake_at_s
    if name == "waits":
        waits = rig.state.reason(JobId(job_id))
        return waits and waits.code
    job = rig.state.jobs[job_id]
    if name in ("code", "why"):
        return job.reason and (job.reason.code if name == "code" else job.reason.text)
    return getattr(job, name)


def timeslice(rig, at_s, **plan):
    """The event that ends a timeslice in which live jobs moved 1 MB/s and the rule decides this."""
    rig.regulation.plan = RegulationPlan(**plan)
    return sampled(at_s, {made.id: counters(int(at_s * MB)) for made in rig.state.live})


def measured(rig, *jobs):
    """These jobs run, and their I/O is known from 2 s on."""
    rig.run(*jobs)
    then(rig, timeslice(rig, 1.0))
    then(rig, timeslice(rig, 2.0))
    return rig
