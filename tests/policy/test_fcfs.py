"""First come, first served."""

from hypothesis import given
from hypothesis import strategies as st
from queueing import queued
from scene import Scene, platform

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Reason
from iodaemon.policy.admission.fcfs import Rule


def decide(scene):
    plan, memory = Rule().decide(scene.view(), None)
    assert memory is None
    return plan


def test_jobs_start_in_the_order_in_which_they_were_submitted():
    scene = Scene(platform(4)).queue(queued(3), queued(1), queued(2))

    plan = decide(scene)

    assert [placed.job_id for placed in plan.starts] == [1, 2, 3]


def test_nothing_overtakes_a_head_that_does_not_fit():
    scene = Scene(platform(2, 2)).live(1, 0).live(2, 1).queue(queued(3, cpus=2), queued(4))

    plan = decide(scene)

    why = Reason(code="Slots", text="needs 2 free CPUs on one socket; most free now: 1")
    assert AdmissionPlan(starts=(), reasons={3: why}) == plan


def test_only_the_first_job_that_does_not_fit_gets_a_reason():
    scene = Scene(platform(1)).queue(queued(1), queued(2), queued(3))

    plan = decide(scene)

    why = Reason(code="Slots", text="needs 1 free CPU; most free now: 0")
    assert AdmissionPlan(starts=(Placed(job_id=1, partition=0),), reasons={2: why}) == plan


def test_a_start_takes_its_slots_from_those_that_follow():
    scene = Scene(platform(2, 2)).queue(queued(1, cpus=2), queued(2, cpus=2), queued(3))

    plan = decide(scene)

    assert [(placed.job_id, placed.partition) for placed in plan.starts] == [(1, 0), (2, 1)]


def test_the_io_of_a_start_counts_for_those_that_follow():
    heavy, light = queued(1, rate=50e6), queued(2, rate=1e6)
    scene = Scene(platform(2, 2)).queue(heavy, light, queued(3, rate=2e6))

    plan = decide(scene)

    assert [placed.partition for placed in plan.starts] == [0, 1, 1]


def test_an_empty_queue_needs_no_plan():
    plan = decide(Scene(platform(2)))

    assert AdmissionPlan() == plan


@given(
    st.lists(st.integers(1, 4), max_size=20), st.lists(st.integers(1, 4), min_size=1, max_size=4)
)
def test_starts_are_a_prefix_of_the_queue_that_fits(sizes, sockets):
    feasible = [size for size in sizes if size <= max(sockets)]
    jobs = [queued(number, cpus=size) for number, size in enumerate(feasible, start=1)]

    plan = decide(Scene(platform(*sockets)).queue(*jobs))

    taken = dict.fromkeys(range(len(sockets)), 0)
    for placed in plan.starts:
        taken[placed.partition] += feasible[placed.job_id - 1]
    assert all(taken[number] <= size for number, size in enumerate(sockets))
    assert list(range(1, len(plan.starts) + 1)) == [placed.job_id for placed in plan.starts]
    assert (len(plan.starts) < len(jobs)) == (len(plan.reasons) == 1)
