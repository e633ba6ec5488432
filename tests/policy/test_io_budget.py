"""A budget of bandwidth: what fits it, what waits for it, and what is promised of it."""

import msgspec
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import (
    MB,
    NOW_S,
    SOCKETS,
    WIDE,
    WORKLOADS,
    Promises,
    Scene,
    platform,
    queued,
    run,
    running,
    started,
    submissions,
    writers,
)

from iodaemon.policy.admission import easy
from iodaemon.policy.admission.easy import Rule
from iodaemon.policy.headroom import ALONE_SHARE

LIMIT = 100.0 * MB


def decide(scene, **parameters):
    plan, _ = Rule(bandwidth_bytes_per_s=LIMIT, **parameters).decide(scene.view(), None)
    return plan


def using(rate, *jobs, left_s=300.0, cpus=1, slots=8):
    """Job 1 does so much; these wait."""
    scene = running(Scene(platform(slots)), 1, cpus=cpus, rate=rate, left_s=left_s)
    return scene.queue(*jobs)


def test_the_head_is_promised_bandwidth_by_the_walltimes_of_those_that_use_it():
    waiting = queued(2, rate=40 * MB), queued(3, rate=20 * MB), queued(4, rate=20 * MB)
    plan = decide(using(80 * MB, *waiting))

    assert ({2: NOW_S + 300.0}, [3]) == (plan.reservations, started(plan))
    assert plan.starts[0].why.text == (
        "fits beside job 2, which waits for the storage, promised in 5 min: takes nothing that one "
        "needs; passes 1 earlier job"
    )


HEAD = queued(2, rate=90 * MB)
COMPUTING = [queued(i, rate=0.0) for i in (3, 4)]
WAITING = {
    "up to its end": (using(LIMIT / 3, *(queued(i, rate=LIMIT / 3) for i in (2, 3))), [2, 3]),
    "runs past the promise": (using(80 * MB, HEAD, queued(3, rate=20 * MB, walltime_s=900.0)), []),
    "ends in time": (using(80 * MB, HEAD, queued(3, rate=20 * MB, walltime_s=300.0)), [3]),
    "unknown, and the head waits for slots": (
        using(80 * MB, queued(2, cpus=3, rate=0.0), queued(3), queued(4), cpus=2, slots=4),
        [3],
    ),
    "the slots of the head are kept": (
        using(
            *(80 * MB, queued(2, cpus=2, rate=40 * MB), queued(6), *COMPUTING, queued(5, rate=MB)),
            left_s=None,
            slots=4,
        ),
        [3],
    ),
    "what is not known counts nothing": (
        using(None, queued(2, rate=LIMIT), queued(3), left_s=None),
        [2, 3],
    ),
    "above the budget it runs as good as alone": (
        using(20 * MB, queued(2, rate=200 * MB), left_s=None),
        [2],
    ),
}


@pytest.mark.parametrize(("scene", "starts"), WAITING.values(), ids=WAITING)
def test_those_start_who_leave_the_head_its_bandwidth(scene, starts):
    assert starts == started(decide(scene))


def test_a_job_above_the_budget_is_told_when_it_runs():
    assert decide(using(25 * MB, queued(2, rate=200 * MB), left_s=None)).reasons[2].text == (
        "does 200.0 MB/s, above the budget of 100.0 MB/s: runs when others do next to no I/O; now "
        "they do 25.0 MB/s"
    )


def test_of_whose_io_nothing_is_known_passes_a_head_that_does_io_only_if_it_ends_in_time():
    unknown = [queued(3), queued(4, walltime_s=301.0), queued(5, walltime_s=300.0)]
    view = using(80 * MB, queued(2, rate=40 * MB), *unknown, queued(6, rate=0.0)).view()
    rule = Rule(bandwidth_bytes_per_s=LIMIT)

    assert [5, 6] == started(rule.decide(view, None)[0])
    assert [
        "waits behind job 2, which waits for the storage, promised in 5 min; nothing is known of "
        f"its I/O (--io-rate), so it has to end in time; {own} is its walltime"
        for own in ("none (--time)", "5 min")
    ] == [rule.explain(view, job, None) for job in unknown[:2]]


@given(WORKLOADS, SOCKETS, st.sampled_from([20 * MB, 60 * MB]))
@settings(max_examples=tries(60), deadline=None)
def test_who_passes_a_promise_of_bandwidth_puts_nothing_off(workload, sockets, limit):
    """With samples: what is measured of those that told nothing counts as soon as it is."""
    jobs = writers(workload, max(sockets))
    promised = {}  # by whom, when that was said, and for when

    def watch(state, plan):
        state.check()
        now_s = max(job.since_s for job in state.jobs.values())
        for job_id, at_s in state.reservations.items():
            promised.setdefault(job_id, (now_s, at_s))

    rule = Rule(bandwidth_bytes_per_s=limit)
    done = run(rule, platform(*sockets), jobs, watch, model=WIDE, sampling=True).jobs

    silent = [job for job in done if job.spec.io_rate_bytes_per_s is None]
    for job in done:
        if job.id not in promised or not job.spec.io_rate_bytes_per_s:
            continue
        said_s, at_s = promised[job.id]
        if any(other.started_s <= said_s < other.ended_s for other in silent):
            continue  # what ran before and told nothing may put it off
        assert job.started_s <= at_s + 1e-6


def test_bursts_count_where_that_is_asked_for():
    jobs = [queued(1, rate=60 * MB, io_share=0.1), queued(2, rate=60 * MB, io_share=0.1)]
    jobs.append(queued(3, rate=0.0))

    plans = [decide(Scene(platform(8)).queue(*jobs), demand=how) for how in ("mean", "burst")]

    assert [[1, 2, 3], [1, 3]] == [started(plan) for plan in plans]


def test_the_devices_are_the_budget_where_none_is_given():
    machine = platform(4)
    [device] = machine.devices
    known = msgspec.structs.replace(
        machine, devices=(msgspec.structs.replace(device, capacity_bytes_per_s=LIMIT),)
    )
    jobs = [queued(i, rate=60 * MB) for i in (1, 2)]

    plans = [
        Rule(demand="mean").decide(Scene(m).queue(*jobs).view(), None)[0] for m in (machine, known)
    ]

    assert [[1, 2], [1]] == [started(plan) for plan in plans]
    assert "set [admission] bandwidth" in Rule(demand="mean").caution(machine)
    assert Rule(demand="mean").caution(known) is None


@given(WORKLOADS, SOCKETS, st.sampled_from([20 * MB, 60 * MB, 200 * MB]))
@settings(max_examples=tries(200))
def test_promises_are_kept_and_the_budget_is(workload, sockets, limit):
    promises = Promises()

    def watch(state, plan):
        promises(state, plan)
        rates = [job.spec.io_rate_bytes_per_s or 0.0 for job in state.live]
        used, most = sum(rates), max(rates, default=0.0)
        alone = most > limit and used - most <= ALONE_SHARE * most
        assert alone or used <= limit * 1.001

    rule = Rule(bandwidth_bytes_per_s=limit)
    result = run(rule, platform(*sockets), submissions(workload, max(sockets)), watch)

    assert len(result.finished) == len(workload)


@given(WORKLOADS, SOCKETS)
def test_without_any_bandwidth_it_is_easy(workload, sockets):
    jobs = submissions(workload, max(sockets))

    runs = [run(rule, platform(*sockets), jobs).jobs for rule in (Rule(demand="mean"), easy.Rule())]

    assert runs[0] == runs[1]
