"""Programs with a rate, on a clock that stands still for none of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.kernels import builtin as kernel

BLOCK = 4096


class Clock:
    """Goes on by sleeping, and by what each block takes."""

    def __init__(self, took_s):
        self.now_s = 100.0
        self._took_s = iter(took_s)

    def monotonic(self):
        return self.now_s

    def sleep(self, wait_s):
        self.now_s += wait_s

    def work(self):
        self.now_s += next(self._took_s)


def timed(took_s, rate):
    """When each block of the kernels begins, from the first, s."""
    clock = Clock(took_s)
    begun_s = []
    real, kernel.time = kernel.time, clock
    try:
        for _ in kernel.steps(len(took_s) * BLOCK, BLOCK, rate):
            begun_s.append(clock.now_s - 100.0)
            clock.work()
    finally:
        kernel.time = real
    return begun_s


def test_blocks_come_at_the_rate():
    assert pytest.approx([0.0, 0.5, 1.0, 1.5]) == timed([0.1] * 4, 2.0 * BLOCK)


def test_a_block_that_takes_a_little_longer_is_caught_up():
    assert pytest.approx([0.0, 0.7, 1.0, 1.5]) == timed([0.7, 0.1, 0.1, 0.1], 2.0 * BLOCK)


def test_of_large_blocks_no_suspension_is_made_good_either():
    assert pytest.approx([0.0, 3.0, 4.0, 5.0]) == timed([3.0, 0.1, 0.1, 0.1], 1.0 * BLOCK)
    assert pytest.approx([0.0, 1.3, 2.3, 3.3]) == timed([1.3, 0.1, 0.1, 0.1], 1.0 * BLOCK)


def test_time_in_which_a_kernel_stood_still_is_lost():
    assert pytest.approx([0.0, 3.0, 3.5, 4.0]) == timed([3.0, 0.1, 0.1, 0.1], 2.0 * BLOCK)


def test_who_is_woken_late_on_a_busy_cpu_keeps_a_high_rate():
    begun_s = timed([0.04] + [0.0] * 99, 1000.0 * BLOCK)

    assert pytest.approx(0.099) == begun_s[-1]


@given(
    st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30),
    st.floats(0.5, 1000.0),
)
def test_a_rate_is_never_passed_by_more_than_a_few_blocks(took_s, per_s):
    begun_s = timed(took_s, per_s * BLOCK)

    slack_s = max(0.05, 2.0 / per_s)
    for first, begin_s in enumerate(begun_s):
        for last in range(first, len(begun_s)):
            assert begun_s[last] - begin_s >= (last - first) / per_s - slack_s - 1e-6
