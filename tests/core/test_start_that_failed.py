"""A start that came to nothing: tried again later, held until somebody says so, or over."""

import pytest
from builders import Rig, job, platform, release, started, suspended, timer

from iodaemon.core import event as ev
from iodaemon.core.decision import Start
from iodaemon.core.handlers import START_RETRY_S
from iodaemon.core.job import JobState
from iodaemon.core.state import State

NOBODY = "uid 1003 has no account on this machine (any more)"


def failed(at_s, *, attempt=1, **fields):
    return ev.StartFailed(at_s=at_s, job_id=1, attempt=attempt, problem=NOBODY, **fields)


def starting(*jobs):
    rig = Rig(State(platform(1)))
    rig.step(*(ev.JobSubmitted(at_s=0.0, job=made) for made in jobs))
    assert [Start(job_id=1, attempt=1, partition=0, slots=(0,))] == rig.backend.take()
    return rig


def test_a_job_whose_user_is_gone_is_held_and_says_why_and_what_to_do():
    rig = starting(job(1), job(2))

    rig.step(failed(1.0, holds=True))

    held = rig.job()
    assert (JobState.HELD, True, ()) == (held.state, held.user_hold, held.slots)
    assert (NOBODY, "'iod resume 1'") == (held.reason.text, held.reason.cure)
    assert [Start(job_id=2, attempt=1, partition=0, slots=(0,))] == rig.backend.take()


def test_it_is_not_tried_again_by_itself_and_is_once_it_is_let_go():
    rig = starting(job(1))
    rig.step(failed(1.0, holds=True))

    rig.step(timer(1.0 + 9 * START_RETRY_S))
    assert [] == rig.backend.take()
    rig.step(release(100.0))

    assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()


@pytest.mark.parametrize("is_suspended", [False, True])
@pytest.mark.parametrize("holds", [False, True])
def test_what_was_taken_for_running_by_the_next_daemon_gives_its_slots_back(holds, is_suspended):
    rig = starting(job(1))
    rig.step(started(1.0))
    if is_suspended:
        rig.step(suspended(2.0))
        rig.backend.take()

    rig.step(failed(5.0, holds=holds))

    waiting = rig.job()
    assert (JobState.HELD if holds else JobState.PENDING) == waiting.state
    assert ((), None, 0.0) == (waiting.slots, waiting.started_s, waiting.run_s)
    assert NOBODY in waiting.reason.text
    rig.state.check()
    if not holds:
        rig.step(timer(5.0 + START_RETRY_S))
        assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()
