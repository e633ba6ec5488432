"""A job whose own output takes more room than it may is ended, and nobody else."""

import msgspec
from builders import (
    Rig,
    cancel,
    counters,
    exited,
    hold,
    job,
    platform,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)
from hypothesis import given
from hypothesis import strategies as st
from tracing import then

from iodaemon.core import event as ev
from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.job import Exit
from iodaemon.core.state import State

GIB = 1 << 30


def changed(at_s, **limits):
    return ev.Reconfigured(at_s=at_s, by="ann", changes=("x",), **limits)


def capped(most_bytes, *jobs):
    """These run, and the output of each may take so much."""
    rig = Rig(State(platform(8)))
    rig.step(changed(0.0, output_max_bytes=most_bytes))
    rig.run(*jobs)
    return rig


def took(at_s, *sizes):
    """A sample in which the output of jobs 1, 2, ... takes so many bytes; None: there is none."""
    read = {
        number: msgspec.structs.replace(counters(), output_bytes=size)
        for number, size in enumerate(sizes, start=1)
    }
    return sampled(at_s, read)


def test_a_job_whose_output_is_too_large_is_stopped_then_killed_with_the_reason():
    rig = capped(10 * GIB, job(1), job(2))
    plan = then(rig, took(1.0, 10 * GIB + 4096, 10 * GIB), "stop 1", wakes=1.0 + WALLTIME_GRACE_S)
    then(rig, timer(plan.wake_at_s), "kill 1")
    why = (
        "its output took 10 GiB, more than the 10 GiB of output_max; "
        "'iod submit -o FILE' writes it elsewhere"
    )
    then(rig, exited(11.5, end=Exit(signal=9)), state="FAILED", code="OutputMax", why=why)
    assert "RUNNING" == rig.job(2).state


def test_a_job_that_is_being_ended_is_killed_sooner_when_its_output_grows_too_large():
    rig = capped(100, job(1))
    then(rig, cancel(1.0, grace_s=500.0), "stop 1")
    then(rig, took(2.0, 200), wakes=2.0 + WALLTIME_GRACE_S)
    then(rig, took(5.0, 300), wakes=2.0 + WALLTIME_GRACE_S)
    then(rig, timer(2.0 + WALLTIME_GRACE_S), "kill 1")
    then(rig, took(30.0, 400), wakes=None)


def test_it_is_asked_to_end_once_and_has_failed_even_if_it_ends_well():
    rig = capped(100, job(1))
    then(rig, took(1.0, 200), "stop 1")
    then(rig, took(2.0, 400))
    assert "200 B" in rig.job(1).reason.text
    then(rig, exited(3.0, end=Exit(code=0)), state="FAILED", code="OutputMax")


def test_one_that_stands_still_is_ended_too():
    rig = capped(100, job(1))
    then(rig, hold(0.5), "suspend 1")
    then(rig, suspended(0.6))
    then(rig, took(1.0, 200), "stop 1")


def test_a_cancel_comes_before_it():
    rig = capped(100, job(1))
    then(rig, (cancel(0.5), took(1.0, 200)), "stop 1")
    then(rig, exited(2.0, end=Exit(signal=15)), state="CANCELLED")


def test_a_sample_that_began_before_the_job_says_nothing_of_it():
    """It is of the attempt before."""
    rig = capped(100)
    then(rig, submitted(job(1)), "start 1")
    then(rig, started(5.0))
    then(rig, msgspec.structs.replace(took(4.0, 200), at_s=6.0))


def test_another_cap_counts_with_the_next_sample_and_stays_where_a_reload_does_not_speak_of_it():
    rig = capped(None, job(1))
    then(rig, took(1.0, 200))
    then(rig, changed(1.5, output_max_bytes=100))
    then(rig, changed(1.6))
    then(rig, took(2.0, 200), "stop 1")


@given(
    most=st.none() | st.integers(1, 50),
    sizes=st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=8),
)
def test_exactly_those_above_it_are_ended(most, sizes):
    rig = capped(most, *(job(number) for number in range(1, len(sizes) + 1)))
    above = [n for n, s in enumerate(sizes, start=1) if None not in (s, most) and s > most]
    then(rig, took(1.0, *sizes), *(f"stop {number}" for number in above))
