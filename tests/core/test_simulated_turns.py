"""A simulated job that speaks: what it says, and what it does when it has its turn."""

import pytest
from builders import MB
from simulation import Sim, approx

from iodaemon.core import event as ev
from iodaemon.core.decision import Grant, Kill, Resume, Suspend
from iodaemon.model.node import Compute, Profile, Read, Write

READ = Profile(steps=(Compute(2.0), Read(300 * MB), Compute(1.0)), speaks=True)
GRANT, SUSPEND, RESUME = Grant(job_id=1), Suspend(job_id=1), Resume(job_id=1)


def phases(sim):
    """What was said of phases: when, and what was expected; None: it was done."""
    return [
        (e.at_s, getattr(e, "expect_bytes", None))
        for e in sim.said
        if isinstance(e, ev.PhaseAsked | ev.PhaseDone)
    ]


def test_it_asks_waits_reads_and_tells():
    sim = Sim().start(READ).at(10.0, GRANT).run()

    assert [(2.0, 300 * MB), (13.0, None)] == phases(sim)
    assert approx(sim.ends()) == {1: 14.0}


def test_without_its_turn_it_waits_for_ever():
    sim = Sim().start(READ).run()

    assert [(2.0, 300 * MB)] == phases(sim)
    assert sim.ends() == {}
    counters = sim.sample(100.0).jobs[1]
    assert (counters.read_bytes, counters.io_stall_s) == (0, 0.0)


def test_a_turn_before_it_asked_means_nothing():
    sim = Sim().start(READ).at(1.0, GRANT).run()

    assert sim.ends() == {}


def test_given_twice_it_is_one_turn():
    sim = Sim().start(READ).at(10.0, GRANT, GRANT).at(11.0, GRANT).run()

    assert approx(sim.ends()) == {1: 14.0}


def test_suspended_while_it_waits_it_reads_when_it_is_resumed():
    sim = Sim().start(READ).at(5.0, SUSPEND).at(10.0, GRANT).at(20.0, RESUME).run()

    assert approx(sim.ends()) == {1: 24.0}


def test_resumed_before_its_turn_it_waits_on():
    sim = Sim().start(READ).at(5.0, SUSPEND).at(6.0, RESUME).at(20.0, GRANT).run()

    assert approx(sim.ends()) == {1: 24.0}


def test_suspended_in_its_turn_it_goes_on_and_tells_when_it_is_done():
    sim = Sim().start(READ).at(10.0, GRANT).at(11.0, SUSPEND).at(21.0, RESUME).run()

    assert [(2.0, 300 * MB), (23.0, None)] == phases(sim)


@pytest.mark.parametrize("profile", [Profile(steps=(Write(900 * MB),), speaks=True), READ])
def test_killed_while_it_waits_it_is_gone(profile):
    sim = Sim().start(profile).at(5.0, Kill(job_id=1)).run()

    assert approx(sim.ends()) == {1: 5.0}


def test_each_step_and_each_round_is_a_phase_of_its_own():
    profile = Profile(steps=(Read(100 * MB), Write(MB, direct=True)), repeat=2, speaks=True)
    sim = Sim().start(profile)
    for at_s in (1.0, 3.0, 5.0, 7.0):
        sim.at(at_s, GRANT)
    sim.run()

    assert [100 * MB, None, MB, None] * 2 == [expected for _, expected in phases(sim)]
