"""The eight list orders, on what they are meant for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.policy.list_order import CHANGING, ORDERS

SECONDS = st.floats(0.0, 1e6)
JOB = {
    "now_s": 100.0,
    "requested_s": 90.0,
    "phase_s": 5.0,
    "remaining_s": 50.0,
    "io_done_s": 20.0,
    "elapsed_s": 100.0,
    "ideal_done_s": 60.0,
    "job": 1,
}
PREFERRED = {
    "lowest_id": {"job": 0},
    "longest_io": {"phase_s": 6.0},
    "shortest_io": {"phase_s": 4.0},
    "shortest_remaining": {"remaining_s": 49.0},
    "longest_remaining": {"remaining_s": 51.0},
    "fifo": {"requested_s": 89.0},
    "bandwidth_oriented": {"io_done_s": 19.0},
    "stretch_oriented": {"ideal_done_s": 59.0},
}
"""What makes a job come before JOB, order by order, as the paper has them."""


def key(name, **changed):
    return ORDERS[name](*(JOB | changed).values())


def test_the_eight_orders_of_the_paper_are_there_in_its_order():
    assert list(PREFERRED) == list(ORDERS)
    assert ORDERS.keys() > CHANGING


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_prefers_what_the_paper_says_and_looks_at_nothing_else(name):
    function, preferred = ORDERS[name], PREFERRED[name]
    others = JOB.keys() - preferred.keys() - ({"elapsed_s"} if name in CHANGING else set())

    assert name == function.__name__
    assert tuple(JOB) == function.__code__.co_varnames[: function.__code__.co_argcount]
    assert key(name, **preferred) < key(name)
    assert {key(name)} == {key(name, **{number: 7}) for number in others}


@pytest.mark.parametrize(
    ("name", "younger", "older"),
    [
        ("bandwidth_oriented", {"io_done_s": 3.0}, {"io_done_s": 20.0}),  # .30 .20, .0030 .0182
        ("stretch_oriented", {"ideal_done_s": 8.0}, {"ideal_done_s": 60.0}),  # 1.25 1.67, 126 18
    ],
)
def test_with_a_changing_order_two_that_wait_change_places_in_time(name, younger, older):
    def younger_first(later_s):
        first = key(name, elapsed_s=10.0 + later_s, **younger)
        return first < key(name, elapsed_s=100.0 + later_s, **older)

    assert name in CHANGING
    assert younger_first(0.0) != younger_first(1000.0)


@given(st.sampled_from(sorted(ORDERS)), st.tuples(*[SECONDS] * 7), st.integers(0, 10_000))
def test_a_key_is_a_number_whatever_a_job_has_done(name, numbers, job):
    assert not math.isnan(ORDERS[name](*numbers, job))


def test_a_job_that_has_got_nothing_yet_goes_first_by_stretch_once_it_waits():
    assert -1.0 == key("stretch_oriented", elapsed_s=0.0, ideal_done_s=0.0)
    assert key("stretch_oriented", elapsed_s=1.0, ideal_done_s=0.0) == -math.inf
