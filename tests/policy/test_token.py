"""Claims in order, devices handed out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.job import JobId
from iodaemon.core.platform import DeviceId
from iodaemon.policy.list_order import ORDERS
from iodaemon.policy.regulation.exclusive import Claim, hand_out, rank

A, B = DeviceId("sda"), DeviceId("sdb")


def claim(job_id, *devices, asked=0.0, **known):
    return Claim(job_id=JobId(job_id), devices=devices or (A,), requested_s=asked, **known)


def ids(claims):
    return [each.job_id for each in claims]


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "known", "first"),
    [
        ("lowest_id", [{}, {}], 1),
        ("fifo", [{"asked": 2.0}, {"asked": 1.0}], 2),
        ("longest_io", [{"phase_s": 1.0}, {"phase_s": 2.0}], 2),
        ("shortest_io", [{"phase_s": 1.0}, {"phase_s": 2.0}], 1),
        ("shortest_remaining", [{"remaining_s": 9.0}, {"remaining_s": 2.0}], 2),
        ("longest_remaining", [{"remaining_s": 9.0}, {"remaining_s": 2.0}], 1),
        ("bandwidth_oriented", [{"io_done_s": 5.0}, {"io_done_s": 1.0}], 2),
        ("stretch_oriented", [{"ideal_done_s": 5.0}, {"ideal_done_s": 1.0}], 2),
    ],
)
def test_each_order_puts_its_own_first(order, known, first):
    claims = [claim(i, elapsed_s=10.0, **each) for i, each in enumerate(known, start=1)]

    assert first == rank(claims, order, 20.0)[0].job_id


def test_every_order_is_tried_above():
    assert len(ORDERS) == 8


@pytest.mark.parametrize(
    ("order", "fact"),
    [
        ("longest_io", "phase_s"),
        ("shortest_io", "phase_s"),
        ("shortest_remaining", "remaining_s"),
        ("longest_remaining", "remaining_s"),
        ("stretch_oriented", "ideal_done_s"),
    ],
)
def test_of_whom_too_little_is_known_comes_last_as_it_asked(order, fact):
    claims = [claim(1, asked=2.0), claim(2, asked=1.0), claim(3, asked=9.0, **{fact: 5.0})]

    assert [3, 2, 1] == ids(rank(claims, order, 20.0))


def test_equal_keys_go_by_request_then_by_id():
    claims = [claim(3, asked=1.0, phase_s=1.0), claim(2, asked=1.0, phase_s=1.0)]
    claims += [claim(1, asked=5.0, phase_s=1.0)]

    assert [2, 3, 1] == ids(rank(claims, "shortest_io", 9.0))


# -- devices ---------------------------------------------------------------------------------------


def test_a_free_device_goes_to_the_first():
    handed = hand_out({}, [claim(2), claim(1)])

    assert (2,) == handed.winners
    assert {1: 2} == handed.behind
    assert {1: 0} == handed.places


def test_a_device_that_is_taken_goes_to_nobody():
    handed = hand_out({A: JobId(7)}, [claim(2), claim(1)])

    assert () == handed.winners
    assert {2: 7, 1: 7} == handed.behind
    assert {2: 0, 1: 1} == handed.places


def test_different_devices_are_had_at_the_same_time():
    assert (1, 2) == hand_out({}, [claim(1, A), claim(2, B)]).winners


def test_who_needs_both_is_not_overtaken_on_the_one_that_is_free():
    handed = hand_out({A: JobId(7)}, [claim(1, A, B), claim(2, B)])

    assert () == handed.winners
    assert {1: 7, 2: 1} == handed.behind


CLAIMS = st.lists(
    st.builds(
        lambda devices, asked, phase: (devices, asked, phase),
        st.sets(st.sampled_from([A, B, DeviceId("sdc")]), min_size=1).map(sorted),
        st.floats(0, 100),
        st.none() | st.floats(0, 100),
    ),
    max_size=12,
).map(
    lambda rows: [
        claim(i, *devices, asked=asked, phase_s=phase)
        for i, (devices, asked, phase) in enumerate(rows, start=1)
    ]
)


@given(claims=CLAIMS, order=st.sampled_from(sorted(ORDERS)), taken=st.sets(st.sampled_from([A, B])))
def test_each_device_has_one_holder_and_none_is_free_for_nothing(claims, order, taken):
    holders = dict.fromkeys(taken, JobId(99))
    ranked = rank(claims, order, 100.0)
    handed = hand_out(holders, ranked)
    by_id = {each.job_id: each for each in claims}
    had = [device for winner in handed.winners for device in by_id[winner].devices]

    assert len(had) == len(set(had))
    assert taken.isdisjoint(had)
    assert sorted(by_id) == sorted([*handed.winners, *handed.behind])
    if ranked and not taken:
        assert ranked[0].job_id == handed.winners[0]
    for job_id in handed.behind:
        before = ids(ranked)[: ids(ranked).index(job_id)]
        wanted = {device for other in before for device in by_id[other].devices}
        assert not wanted.union(taken).isdisjoint(by_id[job_id].devices)


@given(claims=CLAIMS)
def test_in_order_of_asking_whoever_asked_before_all_others_is_first(claims):
    ranked = rank(claims, "fifo", math.inf)

    assert ranked == sorted(claims, key=lambda each: (each.requested_s, each.job_id))
