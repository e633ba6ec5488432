"""Means in which what is old counts for less."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.forecast import HALF_LIFE_S, KEPT, Fading

VALUES = st.floats(-100.0, 100.0)
TIMES = st.floats(0.0, 400 * 86400.0)
RUNS = st.lists(st.tuples(VALUES, TIMES), min_size=1, max_size=30)


def mean_of(runs):
    fading = Fading()
    for value, at_s in runs:
        fading.add(value, at_s)
    return fading


def by_hand(runs):
    """Mean, spread and weight as the docstring has it; runs in the order of their ends."""
    last_s = runs[-1][1]
    weights = [
        KEPT ** (len(runs) - 1 - place) * 0.5 ** ((last_s - at_s) / HALF_LIFE_S)
        for place, (_, at_s) in enumerate(runs)
    ]
    total = sum(weights)
    mean = sum(w * value for w, (value, _) in zip(weights, runs, strict=True)) / total
    squares = sum(w * (value - mean) ** 2 for w, (value, _) in zip(weights, runs, strict=True))
    return mean, math.sqrt(squares / total), total


def test_of_one_run_the_mean_is_that_run():
    fading = mean_of([(5.0, 100.0)])

    assert (5.0, 0.0, 1.0, 1) == (fading.mean, fading.spread, fading.weight, fading.count)


def test_of_two_at_once_the_later_one_counts_a_little_more():
    assert pytest.approx((1.0 + 0.9 * 0.0) / 1.9) == mean_of([(0.0, 5.0), (1.0, 5.0)]).mean


def test_after_a_half_life_a_run_counts_half():
    fading = mean_of([(0.0, 0.0), (1.0, HALF_LIFE_S)])

    assert pytest.approx(1.0 / 1.45) == fading.mean
    assert pytest.approx(0.5 * fading.weight) == fading.weight_at(2 * HALF_LIFE_S)


def test_time_before_the_last_run_makes_it_no_younger():
    fading = mean_of([(1.0, 100.0)])

    assert 1.0 == fading.weight_at(0.0)


@given(RUNS)
def test_it_is_as_by_hand_in_either_direction(runs):
    runs = sorted(runs, key=lambda run: run[1])
    runs = [run for place, run in enumerate(runs) if not place or run[1] > runs[place - 1][1]]
    forward, backward = mean_of(runs), mean_of(runs[::-1])

    expected = pytest.approx(by_hand(runs), rel=1e-6, abs=1e-4)
    assert expected == (forward.mean, forward.spread, forward.weight)
    assert expected == (backward.mean, backward.spread, backward.weight)


@given(RUNS)
def test_in_any_order_the_mean_lies_among_the_values(runs):
    fading = mean_of(runs)
    values = [value for value, _ in runs]

    assert min(values) - 1e-9 <= fading.mean <= max(values) + 1e-9
    assert 0.0 <= fading.weight <= 1.0 / (1.0 - KEPT) + 1e-9
    assert math.isfinite(fading.spread)
