"""Packs and LPT: their properties, on anything Hypothesis can think of."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.policy.packing import Item, Pack, assign, make_packs

SLOTS = 16
BANDWIDTH = 4.0


@st.composite
def item_lists(draw, largest=12):
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(1, SLOTS),
                st.floats(0.5, 100.0),
                st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
            ),
            max_size=largest,
        )
    )
    return [
        Item(id=number, slots=slots, alone_s=alone_s, volume_bytes=share * BANDWIDTH * alone_s)
        for number, (slots, alone_s, share) in enumerate(rows)
    ]


BOUNDS = st.one_of(st.floats(0.05, 5.0), st.just(math.inf))


def pack(items, bound=1.0, **options):
    return make_packs(
        items, slots=SLOTS, stretch_bound=bound, bandwidth_bytes_per_s=BANDWIDTH, **options
    )


def item(number, slots, alone_s, volume_bytes=0.0):
    return Item(id=number, slots=slots, alone_s=alone_s, volume_bytes=volume_bytes)


def ids(packs):
    return [[item.id for item in pack.items] for pack in packs]


@given(item_lists(), BOUNDS, st.booleans())
def test_every_job_is_in_one_pack(items, bound, fullest_first):
    packed = [i for p in pack(items, bound, fullest_first=fullest_first) for i in p.items]

    assert items == sorted(packed, key=lambda item: item.id)


@given(item_lists(), BOUNDS, st.booleans())
def test_a_pack_never_needs_more_slots_than_there_are(items, bound, fullest_first):
    assert all(p.slots <= SLOTS for p in pack(items, bound, fullest_first=fullest_first))


@given(item_lists(), st.floats(0.05, 5.0), st.booleans())
def test_a_pack_of_several_never_moves_more_than_its_budget(items, bound, fullest_first):
    for made in pack(items, bound, fullest_first=fullest_first):
        if len(made.items) > 1:
            assert made.volume_bytes <= bound * BANDWIDTH * made.alone_s * (1 + 1e-9)


@given(item_lists(), BOUNDS)
def test_packs_are_opened_by_decreasing_length(items, bound):
    lengths = [p.alone_s for p in pack(items, bound)]

    assert sorted(lengths, reverse=True) == lengths


@given(item_lists(), st.booleans())
def test_without_a_bound_the_volumes_do_not_matter(items, fullest_first):
    none = [item(i.id, i.slots, i.alone_s) for i in items]

    assert ids(pack(none, 1.0, fullest_first=fullest_first)) == ids(
        pack(items, math.inf, fullest_first=fullest_first)
    )


@given(item_lists(), BOUNDS)
def test_the_order_in_which_jobs_are_given_does_not_matter(items, bound):
    assert pack(items, bound) == pack(items[::-1], bound)


@given(item_lists(), BOUNDS)
def test_there_are_packs_for_all_slots_and_never_more_than_jobs(items, bound):
    made = len(pack(items, bound))

    assert math.ceil(sum(i.slots for i in items) / SLOTS) <= made <= len(items)


@given(item_lists())
def test_a_bound_that_no_volume_reaches_is_first_fit(items):
    moved = sum(i.volume_bytes for i in items)
    shortest_s = min((i.alone_s for i in items), default=1.0)
    enough = max(1.0, 2.0 * moved / (BANDWIDTH * shortest_s))

    assert pack(items, math.inf) == pack(items, enough)


@given(item_lists())
def test_a_bound_that_every_volume_breaks_gives_each_job_its_own_pack(items):
    moving = [i for i in items if i.volume_bytes > 0.0]
    least = min((i.volume_bytes / (BANDWIDTH * i.alone_s) for i in moving), default=1.0)
    longest_s = max((i.alone_s for i in moving), default=1.0)
    shortest_s = min((i.alone_s for i in moving), default=1.0)

    assert len(moving) == len(pack(moving, least * shortest_s / longest_s))


def test_a_looser_bound_may_need_more_packs():
    """Packs(S) non-increasing in S, as one would think, does not hold: first fit has anomalies.

    With S = 0.3 the job of 9 s opens a pack of its own, which leaves room where the two short ones
    need it; with S = 0.5 it joins the first pack, and each of the others needs a new one.
    """
    jobs = [item(2, 1, 10.0, 4.0), item(0, 12, 9.0, 10.8), item(3, 10, 2.0, 4.0)]
    jobs.append(item(1, 4, 1.0, 0.4))

    assert [[2, 3, 1], [0]] == ids(pack(jobs, 0.3))
    assert [[2, 0], [3], [1]] == ids(pack(jobs, 0.5))


def test_a_job_alone_may_move_any_volume():
    assert [[0]] == ids(pack([item(0, 1, 10.0, volume_bytes=1e9)]))


def test_the_fullest_pack_is_filled_first():
    jobs = [
        item(0, 10, 100.0, 200.0),
        item(1, 12, 90.0, 200.0),
        item(2, 3, 80.0),
    ]

    assert [[0], [1, 2]] == ids(pack(jobs))
    assert [[0, 2], [1]] == ids(pack(jobs, fullest_first=False))


def test_a_volume_that_fits_exactly_fits():
    jobs = [item(0, 1, 100.0, 300.0), item(1, 1, 50.0, 100.0), item(2, 1, 50.0, 1.0)]

    assert [[0, 1], [2]] == ids(pack(jobs))


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 7))
def test_a_volume_that_fits_exactly_fits_whatever_the_rounding(percent, bandwidth, jobs):
    """By equation 4 in whole numbers: equal is not too much, one part in a thousand more is."""

    def made(volume_bytes):
        return make_packs(
            [item(number, 1, 100.0, volume_bytes) for number in range(jobs + 1)],
            slots=SLOTS,
            stretch_bound=percent / 100.0,
            bandwidth_bytes_per_s=float(bandwidth),
        )

    share = percent * bandwidth / (jobs + 1)  # percent / 100 * bandwidth * 100 s, divided

    assert 1 == len(made(share))
    assert 2 == len(made(share * 1.001))


def test_a_job_larger_than_a_partition_is_refused_by_name():
    with pytest.raises(ValueError, match=r"job 7: needs 17 slots, a pack has 16"):
        pack([item(7, 17, 1.0)])


def test_an_empty_pack_is_nothing():
    made = Pack(items=())

    assert (0, 0.0, 0.0) == (made.slots, made.alone_s, made.volume_bytes)


# -- LPT -------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 50).map(float), max_size=9)


def loads(lengths, chosen, bins):
    return [
        sum(length for length, bin_ in zip(lengths, chosen, strict=True) if bin_ == b)
        for b in range(bins)
    ]


def test_the_longest_goes_to_the_bin_that_is_free_first():
    assert (1, 0, 1, 0) == assign([4.0, 5.0, 3.0, 3.0], 2)


def test_equal_lengths_go_by_index_and_equal_loads_to_the_smaller_bin():
    assert (0, 1, 2, 0) == assign([2.0, 2.0, 2.0, 2.0], 3)


@given(LENGTHS, st.integers(1, 4))
def test_lpt_places_each_pack_where_it_ends_first(lengths, bins):
    chosen = assign(lengths, bins)
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    so_far = [0.0] * bins
    for index in order:
        assert so_far[chosen[index]] == min(so_far)

        so_far[chosen[index]] += lengths[index]


@given(LENGTHS, st.integers(1, 4))
def test_lpt_is_within_grahams_bound_of_the_best(lengths, bins):
    """4/3 - 1/(3m) of the optimum, which is at least the mean load and the longest pack."""
    best = optimum(sorted(lengths, reverse=True), [0.0] * bins)

    assert (
        max(loads(lengths, assign(lengths, bins), bins)) <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9
    )


def optimum(lengths, so_far):
    """The least possible largest load, by trying all."""
    if not lengths:
        return max(so_far)
    found = math.inf
    for number in {load: number for number, load in enumerate(so_far)}.values():
        tried = list(so_far)
        tried[number] += lengths[0]
        found = min(found, optimum(lengths[1:], tried))
    return found
