"""The life of a job: which steps it may take, and where the time goes."""

import pytest
from builders import job, reason

from iodaemon.core.error import TransitionError
from iodaemon.core.job import Exit, IoTotals, JobState
from iodaemon.core.lifecycle import moved

LIFE = {
    "H": "PD CA",
    "PD": "H ST CA F",
    "ST": "R PD SG CA CD F LO OM",
    "R": "SI SU SG PD CD F LO OM",
    "SI": "R SU SG PD CD F LO OM",
    "SU": "R SI SG PD CD F LO OM",
    "SG": "PD CA TO F LO OM",
    "CD": "PD",
    "F": "PD",
    "CA": "PD",
    "TO": "PD",
    "OM": "PD",
    "LO": "PD",
}


@pytest.mark.parametrize("after", JobState, ids=lambda state: state.code)
@pytest.mark.parametrize("before", JobState, ids=lambda state: state.code)
def test_a_job_takes_exactly_the_steps_of_the_table(before, after):
    a_job = job(state=before)

    if after.code in LIFE[before.code].split():
        assert after is moved(a_job, after, 1.0).state
    else:
        with pytest.raises(TransitionError, match=f"job 1: .* from {before} to {after}"):
            moved(a_job, after, 1.0)


@pytest.mark.parametrize(
    ("state", "booked"),
    [
        (JobState.STARTING, (0.0, 0.0, 0.0)),
        (JobState.RUNNING, (5.0, 0.0, 0.0)),
        (JobState.STOPPING, (5.0, 0.0, 0.0)),
        (JobState.SUSPENDED_IO, (0.0, 5.0, 0.0)),
        (JobState.SUSPENDED_USER, (0.0, 0.0, 5.0)),
    ],
)
def test_time_is_booked_under_the_state_it_was_spent_in(state, booked):
    after = moved(job(state=state, at_s=10.0), JobState.LOST, 15.0)

    assert booked == (after.run_s, after.suspended_io_s, after.suspended_user_s)


def test_time_adds_up_over_several_spells_and_the_present_one_counts_up_to_now():
    running = moved(job(state=JobState.STARTING), JobState.RUNNING, 1.0)
    still = moved(running, JobState.SUSPENDED_IO, 3.0)
    by_user = moved(still, JobState.SUSPENDED_USER, 7.0)
    again = moved(by_user, JobState.RUNNING, 15.0)

    assert (again.run_s, again.suspended_io_s, again.suspended_user_s) == (2.0, 4.0, 8.0)
    assert (2.0, 18.0) == (by_user.run_s_at(14.0), again.run_s_at(31.0))


def test_a_clock_that_went_back_books_nothing():
    assert 0.0 == moved(job(state=JobState.RUNNING, at_s=10.0), JobState.COMPLETED, 9.0).run_s


@pytest.mark.parametrize("before", [JobState.RUNNING, JobState.SUSPENDED_IO])
def test_an_ended_job_holds_nothing_and_is_held_by_nobody(before):
    ended = moved(job(state=before, user_hold=True, immune_until_s=9.0), JobState.FAILED, 5.0)

    assert (5.0, ()) == (ended.ended_s, ended.slots)
    assert {False} == {ended.user_hold, ended.io_hold, ended.frozen}
    assert {None} == {ended.io_held_since_s, ended.immune_until_s, ended.stop}


def test_a_step_brings_its_reason_and_drops_the_old_one():
    held = moved(job(reason=reason("Old")), JobState.HELD, 1.0, reason("New"))

    assert (reason("New"), None) == (held.reason, moved(held, JobState.PENDING, 2.0).reason)


def test_a_suspend_that_is_not_confirmed_is_shown_with_dots():
    asked = {"io_hold": True, "io_held_since_s": 0.0, "freeze_asked": True}
    shown = [job(state=JobState.RUNNING, **fields).state_shown for fields in (asked, {})]

    assert ["SUSPENDED_IO...", "RUNNING"] == shown


@pytest.mark.parametrize(
    ("end", "code"),
    [(Exit(code=0), 0), (Exit(code=3), 3), (Exit(signal=15), 143), (Exit(), 1)],
)
def test_an_exit_is_shown_as_a_shell_shows_it(end, code):
    assert code == end.shell_code


def test_totals_are_unknown_only_when_both_halves_are():
    halves = [{}, {"read_bytes": 7}, {"read_bytes": 7, "written_bytes": 2}]

    assert [None, 7, 9] == [IoTotals(**known).total_bytes for known in halves]
