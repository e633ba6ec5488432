"""The oracle runs jobs as ``xargs -P`` does; the report says what its runs say."""

import time

import pytest
import regulation_report as reports
from beds.bed import Work, shell
from beds.catalogue import BEDS
from oracle import Span, TooLong, run_fixed
from outcome import Outcome, append, load, most_at_once


def works(*scripts, every_s=0.0):
    return [Work(shell("job", script), number * every_s) for number, script in enumerate(scripts)]


def outcome(rule, *ends_s, round_="1", **others):
    spans = [Span(0.0, 0.0, end_s) for end_s in ends_s]
    facts = {"bed": "bed", "about": "jobs", "size": "small", "at": "2026-11-25", "machine": "this"}
    return Outcome(rule=rule, round=round_, spans=spans, **facts, **others)


def cells(table, row=0):
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return dict(zip(lines[0], lines[2 + row], strict=True))


@pytest.mark.node
def test_no_more_jobs_run_at_a_time_than_allowed_and_they_start_in_order():
    spans = run_fixed(works(*["sleep 0.1"] * 5), 2, "iod-test-oracle")

    assert most_at_once(spans) == 2
    assert [span.start_s for span in spans] == sorted(span.start_s for span in spans)
    assert max(span.end_s for span in spans) >= 0.3


@pytest.mark.node
def test_a_job_does_not_start_before_its_arrival():
    spans = run_fixed(works("true", "true", every_s=0.3), 2, "iod-test-oracle")

    assert spans[1].start_s >= 0.3


@pytest.mark.node
def test_a_run_that_takes_too_long_is_given_up_and_its_jobs_are_ended():
    began_s = time.monotonic()

    with pytest.raises(TooLong):
        run_fixed(works("sleep 60 & sleep 60"), 1, "iod-test-oracle", limit_s=0.2)
    assert time.monotonic() - began_s < 30


@pytest.mark.node
def test_a_job_that_fails_ends_the_run():
    with pytest.raises(RuntimeError, match="job 2"):
        run_fixed(works("true", "exit 3", "sleep 60"), 3, "iod-test-oracle")


def test_spans_that_only_touch_do_not_overlap():
    assert most_at_once([Span(0.0, 0.0, 1.0), Span(0.0, 1.0, 2.0), Span(0.0, 0.5, 1.5)]) == 2


def test_the_best_fixed_number_is_the_one_with_the_least_median_makespan():
    made = [
        outcome("k=2", 9.0, 9.0, 9.0),
        outcome("k=1", 5.0, 7.0, 6.0),
        outcome("k=3", 20.0, 20.0, 20.0),
        outcome("k=4", is_cut=True, limit_s=3.0),
    ]

    found = cells(reports.table(made))
    assert (found["oracle k"], found["oracle"], found["all at once"]) == ("k=1", "7.0", "20.0")


def test_a_policy_is_compared_with_the_run_of_its_own_round():
    made = [
        *(outcome("none", 10.0, round_="1"), outcome("default", 5.0, round_="1")),
        *(outcome("none", 40.0, round_="2"), outcome("default", 20.0, round_="2")),
    ]

    assert cells(reports.table(made))["default / none"] == "0.50 (0.50 to 0.50)"


def test_the_second_batch_has_a_column_of_its_own():
    made = [outcome("none", 10.0), outcome("new", 9.0), outcome("new", 6.0, batch=2)]

    found = cells(reports.table(made))
    assert (found["new"], found["new (second batch)"]) == ("9.0", "6.0")


def test_the_latest_job_is_the_one_that_ends_latest_beside_none():
    free, mine = outcome("none", 4.0, 10.0), outcome("new", 8.0, 9.0)

    assert mine.latest_ratio(free) == 2.0
    assert mine.fairness(free) < 1.0


def test_every_policy_has_its_fairness_also_one_that_was_measured_apart():
    made = [
        outcome("none", 4.0, 10.0, round_="1"),
        outcome("none", 8.0, 20.0, round_="2"),
        outcome("none", 16.0, 40.0, round_="3"),
        *(outcome("default", 4.0, 30.0, round_="2"), outcome("apart", 4.0, 30.0, round_="4")),
        outcome("default", 8.0, 40.0, round_="2", batch=2),
    ]

    rows = [cells(reports.details(made), row) for row in range(4)]

    fairness = [(row["Jain index of slowdowns"], row["latest job / none"]) for row in rows]
    assert ("none", "1.00", "1.00") == (rows[0]["policy"], *fairness[0])
    assert [("0.80", "1.50"), ("0.80", "1.50"), ("0.90", "2.00")] == fairness[1:]


def test_jobs_of_another_number_are_not_compared():
    made = [outcome("none", 4.0), outcome("default", 4.0, 8.0)]

    assert "-" == cells(reports.details(made), 1)["Jain index of slowdowns"]


def test_runs_that_were_kept_are_read_again(tmp_path):
    made = [outcome("none", 4.0), outcome("k=2", is_cut=True, limit_s=3.0)]
    for one in made:
        append(tmp_path / "runs", one)

    assert load([tmp_path / "runs"]) == made


def test_every_bed_says_what_it_lacks():
    assert all(isinstance(maker.missing(), list) for maker in BEDS.values())
