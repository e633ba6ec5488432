"""A job whose own output takes more room than it may is ended, and nobody else."""

import msgspec
import pytest
from builders import (
    Rig,
    cancel,
    counters,
    exited,
    hold,
    job,
    platform,
    sampled,
    submitted,
    suspended,
    timer,
)
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.decision import Kill, Stop
from iodaemon.core.job import Exit, JobState
from iodaemon.core.state import State

GIB = 1 << 30


def capped(most_bytes, *, slots=8):
    one = Rig(State(platform(slots)))
    one.step(changed(0.0, most_bytes))
    return one


def changed(at_s, most_bytes):
    return ev.Reconfigured(at_s=at_s, by="ann", changes=("x",), output_max_bytes=most_bytes)


def took(at_s, **sizes):
    """A sample in which the jobs' output takes so many bytes; None: there is none."""
    jobs = {
        int(name.removeprefix("of_")): msgspec.structs.replace(counters(), output_bytes=size)
        for name, size in sizes.items()
    }
    return sampled(at_s, jobs)


def test_a_job_that_is_being_ended_is_killed_sooner_when_its_output_grows_too_large():
    one = capped(10 * GIB)
    one.run(job(1))
    one.step(cancel(1.0, grace_s=500.0))
    one.backend.take()

    assert 2.0 + WALLTIME_GRACE_S == one.step(took(2.0, of_1=11 * GIB)).wake_at_s
    assert 2.0 + WALLTIME_GRACE_S == one.step(took(5.0, of_1=12 * GIB)).wake_at_s
    one.step(timer(2.0 + WALLTIME_GRACE_S))
    assert [Kill(job_id=1)] == one.backend.take()
    assert one.step(took(30.0, of_1=13 * GIB)).wake_at_s is None


def test_a_job_whose_output_is_too_large_is_stopped_then_killed_with_the_reason():
    one = capped(10 * GIB)
    one.run(job(1), job(2))

    plan = one.step(took(1.0, of_1=10 * GIB + 4096, of_2=10 * GIB))

    assert [Stop(job_id=1)] == one.backend.take()
    assert 1.0 + WALLTIME_GRACE_S == plan.wake_at_s
    one.step(timer(plan.wake_at_s))
    assert [Kill(job_id=1)] == one.backend.take()
    one.step(exited(11.5, end=Exit(signal=9)))
    assert JobState.FAILED is one.job(1).state
    assert "OutputMax" == one.job(1).reason.code
    assert (
        "its output took 10 GiB, more than the 10 GiB of output_max; "
        "'iod submit -o FILE' writes it elsewhere"
    ) == one.job(1).reason.text
    assert JobState.RUNNING is one.job(2).state


def test_it_is_asked_to_end_once():
    one = capped(100)
    one.run(job(1))
    one.step(took(1.0, of_1=200))
    one.backend.take()

    one.step(took(2.0, of_1=400))

    assert [] == one.backend.take()
    assert "200 B" in one.job(1).reason.text


def test_one_that_ends_well_when_asked_has_failed_all_the_same():
    one = capped(100)
    one.run(job(1))
    one.step(took(1.0, of_1=200))

    one.step(exited(2.0, end=Exit(code=0)))

    assert (JobState.FAILED, "OutputMax") == (one.job(1).state, one.job(1).reason.code)


def test_one_that_stands_still_is_ended_too():
    one = capped(100)
    one.run(job(1))
    one.step(hold(0.5))
    one.step(suspended(0.6))
    one.backend.take()

    one.step(took(1.0, of_1=200))

    assert [Stop(job_id=1)] == one.backend.take()


def test_a_cancel_comes_before_it():
    one = capped(100)
    one.run(job(1))
    one.step(cancel(0.5), took(1.0, of_1=200))
    one.step(exited(2.0, end=Exit(signal=15)))

    assert JobState.CANCELLED is one.job(1).state


@pytest.mark.parametrize("most", [None, 200])
def test_without_a_cap_or_below_it_nobody_is_ended(most):
    one = capped(most)
    one.run(job(1), job(2))

    one.step(took(1.0, of_1=200, of_2=None))

    assert [] == one.backend.take()


def test_a_sample_that_began_before_the_job_says_nothing_of_it():
    """It is of the attempt before."""
    one = capped(100)
    one.step(submitted(job(1)))
    one.backend.take()
    one.step(ev.JobStarted(at_s=5.0, job_id=1, attempt=1))
    early = took(4.0, of_1=200)

    one.step(msgspec.structs.replace(early, at_s=6.0))

    assert [] == one.backend.take()


def test_another_cap_counts_with_the_next_sample():
    one = capped(None)
    one.run(job(1))
    one.step(took(1.0, of_1=200))

    one.step(changed(1.5, 100))
    assert [] == one.backend.take()
    one.step(took(2.0, of_1=200))

    assert [Stop(job_id=1)] == one.backend.take()


def test_a_reload_that_does_not_speak_of_it_leaves_it_as_it_is():
    one = capped(100)
    one.run(job(1))
    one.step(ev.Reconfigured(at_s=0.5, by="ann", changes=("x",)))

    one.step(took(1.0, of_1=200))

    assert [Stop(job_id=1)] == one.backend.take()


@given(
    most=st.none() | st.integers(1, 50),
    sizes=st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=8),
)
def test_exactly_those_above_it_are_ended(most, sizes):
    one = capped(most)
    one.run(*(job(number) for number in range(1, len(sizes) + 1)))

    one.step(took(1.0, **{f"of_{number}": size for number, size in enumerate(sizes, start=1)}))

    above = [n for n, s in enumerate(sizes, start=1) if None not in (s, most) and s > most]
    assert [Stop(job_id=number) for number in above] == one.backend.take()
