"""How much room a job's own output may take: who takes more is ended."""

from __future__ import annotations

from iodaemon.core.job import SUSPENDED, JobState, Reason
from iodaemon.core.sample import Sample
from iodaemon.core.size import told_bytes
from iodaemon.core.step import Step


def end_overfull(step: Step, sample: Sample, most_bytes: int, grace_s: float) -> None:
    """Ask every started job whose output is larger to end, or end it sooner.

    Args:
        step: takes the decisions.
        sample: what was read. One that began before the job did is of the attempt before.
        most_bytes: more is too much.
        grace_s: until they are killed.
    """
    for job_id, counters in sample.jobs.items():
        taken_bytes = counters.output_bytes
        if taken_bytes is None or taken_bytes <= most_bytes:
            continue
        job = step.state.jobs.get(job_id)
        if job is None or job.started_s is None or job.started_s > sample.at_s:
            continue
        if job.state is JobState.STOPPING:
            step.hasten(job, step.now_s + grace_s)
        elif job.state is JobState.RUNNING or job.state in SUSPENDED:
            taken, most = told_bytes(taken_bytes), told_bytes(most_bytes)
            text = (
                f"its output took {taken}, more than the {most} of output_max; "
                "'iod submit -o FILE' writes it elsewhere"
            )
            step.stop(job, JobState.FAILED, Reason(code="OutputMax", text=text), grace_s)
