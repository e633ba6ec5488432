"""What regulation lets running jobs move at most: set, kept, and cleared on every way out."""

import pytest
from builders import cancel, exited, hold, job, resumed, suspended
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.decision import Cap, RegulationPlan, Suspend, Throttle
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
    rig.run(job(1), job(2))
    rig.regulate(1.0)
    return rig


@pytest.fixture
def slowed(busy):
    """Job 1 is slowed down."""
    busy.regulate(2.0, caps={1: SLOW})
    assert [SLOW] == caps_of(busy.backend.take())
    return busy


def caps_of(decisions):
    return [each.cap for each in decisions if isinstance(each, Throttle)]


def test_a_cap_is_asked_for_once_and_another_one_again(slowed):
    slowed.regulate(3.0, caps={1: SLOW})
    slowed.regulate(4.0, caps={1: SLOWER})

    assert [SLOWER] == caps_of(slowed.backend.take())
    assert (SLOWER, 2.0) == (slowed.state.caps[1].cap, slowed.state.caps[1].since_s)


def test_a_plan_without_it_takes_the_cap_back(slowed):
    slowed.regulate(3.0)

    assert [Throttle(job_id=1)] == slowed.backend.take()
    assert {} == slowed.state.caps


@pytest.mark.parametrize(
    "event",
    [
        cancel(3.0),
        suspended(3.0),
        resumed(3.0),  # a thaw that nobody asked for: the supervisor died, and the cap with it
        ev.ModeChanged(at_s=3.0, mode=Mode.OFF, by="ann"),
        ev.ModeChanged(at_s=3.0, mode=Mode.SHADOW, by="ann"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_no_cap_is_left_after(slowed, event):
    slowed.step(event)

    decisions = slowed.backend.take()
    assert {} == slowed.state.caps
    assert None in caps_of(decisions) or Suspend(job_id=1) in decisions


def test_who_stands_still_and_runs_again_has_no_cap(slowed):
    slowed.step(hold(3.0))
    slowed.step(suspended(3.1))

    assert [None] == caps_of(slowed.backend.take())
    assert {} == slowed.state.caps


def test_a_job_that_ended_has_none(slowed):
    slowed.step(exited(3.0))

    assert {} == slowed.state.caps
    slowed.backend.take()


def test_a_rule_that_fails_leaves_none(slowed):
    slowed.regulation.plan = RegulationPlan(caps={JobId(9): SLOW})
    with pytest.raises(RuleError, match="does not exist"):
        slowed.regulate(3.0, caps={9: SLOW})


@pytest.mark.parametrize(
    ("cap", "text"),
    [
        ("fast", "not Cap"),
        (Cap(read_bytes_per_s={DeviceId("sdz"): 1e6}), "does not exist"),
        (Cap(read_bytes_per_s={DeviceId("sim0"): 0.0}), "a rate of 1 or more"),
        (Cap(read_bytes_per_s={DeviceId("sim0"): float("inf")}), "a rate of 1 or more"),
    ],
)
def test_what_is_no_cap_is_refused(busy, cap, text):
    with pytest.raises(RuleError, match=text):
        busy.regulate(2.0, caps={1: cap})


def test_a_backend_that_cannot_is_not_asked(busy):
    busy.state.can_cap = False
    busy.regulate(2.0, caps={1: SLOW})

    assert [] == busy.backend.take()
    assert {} == busy.state.caps


def test_a_job_that_could_not_be_slowed_down_is_not_asked_again(slowed):
    slowed.step(ev.CapFailed(at_s=2.5, job_id=JobId(1), problem="no such disk"))
    slowed.regulate(3.0, caps={1: SLOW})

    assert [] == slowed.backend.take()
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
    from builders import Rig, platform

    rig = Rig(State(platform(4)))
    rig.state.can_cap = True
    rig.run(job(1), job(2), job(3))
    believed = {}
    for at_s, (what, job_id, many) in enumerate(steps, start=1):
        live = rig.job(job_id).is_live
        match what:
            case "plan":
                rig.regulate(at_s, caps=dict.fromkeys(many, SLOW))
            case "hold":
                rig.step(hold(at_s, job_id))
            case "stop":
                rig.step(cancel(at_s, job_id))
            case "resumed" if live:
                rig.step(resumed(at_s, job_id))
            case "off" | "on":
                rig.step(ev.ModeChanged(at_s=at_s, mode=Mode(what), by="ann"))
        for decision in rig.backend.take():
            if isinstance(decision, Throttle):
                believed[decision.job_id] = decision.cap
        assert {i: c for i, c in believed.items() if c} == {
            i: capped.cap for i, capped in rig.state.caps.items()
        }
        for i in rig.state.caps:
            assert rig.job(i).state is JobState.RUNNING
