"""How much a program suffers: the right value where it is known, nothing where it cannot be."""

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iodaemon.core.sensitivity import MOST, WIDEST, find_sensitivity
from iodaemon.core.work import Work, read_work

MB = 1e6
RATE = 100 * MB
"""What the programs here read or write a second while nobody hinders them."""


def steady(share, waits, *, noise=0.0, writes=False, seed=1, cpu=1.0):
    """Windows of a second of a program that waits for each request: computing and I/O by turns."""
    rng, work = random.Random(seed), Work()
    for wait in waits:
        pace = rng.lognormvariate(0.0, noise) / (1.0 - share + share * wait)
        moved = share * pace * RATE
        done = (cpu * (1.0 - share) * pace, 0.0 if writes else moved, moved if writes else 0.0)
        work.add(1.0, done, wait - 1.0)
    return work


def waits(count, *, low=(1.0, 1.4), high=(2.0, 6.0), seed=2):
    """As many quiet windows as hindered ones."""
    rng = random.Random(seed)
    return [rng.uniform(*(high if number % 2 else low)) for number in range(2 * count)]


def phased(share, *, seed, seconds=400, cycle_s=14.0, wait_of=None):
    """A program that computes for long, then reads for long, in slices of a second."""
    rng, work = random.Random(seed), Work()
    lengths = {"compute": cycle_s * (1.0 - share), "read": cycle_s * share}
    doing, left, wait = "compute", lengths["compute"], 1.0
    for second in range(seconds):
        if second % 11 == 0:
            wait = rng.choice((rng.uniform(1.0, 1.3), rng.uniform(2.0, 6.0)))
        met = wait if wait_of is None else wait_of(doing, wait)
        time_left, computed, read = 1.0, 0.0, 0.0
        while time_left > 1e-9:
            slow = 1.0 if doing == "compute" else met
            spent = min(time_left, left * slow)
            time_left, left = time_left - spent, left - spent / slow
            computed += spent if doing == "compute" else 0.0
            read += 0.0 if doing == "compute" else spent / slow * RATE
            if left <= 1e-9:
                doing = "read" if doing == "compute" else "compute"
                left = lengths[doing]
        work.add(1.0, (computed, read, 0.0), met - 1.0)
    return work


# -- the right value -------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("writes", [False, True])
def test_of_a_program_that_waits_for_its_io_it_is_the_part_of_its_time_in_io(share, writes):
    found = find_sensitivity(steady(share, waits(30), writes=writes))

    assert pytest.approx(share, abs=0.005) == found.value
    assert found.low <= share + 0.005
    assert share - 0.005 <= found.high
    assert (30.0, 30.0) == (found.quiet, found.hindered)
    assert pytest.approx(1.0 + 2.0 * share, abs=0.01) == found.slowdown(3.0)
    assert 1.0 == found.slowdown(0.5)


@given(st.floats(0.0, 0.9), st.floats(0.0, 0.2), st.integers(0, 1000))
def test_noise_moves_it_within_its_interval(share, noise, seed):
    found = find_sensitivity(steady(share, waits(60, seed=seed), noise=noise, seed=seed))

    assert found is not None
    assert found.low - 0.03 <= share <= found.high + 0.03
    assert abs(found.value - share) <= 0.05 + 0.8 * noise


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_a_programs_own_phases_are_not_taken_for_suffering(share, seed):
    found = find_sensitivity(phased(share, seed=seed))

    assert pytest.approx(share, abs=0.05) == found.value
    assert found.low <= share <= found.high


def test_a_slice_in_which_nothing_came_through_is_no_time_that_is_lost():
    even, starved = Work(), Work()
    for work in (even, starved):
        for _ in range(100):
            work.add(1.0, (0.1, 0.9 * RATE, 0.0), 0.0)
    for number in range(100):
        even.add(1.0, (0.05, 0.45 * RATE, 0.0), 2.0)
        starved.add(1.0, (0.1, 0.9 * RATE, 0.0) if number % 2 else (0.0, 1.0, 0.0), 2.0)

    assert find_sensitivity(even).value == pytest.approx(0.5)
    assert find_sensitivity(starved).value == pytest.approx(0.5, abs=0.01)


def test_who_got_on_better_beside_others_is_not_the_surer_that_he_does_not_suffer():
    work = Work()
    for number in range(80):
        pace = 1.0 if number % 2 else 1.3
        work.add(1.0, (pace, 0.0, 0.0), 0.0 if number % 2 else 2.0)

    found = find_sensitivity(work)
    assert (0.0, 0.0) == (found.low, found.value)
    assert 0.01 < found.high < 0.1


# -- not known -------------------------------------------------------------------------------------


def test_without_any_window_it_is_not_known():
    assert find_sensitivity(None) is None
    assert find_sensitivity(Work()) is None


@pytest.mark.parametrize("only", [(1.0, 1.4), (2.0, 6.0)])
def test_without_both_quiet_and_hindered_windows_it_is_not_known(only):
    assert find_sensitivity(steady(0.5, waits(50, low=only, high=only))) is None


def test_a_few_windows_say_nothing():
    assert find_sensitivity(steady(0.5, waits(4))) is None
    assert find_sensitivity(steady(0.5, waits(5))) is not None


def test_where_one_kind_of_work_was_only_ever_done_unhindered_nothing_is_known():
    def only_computing_is_hindered(doing, wait):
        return 1.0 if doing == "read" else wait

    def only_reading_is_hindered(doing, wait):
        return wait + 2.0 if doing == "read" else 1.0

    for wait_of in (only_computing_is_hindered, only_reading_is_hindered):
        work = phased(0.5, seed=1, cycle_s=10.0, wait_of=wait_of)
        if work.quiet.products[1][1] and work.hindered.products[1][1]:
            found = find_sensitivity(work)
            assert found is None or found.low <= 0.5 <= found.high
    work = Work()
    for _ in range(40):
        work.add(1.0, (1.0, 0.0, 0.0), 0.0)
        work.add(1.0, (0.0, 0.3 * RATE, 0.0), 2.0)
    assert find_sensitivity(work) is None


def test_a_program_that_gets_on_too_unevenly_is_not_known():
    assert find_sensitivity(steady(0.9, waits(10), noise=2.0)) is None


def test_a_page_now_and_then_is_no_kind_of_work():
    work = steady(0.0, waits(20))
    work.add(1.0, (1.0, 4096.0, 0.0), 3.0)

    assert find_sensitivity(work).value < 0.01


# -- properties ------------------------------------------------------------------------------------

WORKS = st.lists(
    st.tuples(
        st.floats(0.1, 10.0),
        st.tuples(st.floats(0.0, 8.0), st.floats(0.0, 1e10), st.floats(0.0, 1e10)),
        st.one_of(st.floats(0.0, 0.5), st.floats(1.0, 1e4)),
    ),
    max_size=40,
)


def work_of(windows):
    work = Work()
    for window in windows:
        work.add(*window)
    return work


@given(WORKS)
def test_whatever_was_seen_it_is_bounded_and_within_its_interval_or_not_known(windows):
    found = find_sensitivity(work_of(windows))

    if found is not None:
        assert 0.0 <= found.low <= found.value <= found.high <= MOST
        assert found.high - found.value <= WIDEST * max(1.0, found.value) + 1e-9
        assert min(found.quiet, found.hindered) >= 5.0


@given(WORKS, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_of_all_sums_that_a_record_can_hold_none_is_refused(windows, one, other):
    sums = work_of(windows).sums
    skewed = (str(v * (one if place % 2 else other)) for place, v in enumerate(sums))

    found = find_sensitivity(read_work(" ".join(skewed)))
    assert found is None or 0.0 <= found.value <= MOST


@given(st.floats(0.05, 0.95), st.floats(0.1, 10.0), st.floats(0.01, 100.0), st.integers(0, 100))
def test_a_faster_cpu_and_other_units_change_nothing(share, cpu, bytes_scale, seed):
    base = steady(share, waits(20, seed=seed), noise=0.1, seed=seed)
    scaled = Work()
    rng = random.Random(seed)
    for wait in waits(20, seed=seed):
        pace = rng.lognormvariate(0.0, 0.1) / (1.0 - share + share * wait)
        moved = share * pace * RATE * bytes_scale
        assume(moved > 1e4)
        scaled.add(1.0, (cpu * (1.0 - share) * pace, moved, 0.0), wait - 1.0)

    one, other = find_sensitivity(base), find_sensitivity(scaled)
    assert (one is None) == (other is None)
    if one is not None:
        assert pytest.approx((one.value, one.low, one.high), abs=1e-6) == (
            other.value,
            other.low,
            other.high,
        )


@given(st.floats(0.0, 1.0), st.floats(1.0, 20.0), st.floats(1.0, 2.0), st.floats(0.0, 0.5))
def test_who_loses_more_at_the_same_wait_suffers_more(share, excess, slower, quiet):
    found = []
    for factor in (1.0, slower):
        work = Work()
        for _ in range(20):
            pace = 1.0 / (1.0 + share * quiet)
            work.add(1.0, (0.5 * pace, 50 * MB * pace, 0.0), quiet)
            pace = 1.0 / (factor * (1.0 + share * excess))
            work.add(1.0, (0.5 * pace, 50 * MB * pace, 0.0), excess)
        found.append(find_sensitivity(work))

    assume(found[0] is not None and found[1] is not None)
    assert found[0].value <= found[1].value + 1e-9


@given(WORKS, st.floats(0.01, 1.0))
def test_what_fades_keeps_its_value_and_loses_certainty(windows, weight):
    work = work_of(windows)
    before = find_sensitivity(work)
    work.fade(weight)
    after = find_sensitivity(work)

    if after is not None:
        assert before is not None
        assert pytest.approx(before.value, abs=1e-6) == after.value
        assert after.high >= before.high - 1e-6
        assert after.low <= before.low + 1e-6
