"""Virtual time: order, cancelling, never backwards."""

import math

import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.simulator.timeline import LATE, VirtualTimeline


@pytest.fixture
def timeline():
    return VirtualTimeline()


def test_calls_are_made_in_the_order_of_their_times(timeline):
    log = []
    for time_s in (3.0, 1.0, 2.0):
        timeline.call_at(time_s, lambda time_s=time_s: log.append((time_s, timeline.now_s)))

    timeline.run()

    assert log == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_calls_of_one_time_are_made_in_the_order_of_asking_late_ones_last(timeline):
    log = []
    timeline.call_at(1.0, lambda: log.append("late"), priority=LATE)
    timeline.call_at(1.0, lambda: timeline.call_at(1.0, lambda: log.append("c")))
    timeline.call_at(1.0, lambda: log.append("a"))
    timeline.call_at(1.0, lambda: log.append("b"))

    timeline.run()

    assert log == ["a", "b", "c", "late"]


def test_a_cancelled_call_is_not_made(timeline):
    log = []
    call = timeline.call_at(1.0, lambda: log.append("never"))
    call.cancel()
    call.cancel()

    timeline.run()

    assert log == []
    assert timeline.now_s == 0.0


def test_to_cancel_a_call_that_was_made_is_harmless(timeline):
    log = []
    call = timeline.call_at(1.0, lambda: log.append("once"))
    timeline.run()
    call.cancel()
    timeline.run()

    assert log == ["once"]


def test_a_time_that_has_passed_is_now(timeline):
    timeline.run_until(5.0)
    log = []
    timeline.call_at(1.0, lambda: log.append(timeline.now_s))

    timeline.run()

    assert log == [5.0]


def test_a_time_that_is_no_number_is_refused(timeline):
    with pytest.raises(ValueError, match="not a number"):
        timeline.call_at(math.nan, lambda: None)


def test_run_until_stops_after_the_calls_of_that_time_and_stands_there(timeline):
    log = []
    for time_s in (1.0, 2.0, 2.5):
        timeline.call_at(time_s, lambda time_s=time_s: log.append(time_s))

    timeline.run_until(2.0)

    assert log == [1.0, 2.0]
    assert timeline.now_s == 2.0

    timeline.run_until(2.2)

    assert timeline.now_s == 2.2

    timeline.run_until(0.5)

    assert timeline.now_s == 2.2


def test_step_makes_one_call(timeline):
    log = []
    timeline.call_at(1.0, lambda: log.append(1))
    timeline.call_at(1.0, lambda: log.append(2))

    assert timeline.step()
    assert log == [1]
    assert timeline.step()
    assert not timeline.step()


def test_many_cancelled_calls_do_not_pile_up(timeline):
    log = []
    timeline.call_at(2e6, lambda: log.append("kept"))
    for number in range(10_000):
        timeline.call_at(1e6 + number, lambda: None).cancel()

    assert len(timeline._heap) < 200

    timeline.run()

    assert log == ["kept"]


@settings(max_examples=tries(50), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 10.0), st.integers(0, 1), st.booleans(), st.floats(0.0, 3.0)),
        max_size=40,
    )
)
def test_time_never_goes_backwards_and_each_call_is_made_exactly_once(calls):
    timeline = VirtualTimeline()
    log = []
    kept = 0
    for number, (time_s, priority, cancelled, again_s) in enumerate(calls):

        def call(number=number, again_s=again_s):
            log.append((timeline.now_s, number))
            timeline.call_at(timeline.now_s + again_s, lambda: log.append((timeline.now_s, -1)))

        handle = timeline.call_at(time_s, call, priority=priority)
        if cancelled:
            handle.cancel()
        kept += not cancelled

    timeline.run()

    times = [time_s for time_s, _ in log]
    assert sorted(times) == times
    assert 2 * kept == len(log)
    first = [number for _, number in log if number >= 0]
    assert len(set(first)) == len(first)


def test_it_is_free_until_the_next_call_or_the_end_of_the_run_and_not_outside_one():
    timeline = VirtualTimeline()
    seen = []

    def look():
        seen.append(timeline.free_until_s)

    timeline.call_at(1.0, look)
    timeline.call_at(2.0, lambda: None).cancel()
    timeline.call_at(3.0, look)
    before = timeline.free_until_s
    timeline.run_until(5.0)
    timeline.call_at(6.0, look)
    timeline.run()

    assert [before, *seen, timeline.free_until_s] == [-math.inf, 3.0, 5.0, math.inf, -math.inf]
