"""Rows filtered and grouped, and series made of what was found at each place."""

import statistics

import pytest

from iodaemon.simulator.experiment import Series
from iodaemon.simulator.table import group, mean_of, means, printed, ranged, samples, where

ROWS = [
    {"kind": "run", "rule": rule, "gb": gb, "seed": seed, "took": float(seed * gb)}
    for rule in ("b", "a")
    for gb in (20, 10)
    for seed in (1, 3)
]


def test_rows_are_filtered_by_values_and_a_tuple_is_any_of_them():
    assert ROWS[:2] == where(ROWS, kind="run", rule="b", gb=20.0)
    assert ROWS[4:] == where(ROWS, rule="a", gb=(10, 20))
    with pytest.raises(KeyError, match="gbs"):
        where(ROWS, gbs=20)


def test_groups_are_in_the_order_of_the_rows_and_means_along_a_rising_axis():
    assert {"b": ROWS[:4], "a": ROWS[4:]} == group(ROWS, "rule")
    assert [("b", 20), ("b", 10), ("a", 20), ("a", 10)] == list(group(ROWS, "rule", "gb"))
    assert [(10.0, [10.0, 30.0]), (20.0, [20.0, 60.0])] == [
        *samples(ROWS[:4], "gb", "took").items()
    ]
    assert {10.0: 20.0, 20.0: 40.0} == means(ROWS, "gb", "took")
    assert (30.0, None) == (mean_of(ROWS, "took"), mean_of([], "took"))


def test_a_series_has_the_middle_and_the_range_at_each_place_in_their_order():
    found = {"b": [3.0, 1.0, 8.0], "a": [2.0]}

    assert Series(label="x", x=("b", "a"), y=(4.0, 2.0), low=(1.0, 2.0), high=(8.0, 2.0)) == ranged(
        "x", found
    )
    assert (3.0, 2.0) == ranged("x", found, statistics.median).y


def test_what_is_printed_is_told_from_what_was_found():
    series = printed("paper", {1.0: 5.0, 8.0: 4.0})

    assert Series(label="paper", x=(1.0, 8.0), y=(5.0, 4.0), is_published=True) == series
