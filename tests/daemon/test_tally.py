"""Totals that exist nowhere else: they say what happened, and never fall."""

from builders import job

from iodaemon.core.decision import Kill, Plan, ShadowStep, Start, Suspend, Transition
from iodaemon.core.job import IoTotals, JobState, Reason
from iodaemon.core.prediction import Prediction
from iodaemon.daemon.tally import Durations, Tally

BOUND = Reason(code="IoBound", text="too much")
BY_HAND = Reason(code="Suspended", text="by a person")


def counted(totals):
    """Without those that are still at 0."""
    return {code: value for code, value in totals.items() if value}


def step(job_id, at_s, after, reason=None):
    return Transition(job_id=job_id, at_s=at_s, before=JobState.RUNNING, after=after, reason=reason)


def told(*steps, now_s=0.0):
    tally = Tally([], now_s)
    tally.take(Plan(transitions=steps))
    return tally


def test_every_decision_and_every_end_is_counted_from_the_beginning():
    tally = Tally([], 0.0)

    kinds = {"start", "suspend", "resume", "throttle", "stop", "kill", "reject", "grant", "free"}
    assert kinds == set(tally.decisions)
    assert {str(state) for state in JobState if state.is_final} == set(tally.finished)
    assert {0} == set(tally.decisions.values()) | set(tally.finished.values())


def test_decisions_are_counted_by_kind():
    tally = Tally([], 0.0)
    start = Start(job_id=1, attempt=1, partition=0, slots=(0,))

    tally.take(Plan(decisions=(start, Suspend(job_id=1), Suspend(job_id=2))))
    tally.take(Plan(decisions=(Kill(job_id=1),)))

    assert {"start": 1, "suspend": 2, "kill": 1} == {k: n for k, n in tally.decisions.items() if n}


def test_ends_are_counted_by_state_and_what_is_no_end_is_not():
    tally = told(
        step(1, 1.0, JobState.RUNNING),
        step(1, 2.0, JobState.COMPLETED),
        step(2, 2.0, JobState.COMPLETED),
        step(3, 2.0, JobState.LOST),
    )

    assert {"COMPLETED": 2, "LOST": 1} == {k: n for k, n in tally.finished.items() if n}


def test_suspended_time_is_summed_by_reason_up_to_the_present():
    tally = told(
        step(1, 10.0, JobState.SUSPENDED_IO, BOUND),
        step(2, 12.0, JobState.SUSPENDED_IO, BOUND),
        step(1, 15.0, JobState.RUNNING),
        step(3, 16.0, JobState.SUSPENDED_USER, BY_HAND),
    )

    suspended_s = counted(tally.suspended.seconds(20.0))

    assert {"IoBound": 2, "Suspended": 1} == counted(tally.suspended.counts)
    assert {"IoBound": 5.0 + 8.0, "Suspended": 4.0} == suspended_s


def test_a_person_who_takes_over_a_hold_is_charged_from_then_on():
    tally = told(
        step(1, 10.0, JobState.SUSPENDED_IO, BOUND),
        step(1, 13.0, JobState.SUSPENDED_USER, BY_HAND),
        step(1, 20.0, JobState.RUNNING),
    )

    suspended_s = counted(tally.suspended.seconds(50.0))

    assert {"IoBound": 3.0, "Suspended": 7.0} == suspended_s


def test_a_job_that_ends_while_it_stands_still_stands_still_no_longer():
    tally = told(step(1, 10.0, JobState.SUSPENDED_IO, BOUND), step(1, 14.0, JobState.OUT_OF_MEMORY))

    suspended_s = counted(tally.suspended.seconds(99.0))

    assert {"IoBound": 4.0} == suspended_s


def test_a_total_does_not_fall_when_an_end_is_told_after_a_later_scrape():
    tally = told(step(1, 10.0, JobState.SUSPENDED_IO, BOUND))
    at_scrape = counted(tally.suspended.seconds(20.0))

    tally.take(Plan(transitions=(step(1, 19.0, JobState.RUNNING),)))

    assert at_scrape == counted(tally.suspended.seconds(21.0))


def test_jobs_that_stand_still_when_the_daemon_starts_count_from_then():
    held = job(7, state=JobState.SUSPENDED_USER, at_s=1.0, reason=BY_HAND)
    tally = Tally([held, job(8, state=JobState.RUNNING)], 100.0)

    suspended_s = counted(tally.suspended.seconds(103.0))

    assert {"Suspended": 3.0} == suspended_s
    assert {} == counted(tally.suspended.counts)


def test_durations_are_counted_by_their_upper_bounds():
    durations = Durations()

    for duration_s in (0.0001, 0.0002, 0.7, 9.0):
        durations.add(duration_s)

    counts = dict(durations.cumulative())
    assert [("0.0001", 1.0), ("0.0005", 2.0), ("1.0", 3.0), ("5.0", 3.0), ("+Inf", 4.0)] == [
        (bound, counts[bound]) for bound in ("0.0001", "0.0005", "1.0", "5.0", "+Inf")
    ]
    assert 0.0001 + 0.0002 + 0.7 + 9.0 == durations.sum_s


def test_asking_again_before_the_answer_does_not_make_it_shorter():
    durations = Durations(iter((10.0, 13.0)).__next__)

    durations.begin()
    durations.begin()
    durations.end()
    durations.end()

    assert 3.0 == durations.sum_s
    assert ("+Inf", 1.0) == durations.cumulative()[-1]


def would(job_id, at_s, verdict, reason=None):
    return ShadowStep(job_id=job_id, at_s=at_s, verdict=verdict, reason=reason)


def test_what_regulation_in_shadow_would_have_done_is_counted_apart():
    tally = Tally([], 0.0)
    tally.take(Plan(shadow=(would(1, 10.0, "suspend", BOUND), would(2, 12.0, "suspend", BOUND))))
    tally.take(Plan(shadow=(would(1, 15.0, "resume", BY_HAND),)))

    assert {"IoBound": 2} == counted(tally.shadow.counts)
    assert {"IoBound": 5.0 + 8.0} == counted(tally.shadow.seconds(20.0))
    assert ({}, {}) == (counted(tally.suspended.counts), counted(tally.suspended.seconds(20.0)))


def foretold(source, ratio, **fields):
    """A job that was expected to move so many times what it moved."""
    expected = Prediction(rate_bytes_per_s=ratio * 1e6, confidence=0.5, source=source)
    io = IoTotals(read_bytes=10_000_000, written_bytes=0)
    return job(
        1, state=JobState.COMPLETED, run_s=10.0, **({"io": io, "expected": expected} | fields)
    )


def test_what_was_expected_is_held_against_what_came_by_its_source():
    tally = Tally([], 0.0)
    for made in (
        foretold("learned", 1.0),
        foretold("learned", 3.0),
        foretold("declared", 0.3),
        foretold("declared", 5.0, io=IoTotals()),
        foretold("learned", 1.0, expected=None),
    ):
        tally.take(Plan(transitions=(step(1, 1.0, JobState.COMPLETED),)), {1: made})

    counts = {source: dict(each.cumulative()) for source, each in tally.hindsight.items()}
    assert {"learned": 2.0, "declared": 1.0, "imported": 0.0} == {
        source: count["+Inf"] for source, count in counts.items()
    }
    assert [0.0, 1.0, 1.0, 2.0] == [counts["learned"][b] for b in ("0.8", "1.25", "2.0", "4.0")]
    assert [0.0, 1.0] == [counts["declared"][bound] for bound in ("0.25", "0.5")]
    assert 3.99 < tally.hindsight["learned"].sum < 4.01


def test_started_jobs_are_counted_by_what_was_known_of_them():
    tally = Tally([], 0.0)
    started = Plan(transitions=(step(1, 1.0, JobState.STARTING),))
    for made in (foretold("declared", 1.0), foretold("declared", 1.0), job(1)):
        tally.take(started, {1: made})

    assert {"declared": 2, "learned": 0, "imported": 0, "unknown": 1} == dict(tally.expectations)
