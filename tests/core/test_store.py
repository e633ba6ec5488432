"""Room in stores: never more than there is, by hand and against counting at every time."""

import math

import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.model.store import NoSpace, Store

INF = math.inf


def test_free_is_what_is_not_held_over_an_interval_whose_end_does_not_count():
    store = Store(100)
    store.reserve("a", 60, 10.0, 20.0)
    store.reserve("b", 40, 15.0)

    times = (0.0, 10.0, 15.0, 20.0, 1e9)
    assert [100, 40, 0, 60, 60] == [store.free(at_s) for at_s in times]
    assert [100, 40] == [store.free(0.0, 10.0), store.free(0.0, 10.5)]


def test_more_than_there_is_is_refused_and_nothing_is_held_by_it():
    store = Store(100)
    store.reserve("a", 60, 10.0, 20.0)

    with pytest.raises(NoSpace, match="needs 41 bytes of room, 40 are free"):
        store.reserve("b", 41, 0.0, 11.0)

    assert store.free(0.0, INF) == 40
    store.reserve("b", 41, 0.0, 10.0)


@pytest.mark.parametrize(("released_s", "free"), [(15.0, [40, 100]), (0.0, [100, 100])])
def test_what_is_released_is_free_from_then_on_and_before_its_start_altogether(released_s, free):
    store = Store(100)
    store.reserve("a", 60, 10.0)
    store.release("a", released_s)
    store.release("a", 16.0)
    store.release("nobody", 0.0)

    assert free == [store.free(at_s) for at_s in (10.0, 15.0)]
    store.reserve("a", 100, 15.0)


@pytest.mark.parametrize(
    "call", [("a", 1, 0.0, 1.0), ("b", -1, 0.0, 1.0), ("b", 1, 1.0, 1.0), ("b", 1, math.nan, 2.0)]
)
def test_a_reservation_that_makes_no_sense_is_refused(call):
    store = Store(100)
    store.reserve("a", 1, 0.0)

    with pytest.raises(ValueError):  # noqa: PT011 - the arguments are the reason
        store.reserve(*call)


SPANS = st.tuples(st.integers(0, 100), st.integers(0, 30), st.integers(1, 30))
ACTS = st.one_of(SPANS, st.tuples(st.integers(0, 20), st.integers(0, 60)))


@settings(max_examples=tries(200), deadline=None)
@given(st.lists(ACTS, max_size=40))
def test_it_agrees_with_counting_at_every_time(acts):
    store, used, held = Store(100), [0] * 61, {}
    for key, act in enumerate(acts):
        if len(act) == 2:
            number, at_s = act
            store.release(number, at_s)
            size, first, last = held.pop(number, (0, 0, 0))
            for time in range(max(first, at_s), last):
                used[time] -= size
            continue
        size, first, length = act
        last = first + length
        fits = max(used[first:last]) + size <= 100
        try:
            store.reserve(key, size, first, last)
        except NoSpace:
            assert not fits
            continue
        assert fits
        held[key] = (size, first, last)
        for time in range(first, last):
            used[time] += size

    assert [100 - each for each in used] == [store.free(time) for time in range(61)]
    assert 100 - max(used[7:23]) == store.free(7.0, 23.0)
