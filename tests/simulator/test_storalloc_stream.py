"""Streams to the disks of a node, by hand and max-min fair."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.job import DiskId
from iodaemon.simulator.storalloc_feedback import Pool, Stream

A, B = DiskId("a"), DiskId("b")


def stream(disk, pace, *, full=10.0, weight=1):
    return Stream(None, disk, pace_bytes_per_s=pace, weight=weight, full_s=full)


def pool(*streams, a=10.0, b=10.0, link=100.0):
    made = Pool({A: a, B: b}, link)
    made.advance(0.0)
    made.add(streams)
    made.settle()
    return made


def test_a_stream_with_its_pace_ends_exactly_when_it_was_to():
    alone = stream(A, 10.0, full=0.1 + 0.2)

    assert 0.1 + 0.2 == pool(alone).next_s


def test_what_the_slow_one_leaves_is_shared_by_the_others_by_weight():
    """Of 10: 1 to the slow one, then 3 and 6 by weight."""
    slow, one, two = stream(A, 1.0), stream(A, 9.0), stream(A, 9.0, weight=2)
    pool(slow, one, two)

    assert [1.0, 3.0 / 9.0, 6.0 / 9.0] == [slow.speed, one.speed, two.speed]


def test_the_link_holds_back_what_no_disk_does():
    """Of 12: disk b is full at 2, the stream on a gets what is left of the link."""
    on_a, on_b = stream(A, 20.0), stream(B, 20.0)
    pool(on_a, on_b, a=100.0, b=2.0, link=12.0)

    assert pytest.approx([0.5, 0.1]) == [on_a.speed, on_b.speed]


def test_work_that_was_lost_moves_the_end_and_what_comes_after_is_at_full_speed():
    """Both at half speed until the shorter one is done, 20 s; the other has lost 10 s by then."""
    short, long = stream(A, 10.0, full=10.0), stream(A, 10.0, full=30.0)
    shared = pool(short, long)

    assert (20.0, True) == (shared.next_s, shared.is_contended)
    shared.advance(15.0)
    assert pytest.approx(37.5) == shared.full_s(long, 15.0)
    shared.advance(20.0)
    assert [short] == shared.take_ended()
    shared.settle()
    assert (40.0, False, 1.0) == (shared.next_s, shared.is_contended, long.speed)


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.integers(1, 50), st.integers(1, 4)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_sharing_is_max_min_fair(wants, a, b, link):
    """Nobody can get more but from one who has no more by weight, on a full disk or link."""
    streams = [stream(disk, float(pace), weight=weight) for disk, pace, weight in wants]
    pool(*streams, a=float(a), b=float(b), link=float(link))
    rates = {each: each.speed * each.pace_bytes_per_s for each in streams}
    through = {name: [s for s in streams if s.disk == name] for name in (A, B)}
    through[None] = streams
    sizes = {A: a, B: b, None: link}
    full = {n: sum(rates[s] for s in ss) >= sizes[n] * (1 - 1e-9) for n, ss in through.items()}

    assert all(0.0 < each.speed <= 1.0 for each in streams)
    assert all(
        sum(rates[s] for s in ss) <= sizes[name] * (1 + 1e-9) for name, ss in through.items()
    )
    for each in streams:
        if each.speed < 1.0 - 1e-9:
            level = rates[each] / each.weight
            most = [
                max(rates[s] / s.weight for s in through[name])
                for name in (each.disk, None)
                if full[name]
            ]
            assert any(level >= other - 1e-9 * other for other in most)
