"""Builders for admission rules: jobs that wait and run, and runs whose promises are watched."""

import msgspec
from hypothesis import strategies as st
from scene import NOW_S

from iodaemon.core.job import Job, JobId, JobSpec, JobState
from iodaemon.core.rule import Rules
from iodaemon.model.node import Compute, LinkSpec, Model, Profile, Transfer
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation.none import Rule as Unregulated
from iodaemon.simulator.run import simulate


def queued(job_id, *, at_s=0.0, cpus=1, rate=None, walltime_s=None, **spec):
    """A job that waits; its declared rate is its intensity unless it declares a share as well."""
    made = JobSpec(
        command=("true",), cpus=cpus, walltime_s=walltime_s, io_rate_bytes_per_s=rate, **spec
    )
    return Job(
        id=JobId(job_id),
        spec=made,
        uid=1000,
        state=JobState.PENDING,
        since_s=at_s,
        submitted_s=at_s,
    )


def running(scene, job_id, *, cpus=1, rate=None, left_s=None, socket=0, name=""):
    """A job that has run since 0, and has so much of its walltime left."""
    return scene.live(
        job_id,
        socket,
        cpus=cpus,
        moved=None,
        name=name,
        io_rate_bytes_per_s=rate,
        walltime_s=None if left_s is None else NOW_S + left_s,
    )


NO_DISK = Model(disk=None)
WIDE = Model(links=(LinkSpec(id="pfs", capacity_bytes_per_s=1e12),), disk=None)
"""Storage on which nobody waits."""
WORKLOADS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.5, 1.0, 7.0]),  # after the one before
        st.integers(1, 6),  # CPUs
        st.sampled_from([0.0, 1.0, 2.0, 3.5, 10.0, 40.0]),  # runs for
        st.sampled_from([None, 0.5, 1.0, 1.0, 2.0, 4.0]),  # its walltime, in times of that
        st.sampled_from([None, 0.0, 10e6, 40e6, 150e6]),  # I/O
    ),
    min_size=1,
    max_size=14,
)
SOCKETS = st.lists(st.integers(1, 6), min_size=1, max_size=3)


def submissions(workload, largest):
    """Jobs that compute; those too large for every socket are made smaller."""
    at_s, jobs = 0.0, []
    for gap_s, cpus, runs_s, factor, rate in workload:
        at_s += gap_s
        spec = JobSpec(
            command=("simulated",),
            cpus=min(cpus, largest),
            walltime_s=None if factor is None else max(0.25, runs_s * factor),
            io_rate_bytes_per_s=rate,
        )
        jobs.append((at_s, spec, Profile(steps=(Compute(runs_s),))))
    return jobs


def writers(workload, largest):
    """The same jobs, doing the I/O that they tell of; each third tells nothing."""
    jobs = []
    for number, (at_s, spec, profile) in enumerate(submissions(workload, largest), start=1):
        rate, seconds = spec.io_rate_bytes_per_s, profile.steps[0].seconds
        steps = [Compute(seconds / 10)]
        if rate and seconds:
            steps = [Transfer(rate * seconds / 10, "pfs", cap_bytes_per_s=rate)]
        if number % 3 == 0:
            spec = msgspec.structs.replace(spec, io_rate_bytes_per_s=None)
        jobs.append((at_s, spec, Profile(steps=tuple(steps), repeat=10)))
    return jobs


class Promises:
    """Watches a run: once promised, a head's time only comes nearer, and is kept."""

    def __init__(self):
        self.first_s = {}
        self.latest_s = {}
        self.starts = []

    def __call__(self, state, plan):
        state.check()
        for job_id, promised_s in state.reservations.items():
            assert promised_s <= self.latest_s.get(job_id, promised_s)
            self.first_s.setdefault(job_id, promised_s)
            self.latest_s[job_id] = promised_s
        for step in plan.transitions:
            if step.after is JobState.STARTING:
                self.starts.append(step.job_id)
                assert step.at_s <= self.latest_s.get(step.job_id, step.at_s)


def run(admission, machine, jobs, on_step=None, *, model=NO_DISK, sampling=False, tiers=()):
    rules = Rules(name="t", admission=admission, placement=LeastIo(), regulation=Unregulated())
    return simulate(
        machine, rules, jobs, model=model, sampling=sampling, on_step=on_step, tiers=tiers
    )
