"""Builders: a real state as a rule sees it, and runs whose promises are watched."""

import random

import msgspec
from builders import MB, job, platform
from hypothesis import strategies as st

from iodaemon.core.job import JobId, JobSpec, JobState
from iodaemon.core.rule import Rules
from iodaemon.core.sample import JobCounters, Sample
from iodaemon.core.state import State
from iodaemon.core.view import View
from iodaemon.model.node import Compute, LinkSpec, Model, Profile, Transfer
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation.none import Rule as Unregulated
from iodaemon.simulator.run import simulate

__all__ = ["MB", "platform"]

NOW_S = 1000.0


def queued(job_id, *, at_s=0.0, rate=None, **fields):
    """A job that waits; its declared rate is its intensity unless it declares a share as well."""
    return job(job_id, at_s=at_s, submitted_s=at_s, io_rate_bytes_per_s=rate, **fields)


def running(scene, job_id, *, cpus=1, rate=None, left_s=None, socket=0, name=""):
    """A job that has run since 0, and has so much of its walltime left."""
    walltime_s = None if left_s is None else NOW_S + left_s
    spec = {"name": name, "io_rate_bytes_per_s": rate, "walltime_s": walltime_s}
    return scene.live(job_id, socket, cpus=cpus, moved=None, **spec)


def started(plan):
    return [placed.job_id for placed in plan.starts]


class Scene:
    """A state in the making; ``view()`` is what a rule gets to see of it."""

    def __init__(self, machine):
        self.state = State(machine)
        self._free = {p.id: [slot.id for slot in p.slots] for p in machine.partitions}
        self._jobs, self._last, self._moved = [], {}, {}

    def queue(self, *jobs):
        self._jobs += jobs
        return self

    def live(self, job_id, partition, *, moved=0.0, last=None, held=False, cpus=1, **fields):
        """A job that holds slots.

        Args:
            moved: bytes/s in the last slice; None: unknown.
            last: bytes/s in an earlier slice in which it ran throughout.
            held: the regulation suspended it.
            fields: of the job, or of its spec.
        """
        fields.setdefault("state", JobState.SUSPENDED_IO if held else JobState.RUNNING)
        slots = tuple(self._free[partition].pop(0) for _ in range(cpus))
        of = {"partition": partition, "slots": slots, "started_s": 0.0, "cpus": cpus}
        self._jobs.append(job(job_id, **of, **fields))
        self._moved[job_id] = moved
        if last is not None:
            self._last[job_id] = last
        return self

    def view(self):
        """The view after two slices of 1 s: the one of ``last``, then the one of ``moved``."""
        self.state.restore(self._jobs, JobId(1))
        self.state.check()
        totals = dict.fromkeys(self._moved, 0)
        self._sample(0.0, totals)
        for job_id, rate in self._last.items():
            totals[job_id] += int(rate)
        self._sample(1.0, totals, ran=self._last)
        for job_id, rate in self._moved.items():
            totals[job_id] = None if rate is None else totals[job_id] + int(rate)
        ran = [made.id for made in self._jobs if made.state is JobState.RUNNING]
        self._sample(2.0, totals, ran=ran)
        return View(self.state, LeastIo(), NOW_S, random.Random(1))

    def _sample(self, at_s, totals, ran=()):
        counters = {i: JobCounters(read_bytes=total) for i, total in totals.items()}
        self.state.meter.take(Sample(at_s=at_s, jobs=counters), run_s=dict.fromkeys(ran, at_s))


# -- whole runs ------------------------------------------------------------------------------------

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
        self.first_s, self.latest_s, self.starts = {}, {}, []

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
    options = {"model": model, "sampling": sampling, "on_step": on_step, "tiers": tiers}
    return simulate(machine, rules, jobs, **options)
