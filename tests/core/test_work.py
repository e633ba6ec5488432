"""What any number of windows come down to."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.work import HINDERED, LENGTH, MOST_EXCESS, MOST_WINDOWS, QUIET, Work, read_work

AMOUNTS = st.floats(0.0, 1e12)
WINDOWS = st.tuples(
    st.floats(0.01, 100.0), st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), st.floats(0.0, 1e6)
)


def work_of(windows):
    work = Work()
    for window in windows:
        work.add(*window)
    return work


def sums(work):
    return pytest.approx(work.sums, rel=1e-6)


def test_a_window_is_of_the_part_that_its_wait_says():
    work = work_of([(2.0, (1.0, 5e6, 0.0), 0.25), (4.0, (1.0, 7e6, 2e6), 3.0)])

    quiet, hindered = work.quiet, work.hindered
    assert (1.0, 2.0, (1.0, 5e6, 0.0)) == (quiet.windows, quiet.seconds, quiet.done)
    assert (1.0, 4.0, (1.0, 7e6, 2e6)) == (hindered.windows, hindered.seconds, hindered.done)
    assert ((0.25, 0.25, 0.0), (3.0, 3.0, 3.0)) == (quiet.excess, hindered.excess)
    assert (0.25, 3.5e6, 1e12) == (
        hindered.products[0][0] / 1.0,
        2.0 * hindered.products[1][0],
        hindered.products[2][2],
    )


@pytest.mark.parametrize("excess", [math.nextafter(QUIET, 9.0), math.nextafter(HINDERED, 0.0)])
def test_a_window_in_between_says_nothing(excess):
    assert "" == work_of([(1.0, (1.0, 1.0, 1.0), excess)]).told()


def test_the_longest_waits_count_as_one_that_is_told():
    assert (MOST_EXCESS,) * 3 == work_of([(1.0, (1.0, 1.0, 1.0), 1e9)]).hindered.excess


def test_of_a_job_that_never_ends_the_newest_windows_count():
    old, new = (1.0, (1.0, 0.0, 0.0), 0.0), (1.0, (0.5, 0.0, 0.0), 0.0)
    work = work_of([old] * int(MOST_WINDOWS) + [new] * (3 * int(MOST_WINDOWS)))

    assert MOST_WINDOWS >= work.windows - 1.0
    assert pytest.approx(0.5, rel=0.2) == work.quiet.done[0] / work.quiet.seconds


@given(st.lists(WINDOWS, max_size=20), st.randoms(use_true_random=False))
def test_the_order_of_windows_and_of_sums_makes_no_difference(windows, rng):
    shuffled = list(windows)
    rng.shuffle(shuffled)
    half = len(windows) // 2
    blended = work_of(windows[half:])
    blended.blend(work_of(windows[:half]))

    assert sums(work_of(windows)) == work_of(shuffled).sums
    assert sums(work_of(windows)) == blended.sums


@given(st.lists(WINDOWS, max_size=20))
def test_what_is_written_down_is_read_again_and_of_one_length(windows):
    work = work_of(windows)
    told = work.told()

    read = read_work(told)
    assert (read is None) == (work.windows == 0.0)
    if read is not None:
        assert sums(work) == read.sums
        assert told == read.told()
        assert LENGTH == len(told.split())


@given(st.lists(WINDOWS, max_size=50))
def test_it_takes_the_same_room_whatever_was_seen(windows):
    assert sys.getsizeof(Work()._sums) == sys.getsizeof(work_of(windows)._sums)


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "1",
        "1 " * LENGTH,
        " ".join(["1"] * (LENGTH + 1)),
        *(" ".join([word] * LENGTH) for word in ("-1", "nan", "inf", "x", "1e999", "")),
    ],
)
def test_what_cannot_have_been_written_down_is_nothing(damaged):
    assert read_work(damaged) is None
