"""No regulation."""

import pytest
from scene import MB, Scene, platform

from iodaemon.core.decision import RegulationPlan
from iodaemon.policy.regulation.none import Rule


def test_nothing_is_suspended():
    scene = Scene(platform(4)).live(1, 0, moved=900 * MB).live(2, 0, moved=900 * MB)

    plan, memory = Rule().decide(scene.view(), None)

    assert (RegulationPlan(), None) == (plan, memory)


def test_what_another_rule_left_suspended_runs_again():
    scene = Scene(platform(4)).live(1, 0, held=True).live(2, 0).live(3, 0, held=True)

    plan, _ = Rule().decide(scene.view(), None)

    assert plan.resumes == (1, 3)


@pytest.mark.parametrize("timeslice_s", [0.0, -1.0, float("nan")])
def test_a_timeslice_that_is_none_is_refused(timeslice_s):
    with pytest.raises(ValueError, match=r"timeslice_s is .*; it must be above 0"):
        Rule(timeslice_s=timeslice_s)
