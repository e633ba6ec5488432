"""Packs over the queue: what is in them, where they run, and what waits for what."""

import msgspec
import pytest
from builders import MB, exited, job, platform, started, submitted, timer
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Start
from iodaemon.core.job import JobId, JobSpec, JobState
from iodaemon.core.platform import Platform
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.model.node import Compute, Profile
from iodaemon.policy.admission.pack import Rule
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation.none import Rule as Unregulated
from iodaemon.simulator.run import simulate

HOUR_S = 3600.0


class Desk:
    """A controller with rule pack; jobs start and end as the test says."""

    def __init__(self, machine: Platform, **parameters):
        self.state = State(machine)
        self.rules = rules_of(**parameters)
        self.controller = Controller(self.state, self.rules)
        self.now_s = 0.0

    def step(self, *events):
        plan = self.controller.step(events)
        self.state.check()
        starts = [d for d in plan.decisions if isinstance(d, Start)]
        if starts:
            self.controller.step([started(self.now_s, d.job_id, d.attempt) for d in starts])
        return {d.job_id: d.partition for d in starts}

    def submit(self, *jobs):
        return self.step(*(submitted(made) for made in jobs))

    def end(self, *job_ids):
        self.now_s += 1.0
        return self.step(*(exited(self.now_s, i) for i in job_ids))

    def reason(self, job_id):
        return self.state.reason(JobId(job_id)).text


def rules_of(**parameters):
    return Rules(
        name="pack", admission=Rule(**parameters), placement=LeastIo(), regulation=Unregulated()
    )


def asked(job_id, *, hours=1.0, rate=None, cpus=1):
    walltime_s = None if hours is None else hours * HOUR_S
    return job(job_id, cpus=cpus, walltime_s=walltime_s, io_rate_bytes_per_s=rate)


def test_what_the_socket_can_carry_runs_together_and_the_rest_after_it():
    desk = Desk(platform(4), bandwidth_bytes_per_s=100.0 * MB)

    assert {1: 0, 2: 0} == desk.submit(*(asked(i, rate=50.0 * MB) for i in (1, 2, 3)))
    assert {} == desk.end(1)
    assert {3: 0} == desk.end(2)


def test_sockets_share_the_storage():
    desk = Desk(platform(4, 4), bandwidth_bytes_per_s=100.0 * MB)

    assert {1: 0, 2: 1} == desk.submit(*(asked(i, rate=50.0 * MB) for i in (1, 2, 3)))
    assert {3: 1} == desk.end(2)


@pytest.mark.parametrize("parameters", [{"stretch_bound": None}, {}])
def test_first_fit_goes_by_cpus_alone(parameters):
    parameters |= {"bandwidth_bytes_per_s": 1.0 * MB} if parameters else {}
    desk = Desk(platform(2), **parameters)

    assert {1: 0, 2: 0} == desk.submit(*(asked(i, rate=50.0 * MB) for i in (1, 2, 3)))


def test_the_capacities_of_the_devices_stand_in_for_the_bandwidth():
    machine = platform(4)
    disk = msgspec.structs.replace(machine.devices[0], capacity_bytes_per_s=60.0 * MB)
    desk = Desk(msgspec.structs.replace(machine, devices=(disk,)))

    assert {1: 0} == desk.submit(*(asked(i, rate=50.0 * MB) for i in (1, 2)))


def test_a_job_that_says_nothing_counts_by_its_cpus():
    desk = Desk(platform(3), bandwidth_bytes_per_s=50.0 * MB)

    jobs = [asked(1, rate=50.0 * MB), asked(2, hours=None), asked(3)]
    assert {1: 0, 2: 0, 3: 0} == desk.submit(*jobs)


def test_long_jobs_go_with_long_ones_and_before_short_ones():
    desk = Desk(platform(2))

    assert {2: 0, 4: 0} == desk.submit(*(asked(i, hours=h) for i, h in enumerate([1, 9, 2, 8], 1)))
    assert {} == desk.end(4)
    assert {1: 0, 3: 0} == desk.end(2)


def test_jobs_that_come_later_wait_for_the_next_packs():
    desk = Desk(platform(2))
    desk.submit(asked(1, cpus=2), asked(2))
    desk.submit(asked(3, hours=50))

    assert desk.reason(3) == (
        "came after the packs were made; the next ones are made when these have begun"
    )
    assert {2: 0} == desk.end(1)
    assert {3: 0} == desk.end(2)


def test_a_free_socket_takes_whoever_comes():
    desk = Desk(platform(2, 2))

    assert {1: 0} == desk.submit(asked(1))
    assert {2: 1} == desk.submit(asked(2))
    assert {} == desk.submit(asked(3))


def test_a_cancelled_job_leaves_its_pack_and_an_empty_pack_is_none():
    desk = Desk(platform(2))
    desk.submit(*(asked(i, cpus=2) for i in (1, 2, 3)), asked(4), asked(5))
    desk.step(*(cancel_of(i) for i in (2, 4)))

    assert {3: 0} == desk.end(1)
    assert {5: 0} == desk.end(3)


def cancel_of(job_id):
    return ev.CancelRequested(at_s=0.0, job_id=JobId(job_id), by="ann", grace_s=1.0)


def test_a_held_job_is_packed_anew_when_it_is_released():
    desk = Desk(platform(2))
    desk.submit(asked(1, cpus=2), asked(2), asked(3))
    desk.step(ev.SuspendRequested(at_s=0.0, job_id=JobId(2), by="ann"))
    assert {3: 0} == desk.end(1)
    desk.step(ev.ResumeRequested(at_s=1.0, job_id=JobId(2), by="ann"))

    assert {2: 0} == desk.end(3)


def test_a_job_larger_than_the_largest_socket_disturbs_nobody():
    desk = Desk(platform(2))

    assert {2: 0} == desk.submit(asked(1, cpus=3), asked(2))
    assert desk.reason(1).startswith("asks for 3 CPUs")


def test_a_job_larger_than_the_smallest_socket_runs_on_a_larger_one():
    desk = Desk(platform(2, 4))

    assert {1: 1, 2: 0} == desk.submit(asked(1, cpus=4), asked(2))


@pytest.mark.parametrize("mapping", ["online", "static"])
def test_the_longest_pack_runs_first(mapping):
    desk = Desk(platform(1, 1), mapping=mapping)

    hours = [4, 3, 2, 2, 1]
    assert {1: 0, 2: 1} == desk.submit(*(asked(i, hours=h) for i, h in enumerate(hours, 1)))


def test_online_the_next_pack_goes_to_the_socket_that_is_free_first():
    desk = Desk(platform(1, 1))
    desk.submit(*(asked(i, hours=h) for i, h in enumerate([9, 8, 7, 6], 1)))

    assert {3: 0} == desk.end(1)
    assert {4: 0} == desk.end(3)


def test_static_a_pack_waits_for_its_own_socket():
    desk = Desk(platform(1, 1), mapping="static")
    desk.submit(*(asked(i, hours=h) for i, h in enumerate([9, 8, 7, 6], 1)))

    assert {4: 0} == desk.end(1)
    assert {} == desk.end(4)
    assert {3: 1} == desk.end(2)


def test_who_waits_is_told_for_which_pack_and_which_job():
    desk = Desk(platform(1, 1))
    desk.submit(*(asked(i, hours=h) for i, h in enumerate([9, 8, 7, 6], 1)))

    assert desk.reason(3) == (
        "is in pack 3, the next to start, when a socket is free: socket 0 with the end of job 1, "
        "socket 1 with the end of job 2"
    )
    assert desk.reason(4) == "is in pack 4, behind pack 3"


def test_who_waits_for_a_certain_socket_is_told_so():
    desk = Desk(platform(1, 1), mapping="static")
    desk.submit(*(asked(i, hours=h) for i, h in enumerate([9, 8, 7, 6, 5], 1)))

    reasons = [desk.reason(i) for i in (3, 4, 5)]
    assert reasons == [
        "is in pack 3 of socket 1, behind what runs there, which ends with job 2",
        "is in pack 4 of socket 0, behind what runs there, which ends with job 1",
        "is in pack 5 of socket 0, behind pack 4",
    ]


def test_of_several_the_one_that_has_most_left_ends_the_pack():
    desk = Desk(platform(2))
    desk.submit(asked(1, hours=2), asked(2, hours=9), asked(3, hours=1))

    assert desk.reason(3).endswith("socket 0 with the end of job 2")


def test_after_a_restart_what_runs_is_the_present_pack():
    desk = Desk(platform(2))
    desk.submit(asked(1), asked(2), asked(3), asked(4))
    desk.controller.use(desk.rules)

    assert {} == desk.end(1)
    assert {3: 0, 4: 0} == desk.end(2)


def test_a_start_that_failed_is_packed_anew():
    desk = Desk(platform(2))
    plan = desk.controller.step([submitted(asked(1)), submitted(asked(2))])
    failed = ev.StartFailed(at_s=1.0, job_id=JobId(1), attempt=1, problem="no room")
    desk.controller.step([failed, started(1.0, 2)])
    assert [1, 2] == [d.job_id for d in plan.decisions]
    desk.now_s = 2.0
    assert {} == desk.end(2)

    assert {1: 0} == desk.step(timer(20.0))


@pytest.mark.parametrize(
    "fields", [{"stretch_bound": 0.0}, {"bandwidth_bytes_per_s": -1.0}, {"most": 0}]
)
def test_parameters_that_mean_nothing_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Rule(**fields)


JOBS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.none() | st.integers(1, 90)),
    min_size=1,
    max_size=14,
)


@given(
    jobs=JOBS,
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    mapping=st.sampled_from(["online", "static"]),
    late=st.integers(0, 13),
)
def test_packs_run_one_after_the_other_and_all_jobs_end(jobs, sizes, mapping, late):
    """All jobs of a socket that start at one time have ended before others start there."""
    largest = max(sizes)
    work = [
        (
            0.0 if i < late else 2.5,
            JobSpec(
                command=("x",),
                cpus=min(cpus, largest),
                walltime_s=float(seconds),
                io_rate_bytes_per_s=None if rate is None else float(rate) * MB,
            ),
            Profile(steps=(Compute(seconds - 0.5),)),
        )
        for i, (cpus, seconds, rate) in enumerate(jobs)
    ]
    rules = rules_of(bandwidth_bytes_per_s=100.0 * MB, mapping=mapping)

    result = simulate(platform(*sizes), rules, work)

    assert all(made.state is JobState.COMPLETED for made in result.jobs)
    for made in result.jobs:
        for other in result.jobs:
            if made.partition == other.partition and made.started_s < other.started_s:
                assert made.ended_s <= other.started_s


@pytest.mark.parametrize(
    ("capacity", "parameters", "warns"),
    [
        (None, {}, True),
        (None, {"bandwidth_bytes_per_s": 500.0 * MB}, False),
        (None, {"stretch_bound": None}, False),
        (500.0 * MB, {}, False),
    ],
)
def test_it_warns_where_no_bandwidth_is_known(capacity, parameters, warns):
    [device] = platform(4).devices
    device = msgspec.structs.replace(device, capacity_bytes_per_s=capacity)
    machine = msgspec.structs.replace(platform(4), devices=(device,))
    cautions = rules_of(**parameters).cautions(machine)

    text = "no capacity is known, so packs are made by CPUs alone; set [admission] bandwidth"
    assert ((f"policy pack: {text}",) if warns else ()) == cautions
