"""The fair link against a plain reference that looks at every flow at every event."""

import math
import random

import pytest
from exploring import tries
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iodaemon.model.fair_link import FairLink
from iodaemon.model.flow import Flow
from iodaemon.model.scaling import constant_scaling, table_scaling

SHRINKING = table_scaling((1.0, 0.9, 0.7, 0.5))


def shares(capacity, flows):
    """Max-min fair shares by weight within the caps, found by filling up; (number, weight, cap)."""
    rates, left = {}, capacity
    waiting = sorted(flows, key=lambda flow: (flow[2] / flow[1], flow[0]))
    weight = sum(flow[1] for flow in waiting)
    for number, own, cap in waiting:
        rates[number] = min(cap, own * left / weight)
        left -= rates[number]
        weight -= own
    return rates


class Reference:
    """The same link, O(n) an event: rates from ``shares``, bytes by adding up."""

    def __init__(self, capacity, scaling):
        self.capacity, self.scaling, self.now_s = capacity, scaling, 0.0
        self.flows, self.left, self.ends = {}, {}, {}

    def rates(self):
        capacity = self.capacity * self.scaling(max(1, len(self.flows)))
        return shares(capacity, [(n, w, c) for n, (w, c) in self.flows.items()])

    def run_to(self, to_s):
        while True:
            rates = self.rates()
            ends = {n: self.now_s + self.left[n] / rate for n, rate in rates.items()}
            next_s = min([*ends.values(), to_s])
            for number, rate in rates.items():
                self.left[number] -= rate * (next_s - self.now_s)
            self.now_s = next_s
            for number, end_s in ends.items():
                if end_s <= next_s:
                    self.ends[number] = next_s
                    self.remove(number)
            if next_s >= to_s:
                return

    def add(self, number, size, weight, cap):
        self.flows[number], self.left[number] = (weight, cap), size

    def remove(self, number):
        self.flows.pop(number, None)
        return self.left.pop(number, None)


class Ours:
    """A fair link, driven likewise."""

    def __init__(self, capacity, scaling):
        self.link = FairLink(capacity, scaling=scaling)
        self.flows, self.ends = {}, {}

    def run_to(self, to_s):
        while self.link.next_s <= to_s:
            self.step()
        self.link.flow_to(to_s)

    def step(self):
        now_s = self.link.next_s
        self.link.flow_to(now_s)
        arrived = self.link.reach()
        assert arrived != [], "next_s is when a flow arrives"
        for flow in arrived:
            self.ends[flow.number] = now_s
            del self.flows[flow.number]
        self.link.settle()

    def add(self, number, size, weight, cap):
        flow = Flow(size, number=number, cap_bytes_per_s=cap, weight=weight)
        self.flows[number] = flow
        self.link.add(flow)
        self.link.settle()

    def remove(self, number):
        flow = self.flows.pop(number, None)
        if flow is not None:
            self.link.remove(flow)
            self.link.settle()
            return flow.left_bytes
        return None


def approx(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


SIZES = st.floats(1.0, 1e4)
CAPS = st.one_of(st.just(math.inf), st.floats(0.5, 50.0), st.sampled_from([5.0, 10.0]))
WEIGHTS = st.one_of(st.just(1.0), st.floats(0.25, 8.0), st.sampled_from([2.0, 16.0]))
COMING = st.tuples(st.floats(0.0, 100.0), SIZES, WEIGHTS, CAPS)
GOING = st.tuples(st.floats(0.0, 200.0), st.integers(0, 30))
SCALINGS = st.sampled_from([constant_scaling, SHRINKING])


def replay(link, coming, going, look=None):
    """Let flows come and go in the order of time; what those that went had left."""
    told, events = {}, []
    for number, (at_s, size, weight, cap) in enumerate(coming):
        events.append((at_s, 0, lambda n=number, a=(size, weight, cap): link.add(n, *a)))
    for at_s, number in going:
        events.append((at_s, 1, lambda n=number: told.setdefault(n, link.remove(n))))
    for at_s, _, happen in sorted(events, key=lambda event: event[:2]):
        link.run_to(at_s)
        happen()
        if look is not None:
            look(link)
    return told


@settings(max_examples=tries(200), deadline=None)
@given(st.lists(COMING, min_size=1, max_size=30), st.lists(GOING, max_size=15), SCALINGS)
@example([(0.0, 10.0, 1.0, 5.0)] * 4, [], constant_scaling)
@example([(0.0, 10.0, 1.0, math.inf), (1.0, 10.0, 1.0, math.inf)], [(1.0, 0)], constant_scaling)
def test_it_agrees_with_looking_at_every_flow(coming, going, scaling):
    ours, reference = Ours(20.0, scaling), Reference(20.0, scaling)

    left = [replay(link, coming, going) for link in (ours, reference)]
    for link in (ours, reference):
        link.run_to(1e9)

    assert approx(reference.ends) == ours.ends
    assert {n: b for n, b in left[0].items() if b is not None} == {
        n: pytest.approx(b, rel=1e-9, abs=1e-6) for n, b in left[1].items() if b is not None
    }


@settings(max_examples=tries(100), deadline=None)
@given(st.lists(COMING, min_size=1, max_size=30), st.lists(GOING, max_size=15), SCALINGS)
def test_the_capacity_is_used_up_within_the_caps_and_never_exceeded(coming, going, scaling):
    def look(ours):
        link, flows = ours.link, list(ours.flows.values())
        capacity = 20.0 * scaling(max(1, len(flows)))
        rates = [link.rate(flow) for flow in flows]
        caps = [flow.pace * flow.weight for flow in flows]

        assert all(rate <= cap * (1 + 1e-9) for rate, cap in zip(rates, caps, strict=True))
        assert sum(rates) <= capacity * (1 + 1e-9)
        assert sum(rates) == approx(min(capacity, sum(caps)))  # work conserving
        assert link.rate_bytes_per_s == approx(sum(rates))
        assert [link.busy_part(flow) for flow in flows] == [
            approx(min(1.0, flow.pace / link.level)) for flow in flows
        ]

    replay(Ours(20.0, scaling), coming, going, look)


# -- by hand ----------------------------------------------------------------------------------


def test_a_table_of_factors_holds_beyond_its_end():
    assert [1.0, 0.9, 0.7, 0.5, 0.5] == [SHRINKING(streams) for streams in (1, 2, 3, 4, 9)]


@pytest.mark.parametrize("factors", [[], [1.0, 0.0]])
def test_a_table_that_stops_the_disk_is_refused(factors):
    with pytest.raises(ValueError, match="at least one factor, each above 0"):
        table_scaling(factors)


@pytest.mark.parametrize(
    ("caps", "shared"),
    [
        ([math.inf] * 3, ([30.0] * 3, 30.0, True)),
        ([40.0, 10.0, math.inf], ([40.0, 10.0, 40.0], 40.0, True)),
        ([20.0, 10.0], ([20.0, 10.0], 80.0, False)),
        ([], ([], 90.0, False)),
    ],
)
def test_the_level_is_what_one_without_a_cap_would_get(caps, shared):
    link = Ours(90.0, constant_scaling)
    for number, cap in enumerate(caps):
        link.add(number, 1.0, 1.0, cap)

    rates = [link.link.rate(flow) for flow in link.flows.values()]
    assert shared == (rates, link.link.level, link.link.is_full)


def test_the_capacity_may_be_changed_from_outside():
    link = Ours(10.0, constant_scaling)
    link.add(0, 30.0, 1.0, math.inf)
    link.run_to(1.0)
    link.link.capacity_bytes_per_s = 5.0
    link.link.settle()
    link.run_to(1e9)

    assert link.ends == {0: 5.0}


def test_an_endless_flow_takes_its_share_and_never_arrives():
    link = Ours(10.0, constant_scaling)
    link.add(0, math.inf, 1.0, math.inf)
    link.add(1, 10.0, 1.0, math.inf)
    link.run_to(100.0)

    assert link.ends == {1: 2.0}
    assert link.link.rate(link.flows[0]) == 10.0
    assert link.link.next_s == math.inf


def test_waiting_is_all_the_time_unless_the_cap_explains_a_part_and_busy_is_the_used_part():
    link, half = Ours(10.0, constant_scaling), Ours(10.0, constant_scaling)
    link.add(0, 100.0, 1.0, math.inf)
    link.add(1, 100.0, 1.0, 2.0)
    half.add(0, 10.0, 1.0, 5.0)
    flows = dict(link.flows)
    link.run_to(4.0)
    half.run_to(10.0)

    assert (4.0, pytest.approx(1.0)) == tuple(link.link.waited(flows[i]) for i in (0, 1))
    assert half.link.busy_s == 1.0


def test_a_hundred_thousand_changes_leave_no_trace_of_rounding():
    rng = random.Random(1)
    link = FairLink(1e13)
    for number in range(3):
        link.add(Flow(1e12, number=number, cap_bytes_per_s=0.1))
    passing = []
    for number in range(50_000):
        passing.append(Flow(1e12, number=number, cap_bytes_per_s=rng.uniform(1e8, 1e9)))
        link.add(passing[-1])
        link.settle()
        if len(passing) > 5:
            link.remove(passing.pop(rng.randrange(5)))
    for flow in passing:
        link.remove(flow)
    link.settle()

    # one sum of 1e9 is right to 1e-7; without adding up anew 1e5 of them would be off by 1e-5
    assert link.rate_bytes_per_s == pytest.approx(0.3, abs=2e-6)
    assert link.demand_bytes_per_s == pytest.approx(0.3, abs=2e-6)
