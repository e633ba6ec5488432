"""What regulation lets running jobs move at most: set, kept, and cleared on every way out."""

import pytest
from builders import Rig, cancel, exited, hold, job, platform, release, resumed, suspended
from hypothesis import given
from hypothesis import strategies as st
from tracing import measured, then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.decision import Cap, Throttle
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId, JobState
from iodaemon.core.platform import DeviceId
from iodaemon.core.rule import Mode
from iodaemon.core.rule_error import RuleError
from iodaemon.core.state import State

SLOW = Cap(written_bytes_per_s={DeviceId("sim0"): 5e6})
SLOWER = Cap(written_bytes_per_s={DeviceId("sim0"): 2e6})


@pytest.fixture
def busy(rig):
    """Jobs 1 and 2 run, and the backend slows jobs down."""
    rig.state.can_cap = True
    return measured(rig, job(1), job(2))


@pytest.fixture
def slowed(busy):
    """Job 1 is slowed down since 2 s."""
    then(busy, timeslice(busy, 2.0, caps={1: SLOW}), "throttle 1")
    return busy


def test_a_cap_is_asked_for_once_and_another_one_again_until_a_plan_has_none(slowed):
    then(slowed, timeslice(slowed, 3.0, caps={1: SLOW}))
    then(slowed, timeslice(slowed, 4.0, caps={1: SLOWER}), "throttle 1")
    capped = slowed.state.caps[1]

    assert (SLOWER, 2.0) == (capped.cap, capped.since_s)
    slowed.step(timeslice(slowed, 5.0))
    assert ([Throttle(job_id=1)], {}) == (slowed.backend.take(), slowed.state.caps)


ENDS = {
    "a cancel": cancel(3.0),
    "an end": exited(3.0),
    "a standstill": suspended(3.0),
    "a thaw that nobody asked for": resumed(3.0),  # the supervisor died, and the cap with it
    "mode off": ev.ModeChanged(at_s=3.0, mode=Mode.OFF, by="ann"),
    "mode shadow": ev.ModeChanged(at_s=3.0, mode=Mode.SHADOW, by="ann"),
}


@pytest.mark.parametrize("event", ENDS.values(), ids=ENDS)
def test_no_cap_is_left_after(slowed, event):
    slowed.step(event)

    throttles = [each for each in slowed.backend.take() if isinstance(each, Throttle)]
    assert ({}, [(1, None)]) == (slowed.state.caps, [(d.job_id, d.cap) for d in throttles])


def test_who_stands_still_and_runs_again_has_no_cap(slowed):
    then(slowed, hold(3.0), "suspend 1")
    slowed.step(suspended(3.1))

    assert ([Throttle(job_id=1)], {}) == (slowed.backend.take(), slowed.state.caps)


@pytest.mark.parametrize(
    ("caps", "text"),
    [
        ({9: SLOW}, "does not exist"),
        ({1: "fast"}, "not Cap"),
        ({1: Cap(read_bytes_per_s={DeviceId("sdz"): 1e6})}, "does not exist"),
        ({1: Cap(read_bytes_per_s={DeviceId("sim0"): 0.0})}, "a rate of 1 or more"),
        ({1: Cap(read_bytes_per_s={DeviceId("sim0"): float("inf")})}, "a rate of 1 or more"),
    ],
)
def test_what_is_no_cap_is_refused(busy, caps, text):
    with pytest.raises(RuleError, match=text):
        busy.step(timeslice(busy, 3.0, caps=caps))


def test_a_backend_that_cannot_is_not_asked(busy):
    busy.state.can_cap = False
    then(busy, timeslice(busy, 3.0, caps={1: SLOW}))

    assert {} == busy.state.caps


def test_a_job_that_could_not_be_slowed_down_is_not_asked_again(slowed):
    then(slowed, ev.CapFailed(at_s=2.5, job_id=JobId(1), problem="no such disk"))
    then(slowed, timeslice(slowed, 3.0, caps={1: SLOW}))

    assert not slowed.state.may_cap(JobId(1))


def test_it_is_told_why(slowed):
    told = explain(slowed.state, slowed.controller.rules, slowed.job(), 4.0)

    assert "slowed down (may write 5.0 MB/s on sim0 at most), for 2 s" in told.is_so


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["plan", "hold", "release", "stop", "resumed", "off", "on"]),
            st.sampled_from([1, 2, 3]),
            st.sets(st.sampled_from([1, 2, 3])),
        ),
        max_size=30,
    )
)
def test_only_running_jobs_are_slowed_down_and_the_backend_agrees(steps):
    rig = Rig(State(platform(4)))
    rig.state.can_cap = True
    rig.run(job(1), job(2), job(3))
    believed = {}
    acts = {"hold": hold, "release": release, "stop": cancel, "resumed": resumed}
    for at_s, (what, job_id, many) in enumerate(steps, start=1):
        if what == "plan":
            rig.step(timeslice(rig, at_s, caps=dict.fromkeys(many, SLOW)))
        elif what in ("off", "on"):
            rig.step(ev.ModeChanged(at_s=at_s, mode=Mode(what), by="ann"))
        else:
            rig.step(acts[what](at_s, job_id))
        for decision in rig.backend.take():
            if isinstance(decision, Throttle):
                believed[decision.job_id] = decision.cap

        capped = {i: each.cap for i, each in rig.state.caps.items()}
        assert {i: cap for i, cap in believed.items() if cap} == capped
        assert all(rig.job(i).state is JobState.RUNNING for i in capped)
