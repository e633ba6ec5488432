"""The knee is where readers that ask for more take longer; one disturbed step does not move it."""

import math

import pytest
from calibrating import MB, paced
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.calibration.knee import (
    BOUND_SHARE,
    DEGRADED,
    curves,
    disputed,
    find_knees,
    next_rate,
    recommended,
)
from iodaemon.calibration.record import Knee

RATES = st.floats(min_value=1e5, max_value=1e10)
SOCKETS = st.integers(min_value=1, max_value=8)


def on_device(capacity, sockets, totals):
    """Paced readers on a device that serves so much and shares it fairly."""
    return [paced(sockets, total, max(1.0, total / capacity)) for total in totals]


@given(RATES, SOCKETS, st.lists(RATES, min_size=1, max_size=20))
def test_the_knee_of_a_device_lies_about_its_capacity(capacity, sockets, totals):
    (knee,) = find_knees(on_device(capacity, sockets, totals))

    edge = DEGRADED * capacity
    fine = [total for total in totals if total / capacity <= DEGRADED]
    beyond = [total for total in totals if total / capacity > DEGRADED]
    assert knee.sockets == sockets
    assert knee.fine_bytes_per_s == max(fine, default=0.0)
    assert knee.degraded_bytes_per_s == min(beyond, default=None)
    assert knee.fine_bytes_per_s <= edge * (1 + 1e-9)


@given(st.lists(st.tuples(SOCKETS, RATES, st.floats(1.0, 50.0)), max_size=30), st.randoms())
def test_the_order_of_the_steps_does_not_matter(steps, rng):
    loads = [paced(*step) for step in steps]
    mixed = loads[:]
    rng.shuffle(mixed)

    assert find_knees(loads) == find_knees(mixed)
    assert disputed(loads) == disputed(mixed)


@given(RATES, SOCKETS, st.sets(st.integers(1, 100), min_size=6, max_size=20), st.data())
def test_one_disturbed_step_far_below_the_knee_moves_nothing(capacity, sockets, percents, data):
    totals = sorted(percent / 50 * capacity for percent in percents)
    fine = [total for total in totals if total <= capacity]
    if len(fine) < 3:
        return
    loads = on_device(capacity, sockets, totals)
    hit = data.draw(st.integers(0, len(fine) - 3))

    disturbed = [*loads[:hit], paced(sockets, totals[hit], 9.0), *loads[hit + 1 :]]

    assert find_knees(disturbed) == find_knees(loads)
    assert disputed(disturbed) == ((sockets, totals[hit]),)


@given(RATES, SOCKETS, st.lists(RATES, min_size=1, max_size=20), st.data())
def test_a_step_that_is_measured_again_counts_by_the_better_one(capacity, sockets, totals, data):
    loads = on_device(capacity, sockets, totals)
    again = data.draw(st.sampled_from(loads))

    worse = paced(sockets, again.asked_bytes_per_s, again.run_ratio * 5)

    assert find_knees([*loads, worse]) == find_knees(loads)


def test_unpaced_readers_say_nothing_of_the_knee():
    unpaced = paced(2, 100 * MB, 3.0)

    assert find_knees([type(unpaced)(**{**_fields(unpaced), "asked_bytes_per_s": None})]) == ()


def _fields(load):
    return {name: getattr(load, name) for name in load.__struct_fields__}


@pytest.mark.parametrize(
    ("fine", "degraded", "bound"),
    [(45.0 * MB, 48.0 * MB, 40.0 * MB), (45.0 * MB, None, None), (0.0, 10.0 * MB, None)],
)
def test_the_bound_is_the_papers_part_of_what_all_sockets_had_in_time(fine, degraded, bound):
    knees = [
        Knee(sockets=1, fine_bytes_per_s=200 * MB, degraded_bytes_per_s=210 * MB),
        Knee(sockets=8, fine_bytes_per_s=fine, degraded_bytes_per_s=degraded),
    ]

    found = recommended(knees)

    assert found == (bound if bound is None else pytest.approx(bound))
    assert math.isclose(BOUND_SHARE, 40 / 45)


def test_the_next_step_is_half_way_between_fine_and_degraded():
    knees = find_knees(on_device(50 * MB, 2, [20 * MB, 40 * MB, 80 * MB]))

    assert next_rate(knees, 2, 1e9) == 60 * MB
    assert next_rate(knees, 4, 1e9) is None


def test_while_nothing_was_degraded_the_next_step_asks_for_more_than_the_last():
    knees = find_knees(on_device(50 * MB, 2, [20 * MB]))

    assert next_rate(knees, 2, 1e9) == pytest.approx(28 * MB)
    assert next_rate(knees, 2, 24 * MB) == 24 * MB
    assert next_rate(knees, 2, 20 * MB) is None


@given(RATES, st.lists(RATES, min_size=1, max_size=6, unique=True))
def test_closing_in_halves_what_is_not_known(capacity, totals):
    loads = on_device(capacity, 4, [*totals, 4 * capacity])
    while (total := next_rate(knees := find_knees(loads), 4, 1e12)) is not None:
        (knee,) = knees
        width = knee.degraded_bytes_per_s - knee.fine_bytes_per_s
        loads += on_device(capacity, 4, [total])
        (closer,) = find_knees(loads)
        left = closer.degraded_bytes_per_s - closer.fine_bytes_per_s
        assert left <= width * 0.5 * (1 + 1e-6)
    (knee,) = find_knees(loads)
    assert knee.fine_bytes_per_s <= DEGRADED * capacity * (1 + 1e-9)
    assert DEGRADED * capacity <= knee.degraded_bytes_per_s <= 1.06 * knee.fine_bytes_per_s


def test_a_curve_of_figure_14_is_the_run_time_over_that_on_one_socket():
    loads = [
        paced(1, 10 * MB, 1.25),
        paced(2, 20 * MB, 2.5),
        paced(4, 40 * MB, 1.0),
        paced(1, 30 * MB),
        paced(2, 60 * MB, 3.0),
        paced(4, 77 * MB, 9.0),
    ]

    assert curves(loads) == {10 * MB: {1: 1.0, 2: 2.0, 4: 1.0}, 30 * MB: {1: 1.0, 2: 3.0}}
