"""The rule ``adaptive`` in virtual time: what it finds, what it leaves alone, what it keeps."""

import math
from itertools import pairwise

import msgspec
import pytest
from builders import MB

from iodaemon.core.decision import Resume, Suspend, Throttle
from iodaemon.core.job import JobSpec, JobState
from iodaemon.core.platform import Device, DeviceId
from iodaemon.core.rule import Rules
from iodaemon.model.memory import SimulatedMemory
from iodaemon.model.node import SimulatedDisk, default_platform
from iodaemon.model.profile import Compute, Profile, Read, Touch
from iodaemon.model.scaling import constant_scaling, waning_scaling
from iodaemon.model.spec import Model
from iodaemon.policy.admission import easy, fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import adaptive, dynamic, none
from iodaemon.simulator.run import simulate

ARM = SimulatedDisk(capacity_bytes_per_s=100e6, scaling=waning_scaling(1, 0.7), stream_depth=2)
"""A disk with an arm: two streams get 62 MB/s together, eight 23."""
FLASH = SimulatedDisk(
    capacity_bytes_per_s=800e6,
    stream_cap_bytes_per_s=100e6,
    scaling=constant_scaling,
    stream_depth=2,
)
"""A disk that serves eight streams as fast as one."""
STREAM = Profile(steps=(Read(400 * MB),))
SPIN = Profile(steps=(Compute(20.0),))
SWAPS = Profile(steps=(Compute(1.0), Touch(300 * MB)), repeat=20, resident_bytes=300 * MB)
"""Goes over 300 MB of memory again and again."""


class Watch:
    """Everything that was decided, told and learned."""

    def __init__(self):
        self.decisions, self.trials, self.most = [], [], 0
        self.lessons = {}

    def __call__(self, state, plan):
        self.decisions += plan.decisions
        self.trials += plan.trials
        self.lessons |= dict(state.lessons.items())
        running = sum(job.state is JobState.RUNNING for job in state.live)
        self.most = max(self.most, running)
        state.check()

    def count(self, kind):
        return sum(isinstance(decision, kind) for decision in self.decisions)


def platform(cores):
    disk = Device(id=DeviceId("sim0"), rotational=True)
    return msgspec.structs.replace(default_platform(1, cores), devices=(disk,))


def run(profiles, rule=None, *, disk=ARM, memory=None, cores=8, spec=None, watch=None):
    """All submitted at once; what became of them, and the makespan."""
    rules = Rules(
        name="test",
        admission=easy.Rule(),
        placement=least_io.Rule(),
        regulation=rule or adaptive.Rule(),
    )
    work = [
        (0.0, spec or JobSpec(command=(f"prog{i}", "x")), profile)
        for i, profile in enumerate(profiles)
    ]
    result = simulate(
        platform(cores),
        rules,
        work,
        model=Model(disk=disk, memory=memory),
        seed=1,
        until_s=1e6,
        on_step=watch or Watch(),
    )
    assert all(job.state is JobState.COMPLETED for job in result.jobs)
    return result.jobs, max(job.ended_s for job in result.jobs)


def test_streams_on_an_arm_run_one_after_the_other():
    watch = Watch()

    jobs, makespan_s = run([STREAM] * 8, watch=watch)
    _, free_s = run([STREAM] * 8, none.Rule())

    assert makespan_s < 0.6 * free_s
    assert jobs[0].ended_s < 0.5 * jobs[-1].ended_s
    assert "kept" in {step.verdict for step in watch.trials}
    assert watch.count(Resume) >= watch.count(Suspend) > 0
    assert not any(job.io_hold for job in jobs)


def test_jobs_that_compute_are_never_stopped():
    watch = Watch()
    jobs, _ = run([SPIN, *[STREAM] * 6, SPIN], watch=watch)

    assert [0.0, 0.0] == [jobs[place].suspended_io_s for place in (0, -1)]
    assert watch.count(Suspend) > 0


def test_memory_that_is_read_again_is_proof():
    watch = Watch()
    memory = SimulatedMemory(capacity_bytes=1600 * MB, usable=0.625)

    _, makespan_s = run([SWAPS] * 8, memory=memory, watch=watch)
    _, free_s = run([SWAPS] * 8, none.Rule(), memory=memory)

    assert "memory" in {step.resource for step in watch.trials}
    assert makespan_s < 0.5 * free_s


def test_what_was_learned_of_a_kind_is_told_by_its_lesson():
    watch = Watch()
    run([STREAM] * 8, spec=JobSpec(command=("stream", "a.dat")), watch=watch)

    (lesson,) = [each for each in watch.lessons.values() if each.limit is not None]

    assert ("sim0", True) == (lesson.resource, lesson.limit < lesson.too_many)
    assert lesson.gain > 1.0


def test_who_may_not_be_stopped_is_slowed_down_and_let_go_again():
    watch = Watch()
    run([STREAM] * 8, spec=JobSpec(command=("stream",), no_suspend=True), watch=watch)
    said = [each for each in watch.decisions if isinstance(each, Throttle)]
    last = {each.job_id: each.cap for each in said}
    caps = [each.cap for each in said if each.cap is not None]
    rates = [
        rate
        for cap in caps
        for part in (cap.read_bytes_per_s, cap.written_bytes_per_s)
        for rate in part.values()
    ]

    assert (0, dict.fromkeys(last)) == (watch.count(Suspend), last)
    assert caps
    assert min(rates) >= 1e6


def test_a_cap_is_kept():
    watch = Watch()
    run([STREAM] * 4, adaptive.Rule(io_bound_bytes_per_s=30e6), disk=FLASH, watch=watch)

    assert watch.count(Suspend) >= 3


@pytest.mark.parametrize("no_suspend", [False, True])
def test_a_job_whose_io_is_hidden_is_neither_stopped_nor_slowed_down(no_suspend):
    hidden = Profile(steps=(Read(400 * MB),), hides_io=True)
    watch = Watch()
    spec = JobSpec(command=("stream",), no_suspend=no_suspend)
    jobs, _ = run([hidden, *[STREAM] * 7], spec=spec, watch=watch)

    assert 0.0 == jobs[0].suspended_io_s
    throttled = {each.job_id for each in watch.decisions if isinstance(each, Throttle)}
    assert (no_suspend, False) == (bool(throttled), 1 in throttled)


def test_the_place_of_a_job_that_ends_is_taken_at_once():
    """Each held stream of 1.4 s runs alone, and the next one begins within the same slice."""
    jobs, _ = run([STREAM] * 4 + [Profile(steps=(Read(140 * MB),))] * 4)

    ends = [job.ended_s for job in jobs[4:]]

    assert all(job.suspended_io_s > 0.0 for job in jobs[4:])
    assert all(after_s - before_s < 1.5 for before_s, after_s in pairwise(ends))


# -- beside a bound in MB/s -----------------------------------------------------------------------

PARALLEL = SimulatedDisk(capacity_bytes_per_s=2e9, stream_cap_bytes_per_s=600e6)
"""A fast parallel device: one stream never gets all of it."""


def on_parallel(rule, profiles, *, until_s=1e6):
    """The suspensions, and when all was done."""
    rules = Rules(name="test", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=rule)
    work = [
        (0.1 * number, JobSpec(command=("x",)), profile) for number, profile in enumerate(profiles)
    ]
    model = Model(disk=PARALLEL)
    result = simulate(default_platform(2, 4), rules, work, model=model, until_s=until_s)
    stops = [step for step in result.transitions if step.after is JobState.SUSPENDED_IO]
    return len(stops), max(job.ended_s or math.inf for job in result.jobs)


def test_a_plain_bound_cycles_on_the_same_work_where_evidence_does_not():
    """The figures of docs/design.md; the bound is 80 % of what the device can do."""
    profiles = [Profile(steps=(Read(250 * MB),) * 20)] * 8

    (_, alone_s), (stops, plain_s), judged = (
        on_parallel(rule, profiles)
        for rule in (none.Rule(), dynamic.Rule(io_bound_bytes_per_s=1.6e9), adaptive.Rule())
    )

    assert (20, 28, 13) == (round(alone_s), round(plain_s), stops)
    assert (0, alone_s) == judged


def test_a_bound_that_one_job_alone_exceeds_drives_dynamic_round_and_adaptive_does_not_cycle():
    """The figures of docs/design.md: one stream moves 600 MB/s, the bound is 100."""
    endless = [Profile(steps=(Read(10**6 * MB),))] * 4

    plain, judged = (
        on_parallel(rule, endless, until_s=100.0)[0]
        for rule in (
            dynamic.Rule(io_bound_bytes_per_s=100e6),
            adaptive.Rule(io_bound_bytes_per_s=100e6),
        )
    )

    assert (102, 3) == (plain, judged)
