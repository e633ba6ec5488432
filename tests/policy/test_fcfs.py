"""The plain rules: first come first served, the socket with the least I/O, no regulation."""

import msgspec
import pytest
from builders import MB
from hypothesis import given
from hypothesis import strategies as st
from scene import Scene, platform, queued

from iodaemon.core.decision import AdmissionPlan, Placed, RegulationPlan
from iodaemon.core.job import Reason
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none

# -- first come, first served ----------------------------------------------------------------------


def decide(scene):
    plan, memory = fcfs.Rule().decide(scene.view(), None)
    assert memory is None
    return plan


def places(plan):
    return [(placed.job_id, placed.partition) for placed in plan.starts]


def test_nothing_overtakes_a_head_that_does_not_fit_and_it_alone_has_a_reason():
    scene = Scene(platform(2, 2)).live(1, 0).live(2, 1).queue(queued(3, cpus=2), queued(4))
    why = Reason(code="Slots", text="needs 2 free CPUs on one socket; most free now: 1")
    assert AdmissionPlan(starts=(), reasons={3: why}) == decide(scene)

    scene = Scene(platform(1)).queue(queued(1), queued(2), queued(3))
    why = Reason(code="Slots", text="needs 1 free CPU; most free now: 0")
    assert AdmissionPlan(starts=(Placed(job_id=1, partition=0),), reasons={2: why}) == decide(scene)

    assert AdmissionPlan() == decide(Scene(platform(2)))


@given(
    st.lists(st.integers(1, 4), max_size=20), st.lists(st.integers(1, 4), min_size=1, max_size=4)
)
def test_starts_are_a_prefix_of_the_queue_that_fits(sizes, sockets):
    feasible = [size for size in sizes if size <= max(sockets)]
    jobs = [queued(number, cpus=size) for number, size in enumerate(feasible, start=1)]

    plan = decide(Scene(platform(*sockets)).queue(*jobs[::-1]))

    taken = dict.fromkeys(range(len(sockets)), 0)
    for job_id, partition in places(plan):
        taken[partition] += feasible[job_id - 1]
    assert all(taken[number] <= size for number, size in enumerate(sockets))
    assert list(range(1, len(plan.starts) + 1)) == [placed.job_id for placed in plan.starts]
    assert (len(plan.starts) < len(jobs)) == (len(plan.reasons) == 1)


# -- where a job goes ------------------------------------------------------------------------------


def near(machine, number):
    """With a disk near this socket."""
    parts = list(machine.partitions)
    parts[number] = msgspec.structs.replace(parts[number], near_devices=("sda",))
    return msgspec.structs.replace(machine, partitions=tuple(parts))


def choose(scene, job):
    return least_io.Rule().choose(scene.queue(job).view(), job)


HEAVY = {"rate": 10.0 * MB}
LIVE = [
    # (socket of each job that lives, and what is known of it), who asks, and the socket
    ([(0, {"moved": 9 * MB}), (1, {"moved": 5 * MB}), (1, {})], {}, 1),
    ([(0, {"moved": None, "io_rate_bytes_per_s": 50e6}), (1, {"moved": 40 * MB})], {}, 1),
    ([(0, {"held": True, "last": 30 * MB, "run_s": 1.0}), (1, {"moved": 20 * MB})], {}, 1),
    ([(0, {"moved": 0, "io_rate_bytes_per_s": 50e6}), (1, {"moved": 20 * MB})], {}, 1),
    ([(0, {})], {}, 1),  # equal I/O goes by the most free slots
    ([], {}, 0),
    ([(1, {"cpus": 3}), (0, {"moved": 90 * MB})], {"cpus": 2}, 0),
]


@pytest.mark.parametrize(("live", "asks", "socket"), LIVE)
def test_the_socket_with_the_least_expected_io_is_chosen(live, asks, socket):
    scene = Scene(platform(4, 4))
    for number, (partition, known) in enumerate(live, start=1):
        scene.live(number, partition, **known)

    assert socket == choose(scene, queued(9, **asks))


def test_a_heavy_job_prefers_the_socket_near_its_device_among_equals():
    least = Scene(near(platform(4, 4), 1)).live(1, 1, moved=1 * MB)
    third = Scene(near(platform(4, 4, 4), 2)).live(1, 0, moved=20 * MB)

    assert 1 == choose(Scene(near(platform(4, 2), 1)), queued(9, **HEAVY))
    assert 0 == choose(Scene(near(platform(4, 4), 1)), queued(9)), "nothing is known of its I/O"
    assert 0 == choose(least, queued(9, **HEAVY)), "less I/O outranks a near device"
    assert 1 == choose(third, queued(9, **HEAVY)), "below the mean of the others it is not heavy"


# -- no regulation ---------------------------------------------------------------------------------


def test_nothing_is_suspended_and_what_another_rule_left_suspended_runs_again():
    scene = Scene(platform(4)).live(1, 0, held=True).live(2, 0, moved=900 * MB)
    plan, memory = none.Rule().decide(scene.live(3, 0, held=True).view(), None)

    assert (RegulationPlan(resumes=(1, 3)), None) == (plan, memory)
