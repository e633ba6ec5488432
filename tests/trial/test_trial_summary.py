"""What rounds say together: by arithmetic that anybody can repeat."""

import itertools

import pytest
from builders import device_counters
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.meter import await_of
from iodaemon.core.platform import DeviceId, LoneTimes, ServiceTimes
from iodaemon.trial.comparing import Policy, order
from iodaemon.trial.latency import (
    Look,
    Uncontended,
    is_contended,
    latency_of,
    slices_of,
    uncontended,
)
from iodaemon.trial.summary import (
    LEAST_ROUNDS,
    MEASURES,
    JobTime,
    Run,
    chance,
    change_of,
    changes,
    complete_rounds,
    job_measures,
)

MAKESPAN = next(measure for measure in MEASURES if measure.key == "makespan_s")
THROUGHPUT = next(measure for measure in MEASURES if measure.key == "throughput_per_s")
seconds = st.floats(0.01, 1e5)
differences = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9)


def run(policy, number, makespan_s=10.0, **values):
    given_values = {
        "throughput_per_s": 1.0 / makespan_s,
        "slowdown": 1.0,
        "average_runtime_s": 5.0,
        "jain": 1.0,
        "suspended_s": 0.0,
        "suspensions": 0,
        "moved_bytes": 0,
        **values,
    }
    return Run(policy=policy, round=number, makespan_s=makespan_s, **given_values)


def rounds_of(base, other):
    pairs = zip(base, other, strict=True)
    return [
        each
        for number, (first, second) in enumerate(pairs, start=1)
        for each in (run("none", number, first), run("dynamic", number, second))
    ]


# -- the chance ------------------------------------------------------------------------------------


@given(differences)
def test_a_chance_is_a_part_and_never_zero(values):
    assert 2.0 / 2 ** len(values) <= chance(values) <= 1.0


@given(differences, st.randoms(use_true_random=False))
def test_the_chance_does_not_depend_on_the_order_of_rounds(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)

    assert chance(values) == pytest.approx(chance(shuffled))


def test_the_chance_is_that_of_counting_all_signs_by_hand():
    values = [3.0, -1.0, 2.0, 0.5]
    sums = [
        abs(sum(sign * value for sign, value in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=4)
    ]

    assert chance(values) == sum(each >= abs(sum(values)) for each in sums) / 16


def test_of_very_many_rounds_a_sample_of_signs_is_tried_the_same_one_every_time():
    values = [0.1 * (-1) ** n + 0.05 for n in range(30)]

    assert chance(values) == chance(values)
    assert chance([1.0] * 30) < 0.001


# -- verdicts --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=LEAST_ROUNDS - 1))
def test_nothing_is_claimed_of_fewer_than_six_rounds(pairs):
    change = change_of(
        MAKESPAN, rounds_of(*zip(*pairs, strict=True)), base="none", policy="dynamic"
    )

    assert change.verdict in ("too few rounds", "same")


@given(st.lists(st.tuples(seconds, seconds), min_size=LEAST_ROUNDS, max_size=9))
def test_better_of_the_one_is_worse_of_the_other(pairs):
    base, other = zip(*pairs, strict=True)
    there = change_of(MAKESPAN, rounds_of(base, other), base="none", policy="dynamic")
    back = change_of(MAKESPAN, rounds_of(other, base), base="none", policy="dynamic")
    turned = {"better": "worse", "worse": "better"}

    assert turned.get(there.verdict, there.verdict) == back.verdict
    assert (there.verdict in turned) == (there.p <= 0.05 and there.verdict != "same")


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=9))
def test_the_median_change_is_within_its_range(pairs):
    change = change_of(
        MAKESPAN, rounds_of(*zip(*pairs, strict=True)), base="none", policy="dynamic"
    )

    assert change.low <= change.ratio <= change.high
    assert change.low == pytest.approx(min(other / base for base, other in pairs))


def test_a_shorter_makespan_is_better_and_a_lower_throughput_is_worse():
    runs = rounds_of([10.0] * 6, [8.0, 8.5, 9.0, 8.2, 8.4, 9.5])
    slower = rounds_of([8.0] * 6, [10.0] * 6)

    assert change_of(MAKESPAN, runs, base="none", policy="dynamic").verdict == "better"
    assert change_of(THROUGHPUT, runs, base="none", policy="dynamic").verdict == "better"
    assert change_of(THROUGHPUT, slower, base="none", policy="dynamic").verdict == "worse"


def test_one_round_against_five_is_within_the_noise():
    runs = rounds_of([10.0] * 6, [9.0, 9.0, 9.0, 9.0, 9.0, 30.0])

    assert change_of(MAKESPAN, runs, base="none", policy="dynamic").verdict == "noise"


def test_where_the_first_has_nothing_there_is_no_ratio_but_a_verdict():
    runs = [
        run(policy, number, suspended_s=value)
        for number in range(1, 7)
        for policy, value in (("none", 0.0), ("dynamic", 3.0))
    ]
    [found] = [each for each in changes(runs, ("none", "dynamic")) if each.measure == "suspended_s"]

    assert (None, "more") == (found.ratio, found.verdict)


def test_what_is_not_known_in_a_round_leaves_that_round_out():
    runs = [
        run(policy, number, waiting_s=None if number == 3 else 0.1)
        for number in range(1, 8)
        for policy in ("none", "dynamic")
    ]
    found = {each.measure: each for each in changes(runs, ("none", "dynamic"))}

    assert (6, "same") == (found["waiting_s"].rounds, found["waiting_s"].verdict)
    assert (0, "unknown") == (found["serving_s"].rounds, found["serving_s"].verdict)


def test_a_round_without_all_policies_is_left_out():
    runs = [run("none", 1), run("dynamic", 1), run("dynamic", 2)]

    assert tuple(runs[:2]) == complete_rounds(runs, ("none", "dynamic"))


# -- one run ---------------------------------------------------------------------------------------


@given(st.lists(seconds, min_size=1, max_size=20), seconds)
def test_jobs_that_take_as_long_as_alone_have_the_slowdown_of_their_number(times, makespan_s):
    jobs = [JobTime(name=str(n), kind=str(n), run_s=each) for n, each in enumerate(times)]
    found = job_measures(jobs, {job.kind: job.run_s for job in jobs}, makespan_s)

    assert found["slowdown"] == pytest.approx(len(times))
    assert found["jain"] == pytest.approx(1.0)
    assert found["throughput_per_s"] == pytest.approx(len(times) / makespan_s)


def test_the_measures_are_those_of_equations_three_to_five():
    jobs = [
        JobTime(name="a", kind="x", run_s=4.0, suspended_s=1.0),
        JobTime(name="b", kind="x", run_s=8.0),
    ]
    found = job_measures(jobs, {"x": 4.0}, 10.0)

    assert (0.2, 1.5, 6.0, 1.0) == (
        found["throughput_per_s"],
        found["slowdown"],
        found["average_runtime_s"],
        found["suspended_s"],
    )
    assert found["jain"] == pytest.approx(1.5**2 / (2 * 1.25))


# -- who comes when --------------------------------------------------------------------------------


@given(st.integers(2, 6), st.integers(1, 40))
def test_every_round_has_every_policy_once(count, rounds):
    policies = [Policy(name=str(n), source=str(n)) for n in range(count)]

    assert all(
        sorted(p.name for p in order(policies, number)) == sorted(p.name for p in policies)
        for number in range(rounds)
    )


def test_three_policies_come_in_all_their_orders():
    policies = [Policy(name=name, source=name) for name in "ABC"]
    orders = {"".join(p.name for p in order(policies, n)) for n in range(6)}

    assert {"".join(each) for each in itertools.permutations("ABC")} == orders


# -- waiting and serving ---------------------------------------------------------------------------

DISK = DeviceId("sda")
MIB_SECTORS = 2048


def looks(*seconds, device=DISK):
    """Of each second: requests, ms of each, ms busy, sectors of each."""
    reads = ms = busy = sectors = 0
    found = [look(0.0, device, reads=0, ms=0, busy=0, sectors=0)]
    for at, (count, each_ms, busy_ms, each_sectors) in enumerate(seconds, start=1):
        reads, ms = reads + count, ms + count * each_ms
        busy, sectors = busy + busy_ms, sectors + count * each_sectors
        found.append(look(float(at), device, reads=reads, ms=ms, busy=busy, sectors=sectors))
    return found


def look(at_s, device, *, reads, ms, busy, sectors):
    counted = {"reads": reads, "read_sectors": sectors, "read_ms": ms, "queue_ms": ms}
    return Look(at_s=at_s, devices={device: device_counters(**counted, busy_ms=busy)})


def test_what_goes_beyond_the_uncontended_time_is_waiting():
    alone, crowded = slices_of(looks((100, 5, 500, 8))), slices_of(looks((100, 45, 990, 8)))
    base_s = uncontended([*alone, *crowded])
    quiet, full = latency_of(alone, base_s), latency_of(crowded, base_s)

    assert (pytest.approx(0.005), pytest.approx(0.0)) == (quiet.serving_s, quiet.waiting_s)
    assert (pytest.approx(0.005), pytest.approx(0.040)) == (full.serving_s, full.waiting_s)
    assert pytest.approx(0.0099) == full.busy_s


READS = LoneTimes(in_order=((4096.0, 0.002),), at_random=((4096.0, 0.006),))
MEASURED = {DISK: ServiceTimes(reads=READS)}
ALONE = {
    # what a request of each second takes alone; what was calibrated bounds what is seen
    "of two readers at once, of one": ([(1000, 2, 900, 8), (50, 8, 400, 8)], {}, [0.008, 0.008]),
    "a few quick ones of many": ([(90, 8, 720, 512), (6, 0, 0, 512)], {}, [0.008, 0.008]),
    "a few of another size": ([(90, 20, 990, 512), (6, 0, 0, 4096)], {}, [0.020]),
    "none of its size was alone: others say it at most": (
        [(50, 8, 400, 64), (100, 90, 990, 32), (100, 90, 990, 256)],
        {},
        [0.008, 0.008, 0.032],
    ),
    "quicker than calibrated": ([(100, 1, 90, 8)], MEASURED, [0.002]),
    "slower than calibrated": ([(100, 20, 990, 8)], MEASURED, [0.006]),
}


@pytest.mark.parametrize(("seconds", "measured", "alone_s"), ALONE.values(), ids=ALONE)
def test_what_a_request_takes_alone(seconds, measured, alone_s):
    slices = slices_of(looks(*seconds))
    base_s = uncontended(slices, measured)

    assert alone_s == [pytest.approx(base_s.time_s(each)) for each in slices[: len(alone_s)]]


def test_before_anything_was_seen_the_calibration_says_what_one_takes_alone():
    [slow] = slices_of(looks((100, 20, 990, 8)))

    assert pytest.approx(0.002) == Uncontended(measured=MEASURED).time_s(slow)


def test_large_requests_are_held_against_large_ones_alone():
    small, large = slices_of(looks((100, 5, 500, 8))), slices_of(looks((50, 20, 990, MIB_SECTORS)))
    base_s = uncontended([*small, *large])

    assert pytest.approx(0.020) == latency_of(large, base_s).serving_s


def test_contention_is_the_part_of_the_time_in_which_requests_take_twice_as_long():
    slices = slices_of(looks((100, 5, 500, 8), (100, 9, 900, 8), (100, 11, 990, 8), (0, 0, 0, 0)))
    base_s = uncontended(slices)

    assert [False, False, True, False] == [is_contended(each, base_s) for each in slices]
    assert pytest.approx(0.25) == latency_of(slices, base_s).contended_ratio


def test_of_two_disks_each_has_its_own_uncontended_time():
    fast, slow = looks((100, 1, 100, 8)), looks((100, 10, 990, 8), device=DeviceId("sdb"))
    both = [
        Look(at_s=a.at_s, devices={**a.devices, **b.devices})
        for a, b in zip(fast, slow, strict=True)
    ]
    slices = slices_of(both)

    assert {0.001, 0.01} == {round(value, 6) for value in uncontended(slices).seen_s.values()}


second = st.tuples(
    st.integers(0, 5000), st.integers(0, 2000), st.integers(0, 1000), st.integers(1, 4096)
)


@given(st.lists(st.lists(second, min_size=1, max_size=6), min_size=1, max_size=4))
def test_waiting_and_serving_are_all_of_the_time_and_neither_is_negative(runs):
    groups = [slices_of(looks(*run)) for run in runs]
    base_s = uncontended(each for group in groups for each in group)

    for group in groups:
        latency = latency_of(group, base_s)
        if latency is not None:
            assert latency.waiting_s >= 0.0
            assert latency.serving_s >= 0.0
            spent_s = sum(await_of(each.load) * each.requests for each in group)
            requests = sum(each.requests for each in group)
            assert latency.waiting_s + latency.serving_s == pytest.approx(spent_s / requests)
            assert 0.0 <= latency.contended_ratio <= 1.0
