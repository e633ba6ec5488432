"""Requeue with real jobs: stopped if need be, and run again from its beginning, exactly once."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import until

from iodaemon.errors import NoDaemon, RequestError

pytestmark = pytest.mark.node


def begun(server, name, times):
    until(lambda: server.lines().count(f"start {name}") == times, f"start {times} of {name}")


def test_a_running_job_ends_and_runs_again_under_its_number(shared):
    job = shared.gated("it", code=3)
    begun(shared, "it", 1)
    answer = shared.client.requeue(job)
    begun(shared, "it", 2)
    shared.open_gate("it")

    assert answer["requeued"]
    assert [("FAILED", 3)] == shared.outcome(job)
    assert ["done it", "start it", "start it"] == shared.lines()
    assert 2 == shared.job(job)["attempt"]


def test_a_suspended_job_runs_again(shared):
    job = shared.gated("it")
    begun(shared, "it", 1)
    shared.suspend(job)
    shared.client.requeue(job)
    begun(shared, "it", 2)
    shared.goes_on("it")
    shared.open_gate("it")

    assert [("COMPLETED", 0)] == shared.outcome(job)
    assert [] == shared.frozen()


def test_one_that_ignores_sigterm_is_killed_first(shared):
    job = shared.script(
        f"echo start >> {shared.ledger}; trap '' TERM; while :; do sleep 0.02; done"
    )
    until(lambda: shared.lines() == ["start"], "start")
    answer = shared.client.requeue(job, grace_s=0.1)

    assert answer["requeued"]
    until(lambda: shared.lines() == ["start"] * 2, "second start")
    assert shared.client.cancel(job, grace_s=0.0)["gone"]


def test_an_ended_job_runs_again_also_after_a_restart_with_its_environment(server):
    job = server.script(f'echo "$COLOUR" >> {server.ledger}; exit 5', env={"COLOUR": "blue"})
    server.outcome(job)
    server.stop()
    server.restart()
    server.client.requeue(job)
    until(lambda: server.lines() == ["blue", "blue"], "second run")

    assert [("FAILED", 5)] == server.outcome(job)
    assert 2 == server.job(job)["attempt"]


def test_what_waits_or_is_being_ended_is_refused(shared):
    held = shared.gated("held", hold=True)
    with pytest.raises(RequestError, match=f"job {held} is HELD: it waits already"):
        shared.client.requeue(held)


def test_a_requeue_under_way_outlives_the_daemon(server):
    job = server.script(
        f"echo start >> {server.ledger}; trap '' TERM; while :; do sleep 0.02; done"
    )
    until(lambda: server.lines() == ["start"], "start")
    keeper = server.keeper_pid()
    server.stop_processes(keeper)  # nothing ends the job before the daemon is dead
    with ThreadPoolExecutor() as others:
        asked = others.submit(server.client.requeue, job, grace_s=1.0)
        server.await_durable(job, "STOPPING")
        server.kill()
        assert isinstance(asked.exception(), NoDaemon)
    os.kill(keeper, signal.SIGCONT)
    server.restart()

    until(lambda: server.lines() == ["start"] * 2, "second start")
    assert 2 == server.job(job)["attempt"]
    assert server.client.cancel(job, grace_s=0.0)["gone"]
