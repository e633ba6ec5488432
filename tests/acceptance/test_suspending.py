"""Suspend and resume from outside, by either freezer: the whole job, and the time that it takes."""

import pytest
from system import can_freeze_by_cgroup, cgroups_of, state_of, until

pytestmark = pytest.mark.node

TICKER = "while [ ! -e open ]; do sleep 0.02; echo >> ticks-{name}; done"
FAMILY = ("first", "child", "detached")


def family(system):
    """A job with a child, and one that detached itself from it twice."""
    first, child, detached = (TICKER.format(name=name) for name in FAMILY)
    job = system.submit(f"({child}) & (setsid sh -c '{detached}' &); {first}; wait; exit 3")
    system.goes_on(*FAMILY)
    return job


def test_all_processes_of_a_job_stand_still_and_go_on_together(system):
    job = family(system)
    said = system.says("suspend", str(job))
    frozen = system.frozen()
    still = system.stands_still(*FAMILY)
    before_s = system.job(job)["run_s"]
    until(lambda: system.job(job)["suspended_user_s"] > 0.2, "some time")
    after_s = system.job(job)["run_s"]
    system.says("resume", str(job))
    system.goes_on(*FAMILY)
    (system.work / "open").touch()

    assert "SUSPENDED_USER" in said
    assert len(frozen) >= len(FAMILY)
    assert still
    assert before_s == after_s
    assert system.outcome(job) == [("FAILED", 3)]
    assert system.frozen() == []


def test_a_suspended_job_obeys_a_cancel(system):
    job = system.submit(
        "trap 'echo heard >> ledger; exit 9' TERM; echo begin >> ledger;"
        " while :; do sleep 0.02; done"
    )
    until(lambda: system.ledger() == ["begin"], "begin of the job")
    system.says("suspend", str(job))
    system.says("cancel", str(job))

    assert system.outcome(job) == [("CANCELLED", 9)]
    assert system.ledger() == ["begin", "heard"]


def test_a_job_that_stopped_itself_is_told_and_goes_on_with_resume(system):
    job = system.submit("kill -STOP $$; echo on >> ledger; exit 3")
    until(lambda: "T" in map(state_of, system.job(job)["pids"]), "its standstill")
    until(lambda: "stopped by a signal" in system.says("why", str(job)), "the reason")
    system.says("resume", str(job))

    assert system.outcome(job) == [("FAILED", 3)]
    assert system.ledger() == ["on"]


def test_a_job_of_which_a_part_was_stopped_is_told_and_goes_on_with_resume(system):
    job = system.submit("sh -c 'kill -STOP $$; echo on >> ledger'; exit 3")
    until(lambda: "stopped by a signal" in system.says("why", str(job)), "the reason")
    system.says("resume", str(job))

    assert system.outcome(job) == [("FAILED", 3)]
    assert system.ledger() == ["on"]


@pytest.mark.skipif(not can_freeze_by_cgroup(), reason="no cgroup of one's own here")
def test_a_job_that_somebody_froze_is_told_and_goes_on_with_resume(plain):
    system = plain
    job = system.submit("echo begin >> ledger; while [ ! -e open ]; do sleep 0.02; done; exit 3")
    until(lambda: system.ledger() == ["begin"], "begin of the job")
    pid, *_ = until(lambda: system.job(job)["pids"], "its processes")
    cgroups = cgroups_of(pid)
    (max(cgroups, key=lambda path: len(path.parts)) / "cgroup.freeze").write_text("1")
    until(lambda: "frozen, not by iodaemon" in system.says("why", str(job)), "the reason")
    system.says("resume", str(job))
    (system.work / "open").touch()

    assert system.outcome(job) == [("FAILED", 3)]


def test_a_job_that_stopped_itself_obeys_a_cancel(system):
    job = system.submit("trap 'exit 9' TERM; echo begin >> ledger; kill -STOP $$; sleep 1000")
    until(lambda: system.ledger() == ["begin"], "begin of the job")
    until(lambda: "T" in map(state_of, system.job(job)["pids"]), "its standstill")
    system.says("cancel", str(job))

    assert system.outcome(job) == [("CANCELLED", 9)]


def test_a_job_whose_processes_follow_each_other_all_the_time_is_killed_as_a_whole(plain):
    """There are never more than a few at once: each ends when it has started the next.

    By signals nobody catches what forks faster than they are sent.
    """
    system = plain
    job = system.submit(
        "trap '' TERM; next() { sleep 0.01; next & }; next & next & next &"
        " echo begin >> ledger; exec sleep 1000"
    )
    until(lambda: system.ledger() == ["begin"], "begin of the job")
    system.says("cancel", "--grace", "0", str(job))

    assert system.states(job) == ["CANCELLED"]
    until(lambda: not system.job_processes(), "end of all processes")


def test_a_stubborn_job_is_killed_with_all_that_detached_itself(system):
    job = system.submit(
        "setsid sleep 1000 & (setsid sh -c 'sleep 1001 & sleep 1002 &' &) &"
        " trap '' TERM; echo begin >> ledger; while :; do sleep 0.02; done"
    )
    until(lambda: system.ledger() == ["begin"], "begin of the job")
    until(lambda: len(system.job(job)["pids"]) >= 5, "all children")
    said = system.says("cancel", "--grace", "0.1", str(job))
    found = system.job(job)

    assert "CANCELLED" in said
    assert (found["state"], found["signal"], found["pids"]) == ("CANCELLED", 9, [])
    until(lambda: not system.job_processes(), "end of all processes")


def test_time_that_a_job_stands_still_is_not_its_walltime(system):
    """It has to be suspended, and to end, within the walltime: some tens of milliseconds each."""
    job = system.gated("it", walltime_s=3.0)
    system.goes_on("it")
    system.post(f"/v1/jobs/{job}/suspend")
    until(lambda: system.job(job)["suspended_user_s"] > 3.2, "a long suspension")
    state = system.states(job)
    system.open("it")
    system.post(f"/v1/jobs/{job}/resume")

    assert state == ["SUSPENDED_USER"]
    assert system.outcome(job) == [("COMPLETED", 0)]


def test_a_suspended_job_that_is_requeued_runs_again(system):
    job = system.gated("it", code=3)
    system.goes_on("it")
    system.post(f"/v1/jobs/{job}/suspend")
    system.says("requeue", str(job))
    until(lambda: system.ledger().count("begin it") == 2, "the second begin")
    system.open("it")

    assert system.outcome(job) == [("FAILED", 3)]
    assert system.job(job)["attempt"] == 2
    assert system.frozen() == []


def test_a_job_lasts_as_long_as_any_process_of_it(system):
    job = system.submit(
        f"(setsid sh -c '{TICKER.format(name='detached')}; echo last >> ledger' &); exit 5"
    )
    system.goes_on("detached")
    until(lambda: len(system.job(job)["pids"]) > 0, "its processes")
    state = system.states(job)
    (system.work / "open").touch()

    assert state == ["RUNNING"]
    assert system.outcome(job) == [("FAILED", 5)]
    assert system.ledger() == ["last"]
