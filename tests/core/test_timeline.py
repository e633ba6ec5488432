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


@pytest.fixture
def log(timeline):
    """What was called, and when; ``log.at`` asks for a call that writes a word there."""

    class Log(list):
        def at(self, time_s, word, **options):
            return timeline.call_at(time_s, lambda: self.append((timeline.now_s, word)), **options)

    return Log()


def test_calls_are_made_in_the_order_of_their_times_then_of_asking_late_ones_last(timeline, log):
    log.at(1.0, "late", priority=LATE)
    timeline.call_at(1.0, lambda: log.at(1.0, "c"))
    for time_s, word in ((1.0, "a"), (1.0, "b"), (3.0, "e"), (2.0, "d")):
        log.at(time_s, word)
    timeline.run()

    assert [(1.0, "a"), (1.0, "b"), (1.0, "c"), (1.0, "late"), (2.0, "d"), (3.0, "e")] == log


def test_a_cancelled_call_is_not_made_and_one_that_was_made_may_be_cancelled(timeline, log):
    never, once = log.at(1.0, "never"), log.at(0.0, "once")
    never.cancel()
    never.cancel()
    timeline.run()
    once.cancel()
    timeline.run()

    assert ([(0.0, "once")], 0.0) == (log, timeline.now_s)


def test_a_time_that_has_passed_is_now_and_one_that_is_no_number_is_refused(timeline, log):
    timeline.run_until(5.0)
    log.at(1.0, "now")
    timeline.run()

    assert [(5.0, "now")] == log
    with pytest.raises(ValueError, match="not a number"):
        log.at(math.nan, "never")


def test_run_until_stops_after_the_calls_of_that_time_and_stands_there(timeline, log):
    for time_s in (1.0, 2.0, 2.5):
        log.at(time_s, "")
    stands = []
    for until_s in (2.0, 2.2, 0.5):
        timeline.run_until(until_s)
        stands.append((timeline.now_s, len(log)))

    assert [(2.0, 2), (2.2, 2), (2.2, 2)] == stands


def test_step_makes_one_call(timeline, log):
    log.at(1.0, 1)
    log.at(1.0, 2)

    assert [(True, 1), (True, 2), (False, 2)] == [(timeline.step(), len(log)) for _ in range(3)]


def test_many_cancelled_calls_do_not_pile_up(timeline, log):
    log.at(2e6, "kept")
    for number in range(10_000):
        timeline.call_at(1e6 + number, lambda: None).cancel()

    assert len(timeline._heap) < 200
    timeline.run()
    assert [(2e6, "kept")] == log


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


def test_it_is_free_until_the_next_call_or_the_end_of_the_run_and_not_outside_one(timeline):
    seen = [timeline.free_until_s]

    def look():
        seen.append(timeline.free_until_s)

    timeline.call_at(1.0, look)
    timeline.call_at(2.0, lambda: None).cancel()
    timeline.call_at(3.0, look)
    timeline.run_until(5.0)
    timeline.call_at(6.0, look)
    timeline.run()
    look()

    assert [-math.inf, 3.0, 5.0, math.inf, -math.inf] == seen
