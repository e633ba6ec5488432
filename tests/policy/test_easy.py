"""EASY backfilling: when there will be room, the head's promise, and who may go before it."""

import math
import re
from pathlib import Path

import pytest
from builders import job
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import (
    MB,
    NOW_S,
    SOCKETS,
    WORKLOADS,
    Promises,
    Scene,
    platform,
    queued,
    run,
    running,
    started,
    submissions,
)

from iodaemon.core.decision import AdmissionPlan
from iodaemon.core.job import JobId, JobSpec, JobState, Prediction, Reason
from iodaemon.core.state import State
from iodaemon.model.node import Compute, LinkSpec, Model, Profile, Transfer
from iodaemon.policy.admission import easy, equilibrio, fcfs
from iodaemon.policy.admission.easy import Rule
from iodaemon.policy.headroom import Budget
from iodaemon.policy.shadow_time import Shadow, expected_end_s, find_shadow

# -- when a job ends -------------------------------------------------------------------------------

RUNNING, STILL = {"state": JobState.RUNNING}, {"state": JobState.SUSPENDED_IO}
STARTING, STOPPING = {"state": JobState.STARTING}, {"state": JobState.STOPPING}
LIMITED = {"walltime_s": 60.0}
SPENT = {"run_s": 20.0, **LIMITED}
KILLED_AT_130, KILLED = {**STOPPING, "kill_at_s": 130.0}, {**STOPPING, "kill_at_s": None}


@pytest.mark.parametrize(
    ("fields", "now_s", "ends_s"),
    [
        ({**RUNNING, **SPENT}, 110.0, 140.0),
        ({**RUNNING, **LIMITED}, 500.0, 500.0),  # it has overrun
        ({**STILL, **SPENT}, 110.0, 150.0),  # suspended time does not count
        ({**STILL, **SPENT}, 1000.0, 1040.0),
        ({**STARTING, **LIMITED}, 110.0, 170.0),
        (RUNNING, 105.0, math.inf),
        (KILLED_AT_130, 105.0, 130.0),
        ({**KILLED_AT_130, "run_s": 50.0, "walltime_s": 1.0}, 105.0, 130.0),
        ({**KILLED, "walltime_s": 900.0}, 105.0, 105.0),
        ({**STOPPING, "kill_at_s": 90.0}, 105.0, 105.0),
    ],
)
def test_a_job_ends_when_its_walltime_is_used_up_or_it_is_killed(fields, now_s, ends_s):
    assert ends_s == expected_end_s(job(1, at_s=100.0, **fields), now_s)


@pytest.mark.parametrize(
    ("ran_s", "ends_s"), [(0.0, 60.0), (59.0, 60.0), (60.0, 120.0), (119.0, 120.0), (500.0, 960.0)]
)
def test_an_estimate_that_ran_out_is_doubled(ran_s, ends_s):
    endless, limited = (job(1, at_s=100.0, walltime_s=limit, **RUNNING) for limit in (None, 70.0))

    assert 100.0 + ends_s == expected_end_s(endless, 100.0 + ran_s, typical_s=60.0)
    assert max(170.0, 100.0 + ran_s) == expected_end_s(limited, 100.0 + ran_s, typical_s=60.0)


# -- when there is room ----------------------------------------------------------------------------


def shadow_of(scene, cpus, **known):
    return find_shadow(scene.view(), queued(9, cpus=cpus), NOW_S, **known)


def test_the_shadow_is_where_there_is_room_first():
    def scene():
        made = running(Scene(platform(2, 4, 4)), 1, cpus=3, left_s=50.0, socket=1)
        running(made, 2, cpus=1, left_s=90.0, socket=1)
        return running(made, 3, cpus=3, left_s=60.0, socket=2)

    assert Shadow(partition=1, at_s=NOW_S + 50.0, spare=0) == shadow_of(scene(), 3)
    assert Shadow(partition=2, at_s=NOW_S + 60.0, spare=0) == shadow_of(scene(), 4)


def test_the_budget_has_to_have_room_as_well():
    scene = running(Scene(platform(4)), 1, left_s=50.0, rate=20 * MB)
    running(scene, 2, left_s=80.0, rate=70 * MB)
    head = queued(9, rate=60 * MB)
    view = scene.queue(head).view()
    budget = Budget(view, 100 * MB, lambda made: view.expected(made.id).rate_bytes_per_s)

    shadow = Shadow(partition=0, at_s=NOW_S + 80.0, spare=3, spare_bytes_per_s=40 * MB)
    assert shadow == find_shadow(view, head, NOW_S, budget)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(0, 30)), max_size=6),
    st.integers(1, 24),
)
def test_before_the_shadow_there_is_no_room_and_from_then_on_there_is(live, cpus):
    scene = Scene(platform(24))
    for number, (size, left_s) in enumerate(live, start=1):
        running(scene, number, cpus=size, left_s=left_s)

    def free_at(time_s):
        held = (size for size, left_s in live if left_s is None or NOW_S + left_s > time_s)
        return 24 - sum(held)

    shadow = shadow_of(scene, cpus)
    if shadow is None:
        assert free_at(math.inf) < cpus
        return
    assert free_at(shadow.at_s) - cpus == shadow.spare >= 0
    earlier = [NOW_S, *(NOW_S + left_s for _, left_s in live if left_s is not None)]
    assert all(free_at(time_s) < cpus for time_s in earlier if time_s < shadow.at_s)


# -- who starts ------------------------------------------------------------------------------------


def decide(scene, **parameters):
    plan, memory = Rule(**parameters).decide(scene.view(), None)
    assert memory is None
    return plan


def blocked(*sizes, left_s=600.0):
    """The first socket is full but for one CPU; job 2 waits for all of it, if it is the largest."""
    scene = running(Scene(platform(*sizes)), 1, cpus=sizes[0] - 1, left_s=left_s)
    return scene.queue(queued(2, cpus=sizes[0]))


def places(plan):
    return [(placed.job_id, placed.partition) for placed in plan.starts]


def test_the_head_is_promised_its_slots_by_the_walltimes_of_those_that_run():
    why = Reason(code="Slots", text="needs 4 free CPUs on one socket; most free now: 1")

    plan = AdmissionPlan(reasons={2: why}, reservations={2: NOW_S + 600.0})
    assert plan == decide(blocked(4))


def test_a_job_that_ends_in_time_goes_before_the_head_and_says_why():
    later = [queued(3), queued(4, walltime_s=600.1), queued(5, walltime_s=600.0)]
    [placed] = decide(blocked(4).queue(*later)).starts

    assert (5, placed.why.text) == (
        placed.job_id,
        (
            "fits beside job 2, which waits for 4 CPUs, promised in 10 min: ends in 10 min at the "
            "latest; passes 3 earlier jobs"
        ),
    )


def test_spare_slots_are_for_those_without_walltime_too_until_they_are_used_up():
    scene = running(Scene(platform(6)), 1, cpus=3, left_s=600.0)
    plan = decide(
        scene.queue(queued(2, cpus=4), queued(3, cpus=3), queued(4), queued(5), queued(6))
    )

    assert [4, 5] == started(plan)
    assert plan.starts[0].why.text == (
        "fits beside job 2, which waits for 4 CPUs, promised in 10 min: takes nothing that one "
        "needs; passes 2 earlier jobs"
    )


def test_without_a_promise_or_beyond_its_depth_nothing_overtakes():
    plan = decide(blocked(4, left_s=None).queue(queued(3, walltime_s=1.0)))
    deep = [
        started(decide(blocked(4).queue(queued(3, cpus=2), queued(4, walltime_s=1.0)), depth=depth))
        for depth in (2, 1)
    ]

    assert ((), {}) == (plan.starts, plan.reservations)
    assert [[4], []] == deep


def overrun(scene, kill_at_s):
    """Job 1 holds three slots of the first socket, past its walltime."""
    why = Reason(code="Walltime", text="ran for its walltime of 60 s")
    stop = {"state": JobState.STOPPING, "stop": JobState.TIMEOUT, "stop_reason": why, "reason": why}
    return scene.live(1, 0, cpus=3, moved=None, walltime_s=60.0, kill_at_s=kill_at_s, **stop)


@pytest.mark.parametrize(("kill_at_s", "promised_s"), [(NOW_S + 8.0, NOW_S + 8.0), (None, NOW_S)])
def test_a_promise_stays_while_a_job_past_its_walltime_does_not_end(kill_at_s, promised_s):
    scene = overrun(Scene(platform(4, 1)), kill_at_s)
    plan = decide(scene.queue(queued(2, cpus=3), *(queued(i) for i in (3, 4, 5))))

    assert ({2: promised_s}, [3, 4]) == (plan.reservations, started(plan))


def test_nor_does_it_move_to_room_elsewhere_that_comes_before_that_one_is_killed():
    scene = overrun(running(Scene(platform(4, 4)), 5, cpus=2, left_s=60.0, socket=1), NOW_S + 90.0)
    scene.queue(queued(2, cpus=4), queued(3), queued(4, walltime_s=1.0))
    scene.state.reservations = {JobId(2): NOW_S}
    plan = decide(scene)

    assert ({2: NOW_S}, [(3, 1), (4, 1)]) == (plan.reservations, places(plan))


# -- always ----------------------------------------------------------------------------------------


@given(WORKLOADS, SOCKETS)
@settings(max_examples=tries(200))
def test_a_promise_is_kept_and_who_starts_out_of_turn_says_so_and_nobody_else(workload, sockets):
    watch = Promises()

    result = run(Rule(), platform(*sockets), submissions(workload, max(sockets)), watch)

    assert len(result.finished) == len(workload)
    for place, job_id in enumerate(watch.starts):
        made = result.jobs[job_id - 1]
        passed = sum(
            other < job_id and result.jobs[other - 1].submitted_s <= made.started_s
            for other in watch.starts[place + 1 :]
        )
        says = f"passes {passed} earlier job{'' if passed == 1 else 's'}" if passed else ""
        told = "" if made.started_because is None else made.started_because.text
        assert told.endswith(says)


@given(WORKLOADS, SOCKETS)
def test_without_walltimes_it_is_first_come_first_served(workload, sockets):
    jobs = submissions([(*each[:3], None, each[4]) for each in workload], max(sockets))

    runs = [run(rule, platform(*sockets), jobs).jobs for rule in (Rule(), fcfs.Rule())]

    assert runs[0] == runs[1]


# -- what is told ----------------------------------------------------------------------------------


def told_of(scene, *job_ids):
    view = scene.view()
    return [Rule().explain(view, view.job(JobId(job_id)), None) for job_id in job_ids]


def test_those_behind_are_told_who_is_first_and_what_would_help():
    told = told_of(blocked(4).queue(queued(3), queued(4, walltime_s=7200.0)), 2, 3, 4)

    first = "waits behind job 2, which waits for 4 CPUs, promised in 10 min"
    unlimited = (
        "it has no walltime, so it starts before that one only if it takes nothing that one needs: "
        "give -t when you submit"
    )
    limited = (
        "it starts before that one if it ends in time or takes nothing it needs; its own walltime "
        "is 2.0 h"
    )
    assert ["", f"{first}; {unlimited}", f"{first}; {limited}"] == told


# -- jobs without walltime -------------------------------------------------------------------------


class Knowing:
    """An experience of how long each command runs."""

    def __init__(self, **run_s):
        self._run_s = run_s

    def find(self, made):
        run_s = self._run_s.get(made.spec.name)
        known = Prediction(rate_bytes_per_s=0.0, confidence=0.5, source="learned", run_s=run_s)
        return known if made.spec.name else None


def endless(*sizes, waits_s=60.0, **run_s):
    """Job 1, known or not, has no walltime and holds all of socket 0 but a CPU; job 2 wants it."""
    scene = Scene(platform(*sizes))
    scene.state = State(platform(*sizes), experience=Knowing(**run_s))
    running(scene, 1, cpus=sizes[0] - 1, name="known" if run_s else "")
    return scene.queue(queued(2, cpus=sizes[0], at_s=NOW_S - waits_s))


def test_behind_a_head_that_waits_for_jobs_without_walltime_the_cure_is_told():
    assert [] == started(decide(endless(4, 2).queue(queued(3, cpus=2))))
    for told in told_of(endless(4, 2).queue(queued(3)), 2, 3):
        assert "job 1 has no walltime" in told
        assert "give -t" in told


def test_room_is_kept_where_earlier_runs_let_it_be_expected_and_promised_to_nobody():
    waiting = (queued(3, cpus=2), queued(4), queued(5, walltime_s=200.0))
    plan = decide(endless(4, 2, known=NOW_S + 300.0).queue(*waiting))

    assert ([(3, 1), (5, 0)], {}) == (places(plan), plan.reservations)
    assert "expected in 5 min" in plan.starts[0].why.text
    for told in told_of(endless(4, 2, known=NOW_S + 300.0).queue(*waiting), 2, 4):
        assert "an estimate that may be late" in told


def test_an_estimate_that_ran_out_moves_the_room_and_keeps_it():
    scene = endless(4, 2, known=NOW_S / 2).queue(queued(3, cpus=2), queued(4, walltime_s=900.0))

    assert [3, 4] == started(decide(scene))  # 1000 s ran, so 2000 s are taken


def test_a_promise_by_walltimes_is_not_touched_by_an_estimate():
    scene = endless(4, 4, known=NOW_S + 100.0)
    running(scene, 6, cpus=3, socket=1, left_s=600.0)

    assert {2: NOW_S + 600.0} == decide(scene).reservations


def test_a_head_that_has_waited_a_day_is_overtaken_by_no_estimate():
    scene = endless(4, 2, waits_s=86400.0, known=NOW_S + 300.0)

    assert [] == started(decide(scene.queue(queued(3, cpus=2))))


# -- the example of docs/admission.md --------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs/admission.md").read_text()
EXAMPLE = PAGE.partition("## An example")[2]
STORAGE = Model(links=(LinkSpec(id="pfs", capacity_bytes_per_s=84 * MB),), disk=None)
RULES = {
    "`fcfs`": fcfs.Rule(),
    "`easy`": easy.Rule(),
    '`easy`, `bandwidth = "60 MB/s"`': easy.Rule(bandwidth_bytes_per_s=60 * MB),
    "`equilibrio`, `alpha = 0.5`": equilibrio.Rule(alpha=0.5),
}


def table(first):
    """The rows of the table whose head begins so."""
    lines = EXAMPLE.partition(f"| {first} |")[2].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def of_the_page():
    jobs = []
    for _, comes, cpus, alone, walltime, rate, share in table("Job"):
        at, alone_min, walltime_min, mb, percent = (
            float(cell.split()[0]) for cell in (comes, alone, walltime, rate, share)
        )
        spec = JobSpec(
            command=("x",),
            cpus=int(cpus),
            walltime_s=60.0 * walltime_min,
            io_rate_bytes_per_s=mb * MB,
            io_share=percent / 100.0,
        )
        in_io_s = 60.0 * alone_min * percent / 100.0 if mb else 0.0
        steps = [Compute((60.0 * alone_min - in_io_s) / 10)]
        if mb:
            steps.append(Transfer(mb * MB * in_io_s / 10, "pfs", cap_bytes_per_s=mb * MB))
        jobs.append((60.0 * at, spec, Profile(steps=tuple(steps), repeat=10)))
    return jobs


@pytest.mark.parametrize("name", RULES)
def test_the_jobs_run_from_when_to_when_the_page_says(name):
    jobs = run(RULES[name], platform(4), of_the_page(), model=STORAGE).jobs

    shown = [f"{job.started_s / 60:.0f}-{job.ended_s / 60:.0f}" for job in jobs]
    [cells] = [row[1:] for row in table("Rule") if row[0] == name]
    assert shown[1:] == cells


def test_every_reason_that_the_example_quotes_was_given():
    runs = (run(rule, platform(4), of_the_page(), model=STORAGE) for rule in RULES.values())
    given = {job.started_because.text for r in runs for job in r.jobs if job.started_because}
    quoted = re.findall(r"`((?:fits|it makes)[^`]*passes[^`]*)`", EXAMPLE)

    assert 3 == len(quoted)
    assert set(quoted) <= given


@pytest.mark.parametrize(("rule", "minute"), [("`easy`", 64), (list(RULES)[2], 70)])
def test_job_5_is_promised_what_the_page_says(rule, minute):
    watch = Promises()

    run(RULES[rule], platform(4), of_the_page(), watch, model=STORAGE)

    assert minute == round(watch.first_s[5] / 60.0)
    assert f"promised minute {minute}" in EXAMPLE
