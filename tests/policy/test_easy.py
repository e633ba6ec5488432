"""EASY backfilling: the head's promise, and who may go before it."""

import pytest
from exploring import tries
from hypothesis import given, settings
from queueing import SOCKETS, WORKLOADS, Promises, queued, run, running, submissions
from scene import MB, NOW_S, Scene, platform

from iodaemon.core.controller import Controller
from iodaemon.core.decision import AdmissionPlan
from iodaemon.core.event import JobSubmitted
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId, Prediction, Reason
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.policy.admission import fcfs
from iodaemon.policy.admission.easy import Rule
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation.none import Rule as Unregulated


def decide(scene, **parameters):
    plan, memory = Rule(**parameters).decide(scene.view(), None)
    assert memory is None
    return plan


def blocked(*sizes, left_s=600.0):
    """The first socket is full but for one CPU; job 2 waits for all of it, if it is the largest."""
    scene = running(Scene(platform(*sizes)), 1, cpus=sizes[0] - 1, left_s=left_s)
    return scene.queue(queued(2, cpus=sizes[0]))


def started(plan):
    return [placed.job_id for placed in plan.starts]


def test_the_head_is_promised_its_slots_by_the_walltimes_of_those_that_run():
    plan = decide(blocked(4))

    why = Reason(code="Slots", text="needs 4 free CPUs on one socket; most free now: 1")
    assert AdmissionPlan(reasons={2: why}, reservations={2: NOW_S + 600.0}) == plan


def test_a_job_that_ends_in_time_goes_before_the_head_and_says_why():
    plan = decide(blocked(4).queue(queued(3), queued(4, walltime_s=600.0)))

    [placed] = plan.starts
    assert 4 == placed.job_id
    assert placed.why.text == (
        "fits beside job 2, which waits for 4 CPUs, promised in 10 min: ends in 10 min at the "
        "latest; passes 2 earlier jobs"
    )


def test_a_job_that_would_end_too_late_does_not():
    assert () == decide(blocked(4).queue(queued(3, walltime_s=600.1))).starts


def test_spare_slots_are_for_those_without_walltime_too_until_they_are_used_up():
    scene = running(Scene(platform(6)), 1, cpus=3, left_s=600.0)
    scene.queue(queued(2, cpus=4), queued(3, cpus=3), queued(4), queued(5), queued(6))

    plan = decide(scene)

    assert [4, 5] == started(plan)
    assert plan.starts[0].why.text == (
        "fits beside job 2, which waits for 4 CPUs, promised in 10 min: takes nothing that one "
        "needs; passes 2 earlier jobs"
    )


def test_other_sockets_are_free_for_all():
    plan = decide(blocked(4, 2).queue(queued(3, cpus=2)))

    assert [(3, 1)] == [(placed.job_id, placed.partition) for placed in plan.starts]


def test_the_promised_socket_is_kept_even_where_placement_prefers_it():
    scene = running(Scene(platform(4, 3)), 1, cpus=3, left_s=600.0)
    running(scene, 5, cpus=2, socket=1, rate=90 * MB)
    scene.queue(queued(2, cpus=4), queued(3))

    plan = decide(scene)

    assert [(3, 1)] == [(placed.job_id, placed.partition) for placed in plan.starts]


def test_without_a_promise_nothing_overtakes():
    plan = decide(blocked(4, left_s=None).queue(queued(3, walltime_s=1.0)))

    assert ((), {}) == (plan.starts, plan.reservations)


def test_it_looks_no_further_than_its_depth():
    def at_depth(depth):
        scene = blocked(4).queue(queued(3, cpus=2), queued(4, walltime_s=1.0))
        return started(decide(scene, depth=depth))

    assert ([4], []) == (at_depth(2), at_depth(1))


def test_a_negative_depth_is_refused():
    with pytest.raises(ValueError, match="depth"):
        Rule(depth=-1)


# -- always --------------------------------------------------------------------------------------


@given(WORKLOADS, SOCKETS)
@settings(max_examples=tries(200))
def test_a_promise_is_kept_and_never_moves_later(workload, sockets):
    watch = Promises()

    result = run(Rule(), platform(*sockets), submissions(workload, max(sockets)), watch)

    assert len(result.finished) == len(workload)


@given(WORKLOADS, SOCKETS)
def test_without_walltimes_it_is_first_come_first_served(workload, sockets):
    jobs = submissions([(*job[:3], None, job[4]) for job in workload], max(sockets))

    runs = [run(rule, platform(*sockets), jobs).jobs for rule in (Rule(), fcfs.Rule())]

    assert runs[0] == runs[1]


@given(WORKLOADS, SOCKETS)
def test_who_starts_out_of_turn_says_so_and_nobody_else(workload, sockets):
    watch = Promises()

    result = run(Rule(), platform(*sockets), submissions(workload, max(sockets)), watch)

    for place, job_id in enumerate(watch.starts):
        job = result.jobs[job_id - 1]
        waited = [
            other
            for other in watch.starts[place + 1 :]
            if other < job_id and result.jobs[other - 1].submitted_s <= job.started_s
        ]
        told = "" if job.started_because is None else job.started_because.text
        assert told.endswith(_passed(len(waited)))


def _passed(count):
    return f"passes {count} earlier job{'' if count == 1 else 's'}" if count else ""


def test_the_head_is_told_by_when_it_is_promised():
    rules = Rules(name="t", admission=Rule(), placement=LeastIo(), regulation=Unregulated())
    state = State(platform(4))
    controller = Controller(state, rules)
    jobs = [queued(1, cpus=3, walltime_s=600.0), queued(2, cpus=4), queued(3, cpus=2)]
    controller.step([JobSubmitted(at_s=0.0, job=job) for job in jobs])

    def why(number):
        job = state.jobs[JobId(number)]
        return explain(state, rules, job, 60.0, account=controller.account(job))

    assert "waits: needs 4 free CPUs on one socket; most free now: 1" == why(2).is_so
    assert why(2).until == (
        "4 CPUs of one socket are free; CPUs are held by job 1; promised in 9 min at the latest, "
        "by the walltimes of those that run; one that does not end when asked is killed 10 s later"
    )
    assert why(3).is_so.startswith("waits behind job 2, which waits for 4 CPUs, promised in 10 min")
    assert "its turn has come and 2 CPUs of one socket are free" == why(3).until


def test_those_behind_are_told_who_is_first_and_what_would_help():
    scene = blocked(4).queue(queued(3), queued(4, walltime_s=7200.0))
    view = scene.view()

    told = [Rule().explain(view, view.job(JobId(number)), None) for number in (2, 3, 4)]

    first = "waits behind job 2, which waits for 4 CPUs, promised in 10 min"
    assert "" == told[0]
    assert told[1] == (
        f"{first}; it has no walltime, so it starts before that one only if it takes nothing that "
        "one needs: give -t when you submit"
    )
    assert told[2] == (
        f"{first}; it starts before that one if it ends in time or takes nothing it needs; its own "
        "walltime is 2.0 h"
    )


# -- jobs without walltime -------------------------------------------------------------------------


class Knowing:
    """An experience of how long each command runs."""

    def __init__(self, **run_s):
        self._run_s = run_s

    def find(self, made):
        run_s = self._run_s.get(made.spec.name)
        known = Prediction(rate_bytes_per_s=0.0, confidence=0.5, source="learned", run_s=run_s)
        return known if made.spec.name else None


def endless(*sizes, **run_s):
    """Job 1, known or not, has no walltime and holds all of socket 0 but a CPU; job 2 wants it."""
    scene = Scene(platform(*sizes))
    scene.state = State(platform(*sizes), experience=Knowing(**run_s))
    running(scene, 1, cpus=sizes[0] - 1, name="known" if run_s else "")
    return scene.queue(queued(2, cpus=sizes[0], at_s=NOW_S - 60.0))


def told_of(scene, job_id):
    view = scene.view()
    return Rule().explain(view, view.job(JobId(job_id)), None)


def test_behind_a_head_that_waits_for_jobs_without_walltime_the_cure_is_told():
    scene = endless(4, 2).queue(queued(3, cpus=2))

    assert [] == started(decide(scene))
    for job_id in (2, 3):
        assert "job 1 has no walltime" in told_of(endless(4, 2).queue(queued(3)), job_id)
        assert "give -t" in told_of(endless(4, 2).queue(queued(3)), job_id)


def test_room_is_kept_where_earlier_runs_let_it_be_expected_and_promised_to_nobody():
    def scene():
        waiting = (queued(3, cpus=2), queued(4), queued(5, walltime_s=200.0))
        return endless(4, 2, known=NOW_S + 300.0).queue(*waiting)

    plan = decide(scene())

    assert [(3, 1), (5, 0)] == [(placed.job_id, placed.partition) for placed in plan.starts]
    assert {} == plan.reservations
    assert "expected in 5 min" in plan.starts[0].why.text
    assert "an estimate that may be late" in told_of(scene(), 2)
    assert "an estimate that may be late" in told_of(scene(), 4)


def test_an_estimate_that_ran_out_moves_the_room_and_keeps_it():
    scene = endless(4, 2, known=NOW_S / 2).queue(queued(3, cpus=2), queued(4, walltime_s=900.0))

    assert [3, 4] == started(decide(scene))  # 1000 s ran, so 2000 s are taken


def test_a_promise_by_walltimes_is_not_touched_by_an_estimate():
    scene = endless(4, 4, known=NOW_S + 100.0)
    running(scene, 6, cpus=3, socket=1, left_s=600.0)

    assert {2: NOW_S + 600.0} == decide(scene).reservations


def test_a_head_that_has_waited_a_day_is_overtaken_by_no_estimate():
    scene = endless(4, 2, known=NOW_S + 300.0)
    scene._jobs[-1] = queued(2, cpus=4, at_s=NOW_S - 86400.0)
    scene.queue(queued(3, cpus=2))

    assert [] == started(decide(scene))
