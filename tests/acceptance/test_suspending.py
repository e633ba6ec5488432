"""Suspend and resume from outside: the whole job, and what else makes it stand still.

What either freezer does to the processes of a job is proved by test_supervisor_freeze.py.
"""

import pytest
from harness import cgroup_is_writable, find_state, until

pytestmark = pytest.mark.node

TICKER = "while [ ! -e open ]; do sleep 0.02; echo >> ticks-{name}; done"
FAMILY = ("first", "child", "detached")
SEEN = "echo begin >> ledger"
HEEDS = f"trap 'echo heard >> ledger; exit 9' TERM; {SEEN};"


def begun(system, text):
    """A job that has written its begin."""
    job = system.script(text)
    until(lambda: system.lines() == ["begin"], "begin of the job")
    return job


def test_all_processes_of_a_job_stand_still_and_go_on_together(system):
    """The first one, a child, and one that detached itself twice, which alone is left at last."""
    first, child, detached = (TICKER.format(name=name) for name in FAMILY)
    detached = f"{detached}; until [ -e last ]; do sleep 0.02; done; echo last >> ledger"
    job = system.script(f"({child}) & (setsid sh -c '{detached}' &); {first}; exit 3")
    for name in FAMILY:
        system.goes_on(name)
    said = system.says("suspend", str(job))
    frozen = system.frozen()
    still = all(system.stands_still(name) for name in FAMILY)
    before_s = system.job(job)["run_s"]
    until(lambda: system.job(job)["suspended_user_s"] > 0.2, "some time")
    after_s = system.job(job)["run_s"]
    system.says("resume", str(job))
    for name in FAMILY:
        system.goes_on(name)
    (system.place / "open").touch()
    until(lambda: len(system.job(job)["pids"]) == 2, "the end of all but one, which sleeps")
    state = system.states(job)
    (system.place / "last").touch()

    assert "SUSPENDED_USER" in said
    assert frozen
    assert still
    assert before_s == after_s
    assert state == ["RUNNING"]
    assert system.outcome(job) == [("FAILED", 3)]
    assert system.lines() == ["last"]
    assert system.frozen() == []


def test_a_stubborn_job_is_killed_with_all_that_detached_itself(system):
    job = begun(
        system,
        "setsid sleep 1000 & (setsid sh -c 'sleep 1001 & sleep 1002 &' &) &"
        f" trap '' TERM; {SEEN}; while :; do sleep 0.02; done",
    )
    until(lambda: len(system.job(job)["pids"]) >= 5, "all children")
    said = system.says("cancel", "--grace", "0.1", str(job))
    found = system.job(job)

    assert "CANCELLED" in said
    assert (found["state"], found["signal"], found["pids"]) == ("CANCELLED", 9, [])
    until(lambda: not system.job_processes(), "end of all processes")


def test_a_suspended_job_obeys_a_cancel(plain):
    job = begun(plain, f"{HEEDS} while :; do sleep 0.02; done")
    plain.says("suspend", str(job))
    plain.says("cancel", str(job))

    assert plain.outcome(job) == [("CANCELLED", 9)]
    assert plain.lines() == ["begin", "heard"]


def test_a_suspended_job_that_is_requeued_runs_again(plain):
    job = plain.gated("it", code=3)
    plain.goes_on("it")
    plain.suspend(job)
    plain.says("requeue", str(job))
    until(lambda: plain.lines().count("start it") == 2, "the second begin")
    plain.open_gate("it")

    assert plain.outcome(job) == [("FAILED", 3)]
    assert plain.job(job)["attempt"] == 2
    assert plain.frozen() == []


@pytest.mark.parametrize(
    "text",
    ["kill -STOP $$; echo on >> ledger", "sh -c 'kill -STOP $$; echo on >> ledger'"],
    ids=["itself", "a part of it"],
)
def test_a_job_that_was_stopped_is_told_and_goes_on_with_resume(plain, text):
    job = plain.script(f"{text}; exit 3")
    until(lambda: "stopped by a signal" in plain.says("why", str(job)), "the reason")
    plain.says("resume", str(job))

    assert plain.outcome(job) == [("FAILED", 3)]
    assert plain.lines() == ["on"]


def test_a_job_that_stopped_itself_obeys_a_cancel(plain):
    job = begun(plain, f"{HEEDS} kill -STOP $$; sleep 1000")
    until(lambda: "T" in map(find_state, plain.job(job)["pids"]), "its standstill")
    plain.says("cancel", str(job))

    assert plain.outcome(job) == [("CANCELLED", 9)]


@pytest.mark.skipif(not cgroup_is_writable(), reason="no cgroup of one's own here")
def test_a_job_that_somebody_froze_is_told_and_goes_on_with_resume(plain):
    job = begun(plain, f"{SEEN}; while [ ! -e open ]; do sleep 0.02; done; exit 3")
    [cgroup] = plain.job_cgroups()
    (cgroup / "cgroup.freeze").write_text("1")
    until(lambda: "frozen, not by iodaemon" in plain.says("why", str(job)), "the reason")
    plain.says("resume", str(job))
    (plain.place / "open").touch()

    assert plain.outcome(job) == [("FAILED", 3)]


def test_a_job_whose_processes_follow_each_other_all_the_time_is_killed_as_a_whole(plain):
    """There are never more than a few at once: each ends when it has started the next.

    By signals nobody catches what forks faster than they are sent.
    """
    chain = "next() { sleep 0.01; next & }; next & next & next &"
    job = begun(plain, f"trap '' TERM; {chain} {SEEN}; exec sleep 1000")
    plain.says("cancel", "--grace", "0", str(job))

    assert plain.states(job) == ["CANCELLED"]
    until(lambda: not plain.job_processes(), "end of all processes")
