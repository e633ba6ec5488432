"""Totals that exist nowhere else: they say what happened, and never fall."""

import pytest
from builders import job

from iodaemon.core.decision import Plan, ShadowStep, Transition
from iodaemon.core.job import IoTotals, JobState, Prediction, Reason
from iodaemon.daemon.metrics.counts import MOST_REASONS, PREFIX, Counts

BOUND = Reason(code="IoBound", text="too much")
BY_HAND = Reason(code="Suspended", text="by a person")


def step(job_id, at_s, after, reason=None):
    return Transition(job_id=job_id, at_s=at_s, before=JobState.RUNNING, after=after, reason=reason)


def told(*steps):
    counts = Counts()
    counts.take(Plan(transitions=steps), {})
    return counts


def value(counts, name, **labels):
    return counts.registry.get_sample_value(PREFIX + name, labels)


def stood_s(counts, now_s, name="suspended_seconds_total"):
    """By reason, without those that are at 0."""
    counts.count_until(now_s)
    samples = [sample for family in counts.registry.collect() for sample in family.samples]
    found = {s.labels["reason"]: s.value for s in samples if s.name == PREFIX + name}
    return {code: seconds for code, seconds in found.items() if seconds}


def test_suspended_time_is_summed_by_reason_up_to_the_present():
    counts = told(
        step(1, 10.0, JobState.SUSPENDED_IO, BOUND),
        step(2, 12.0, JobState.SUSPENDED_IO, BOUND),
        step(1, 15.0, JobState.RUNNING),
        step(3, 16.0, JobState.SUSPENDED_USER, BY_HAND),
    )

    assert {"IoBound": 5.0 + 8.0, "Suspended": 4.0} == stood_s(counts, 20.0)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (  # a person takes over a hold
            (
                step(1, 13.0, JobState.SUSPENDED_USER, BY_HAND),
                step(1, 20.0, JobState.RUNNING),
            ),
            {"IoBound": 3.0, "Suspended": 7.0},
        ),
        ((step(1, 14.0, JobState.OUT_OF_MEMORY),), {"IoBound": 4.0}),
    ],
)
def test_a_standstill_ends_with_whatever_comes_after_it(steps, expected):
    counts = told(step(1, 10.0, JobState.SUSPENDED_IO, BOUND), *steps)

    assert expected == stood_s(counts, 50.0)


def test_a_total_does_not_fall_when_an_end_is_told_after_a_later_scrape():
    counts = told(step(1, 10.0, JobState.SUSPENDED_IO, BOUND))
    at_scrape = stood_s(counts, 20.0)

    counts.take(Plan(transitions=(step(1, 19.0, JobState.RUNNING),)), {})

    assert at_scrape == stood_s(counts, 21.0)


def test_jobs_that_stand_still_when_the_daemon_starts_count_from_then():
    held = job(7, state=JobState.SUSPENDED_USER, at_s=1.0, reason=BY_HAND)

    assert {"Suspended": 3.0} == stood_s(Counts([held, job(8)], 100.0), 103.0)


def test_a_rule_whose_reasons_have_ever_new_codes_makes_a_bounded_number_of_series():
    counts = told(
        *(
            step(i, 1.0, JobState.SUSPENDED_IO, Reason(code=f"Mine{i}", text="so"))
            for i in range(1, 100)
        )
    )

    found = stood_s(counts, 2.0)
    assert len(found) <= MOST_REASONS + 1
    assert (1.0, 99.0) == (found["Mine1"], sum(found.values()))
    assert found["other"] > 1.0


def would(job_id, at_s, verdict, reason=None):
    return ShadowStep(job_id=job_id, at_s=at_s, verdict=verdict, reason=reason)


def test_what_regulation_in_shadow_would_have_done_is_counted_apart():
    counts = Counts()
    steps = (would(1, 10.0, "suspend", BOUND), would(2, 12.0, "suspend", BOUND))
    counts.take(Plan(shadow=steps), {})
    counts.take(Plan(shadow=(would(1, 15.0, "resume", BY_HAND),)), {})

    assert {"IoBound": 5.0 + 8.0} == stood_s(counts, 20.0, "shadow_suspended_seconds_total")
    assert {} == stood_s(counts, 20.0)


def foretold(source, ratio, **fields):
    """A job that was expected to move so many times what it moved."""
    expected = Prediction(rate_bytes_per_s=ratio * 1e6, confidence=0.5, source=source)
    io = IoTotals(read_bytes=10_000_000, written_bytes=0)
    return job(
        1, state=JobState.COMPLETED, run_s=10.0, **({"io": io, "expected": expected} | fields)
    )


def test_what_was_expected_is_held_against_what_came_by_its_source():
    counts = Counts()
    for made in (
        foretold("learned", 1.0),
        foretold("learned", 3.0),
        foretold("declared", 0.3),
        foretold("declared", 5.0, io=IoTotals()),
        foretold("learned", 1.0, expected=None),
    ):
        counts.take(Plan(transitions=(step(1, 1.0, JobState.COMPLETED),)), {1: made})

    def bucket(source, le):
        return value(counts, "job_io_expected_ratio_bucket", source=source, le=le)

    assert [2, 1, 0] == [bucket(each, "+Inf") for each in ("learned", "declared", "imported")]
    assert [0, 1, 1, 2] == [bucket("learned", le) for le in ("0.8", "1.25", "2.0", "4.0")]
    assert [0, 1] == [bucket("declared", le) for le in ("0.25", "0.5")]
    ratios = value(counts, "job_io_expected_ratio_sum", source="learned")
    assert 4.0 == pytest.approx(ratios, abs=0.01)
    assert 5 == value(counts, "jobs_finished_total", state="COMPLETED")


def test_started_jobs_are_counted_by_what_was_known_of_them():
    counts = Counts()
    started = Plan(transitions=(step(1, 1.0, JobState.STARTING),))
    for made in (foretold("declared", 1.0), foretold("declared", 1.0), job(1)):
        counts.take(started, {1: made})

    sources = ("declared", "learned", "imported", "unknown")
    found = [value(counts, "job_io_expectations_total", source=each) for each in sources]
    assert [2, 0, 0, 1] == found
