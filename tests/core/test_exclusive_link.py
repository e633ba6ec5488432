"""One job at a time over a link: whom it serves, when, and what a suspension does."""

import itertools

import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Sim, approx

from iodaemon.core import event as ev
from iodaemon.core.decision import Kill, Resume, Suspend
from iodaemon.model.node import (
    Compute,
    LinkSpec,
    Model,
    Profile,
    Transfer,
    table_scaling,
)


def sim(*profiles, capacity=1.0, **fields):
    """Jobs 1, 2, ... over one exclusive link."""
    spec = LinkSpec(id="io", capacity_bytes_per_s=capacity, sharing="exclusive", **fields)
    return Sim(model=Model(links=(spec,), disk=None)).start(*profiles)


def phases(*lengths, repeat=1):
    """Compute and transfer by turns, s and bytes."""
    steps = [
        Compute(length) if number % 2 == 0 else Transfer(length, "io")
        for number, length in enumerate(lengths)
    ]
    return Profile(steps=tuple(steps), repeat=repeat)


def longest_io(now_s, requested_s, phase_s, remaining_s, io_done_s, elapsed_s, ideal_done_s, job):
    return -phase_s


def bandwidth(now_s, requested_s, phase_s, remaining_s, io_done_s, elapsed_s, ideal_done_s, job):
    return io_done_s / elapsed_s if elapsed_s > 0.0 else 0.0


def turning(now_s, requested_s, phase_s, remaining_s, io_done_s, elapsed_s, ideal_done_s, job):
    """The larger id first, but until 10 s the smaller one."""
    return job if now_s < 10.0 else -job


HALVED = {"capacity": 4.0, "scaling": table_scaling((0.5,))}
CHANGING = [phases(0.0, 20.0), phases(1.0, 1.0), phases(2.0, 1.0)]
CAPPED = Profile(steps=(Transfer(6.0, "io", 2.0), Transfer(6.0, "io")))
SERVED = {
    "asked whenever it is free": ({"order": turning}, CHANGING, {1: 20, 3: 21, 2: 22}),
    "asked once": ({"order": turning, "order_is_fixed": True}, CHANGING, {1: 20, 2: 21, 3: 22}),
    "under a cap": ({"capacity": 3.0}, [CAPPED], {1: 5}),
    "as one stream": (HALVED, [phases(0.0, 6.0)], {1: 3}),
    "with the cap of a stream": (
        {"capacity": 4.0, "stream_cap_bytes_per_s": 1.0},
        [phases(0.0, 6.0)],
        {1: 6},
    ),
}


@pytest.mark.parametrize(("fields", "profiles", "ends"), SERVED.values(), ids=SERVED)
def test_one_after_the_other_is_served(fields, profiles, ends):
    assert ends == sim(*profiles, **fields).run().ends()


ACTS = {
    "a suspended holder loses it and goes on with the rest later": (
        [phases(0.0, 5.0), phases(1.0, 4.0), phases(3.5, 1.0)],
        [(2.0, Suspend(job_id=1)), (3.0, Resume(job_id=1))],
        {2: 6, 1: 9, 3: 10},
    ),
    "one that waits is passed over and asks anew": (
        [phases(0.0, 5.0), phases(1.0, 4.0), phases(2.0, 1.0)],
        [(3.0, Suspend(job_id=2)), (5.5, Resume(job_id=2))],
        {1: 5, 3: 6, 2: 10},
    ),
    "after a killed holder the next is served at once": (
        [phases(0.0, 5.0), phases(1.0, 4.0)],
        [(2.0, Kill(job_id=1))],
        {1: 2, 2: 6},
    ),
}


@pytest.mark.parametrize(("profiles", "acts", "ends"), ACTS.values(), ids=ACTS)
def test_who_stands_still_is_not_served(profiles, acts, ends):
    run = sim(*profiles)
    for at_s, decision in acts:
        run.at(at_s, decision)

    assert ends == run.run().ends()


def test_the_key_is_given_what_the_contract_says():
    seen = {}

    def record(now_s, requested_s, phase_s, remaining_s, io_done_s, elapsed_s, ideal_done_s, job):
        numbers = (phase_s, remaining_s, io_done_s, elapsed_s, ideal_done_s)
        seen.setdefault(job, []).append((now_s, requested_s, *numbers))
        return requested_s

    run = sim(phases(2.0, 6.0, repeat=2), capacity=2.0, order=record, order_is_fixed=True)
    run.at(1.5).start(phases(1.0, 4.0), first=2).run()

    assert seen == {
        1: [(2.0, 2.0, 3.0, 8.0, 0.0, 2.0, 2.0), (7.0, 7.0, 3.0, 3.0, 3.0, 7.0, 7.0)],
        2: [(2.5, 2.5, 2.0, 2.0, 0.0, 1.0, 1.0)],
    }
    assert run.ends() == {2: 7.0, 1: 10.0}


def test_its_bytes_and_waiting_are_counted():
    sample = sim(phases(0.0, 5.0), phases(1.0, 4.0), capacity=2.0).sample(2.0)

    assert [4, 0] == [sample.jobs[i].written_bytes for i in (1, 2)]
    assert approx([2.0, 1.0]) == [sample.jobs[i].io_stall_s for i in (1, 2)]


LENGTHS = st.integers(1, 20)
PROFILES = st.lists(
    st.builds(lambda a, b, n: phases(a, b, repeat=n), LENGTHS, LENGTHS, st.integers(1, 4)),
    min_size=1,
    max_size=8,
)


def reference(profiles, key):
    """When jobs end, by the rule in words: at each instant the free link takes the first."""
    jobs = [[p.steps[0].seconds, p.steps[1].size_bytes, p.repeat] for p in profiles]
    asks = {n: float(job[0]) for n, job in enumerate(jobs, start=1)}
    free_s, ends = 0.0, {}
    while asks:
        now_s = max(free_s, min(asks.values()))
        waiting = [n for n, at_s in asks.items() if at_s <= now_s]
        first = min(waiting, key=lambda n: (key(jobs[n - 1]), asks[n], n))
        compute, transfer, _ = jobs[first - 1]
        free_s = now_s + transfer
        jobs[first - 1][2] -= 1
        if jobs[first - 1][2]:
            asks[first] = free_s + compute
        else:
            del asks[first]
            ends[first] = free_s
    return ends


def remaining(now_s, requested_s, phase_s, remaining_s, *others):
    return -remaining_s


ORDERS = [
    (None, lambda job: 0.0),
    (longest_io, lambda job: -job[1]),
    (remaining, lambda job: -(job[2] * (job[0] + job[1]) - job[0])),
]


@settings(max_examples=tries(150), deadline=None)
@given(PROFILES, st.sampled_from(ORDERS), st.booleans())
def test_ends_are_those_of_the_rule_in_words(profiles, order, order_is_fixed):
    ours, theirs = order
    run = sim(*profiles, order=ours, order_is_fixed=order_is_fixed).run()

    assert reference(profiles, theirs) == run.ends()


STOPS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 60), st.integers(0, 30)), max_size=8)


@settings(max_examples=tries(100), deadline=None)
@given(PROFILES, STOPS, st.booleans())
def test_it_serves_one_at_a_time_and_every_byte_once(profiles, stops, has_order):
    run = sim(*profiles, order=bandwidth if has_order else None)
    for job_id, from_s, for_s in stops:
        for time_s, decision in ((from_s, Suspend), (from_s + for_s, Resume)):
            run.timeline.call_at(time_s, lambda d=decision, j=job_id: run.node.perform(d(job_id=j)))
    for number in range(1, 60):
        run.timeline.call_at(number * 1.5, run.node.sample)
    run.run()

    moved = {e.job_id: e.io.written_bytes for e in run.said if isinstance(e, ev.JobExited)}
    assert {n: p.repeat * p.steps[1].size_bytes for n, p in enumerate(profiles, start=1)} == moved
    samples = [e.sample for e in run.said if isinstance(e, ev.SampleTaken)]
    for before, after in itertools.pairwise(samples):
        common = before.jobs.keys() & after.jobs.keys()
        gained = [after.jobs[n].written_bytes - before.jobs[n].written_bytes for n in common]
        assert min(gained, default=0) >= 0
        assert sum(gained) <= 1.5 + len(gained)  # capacity 1, whole bytes are told
