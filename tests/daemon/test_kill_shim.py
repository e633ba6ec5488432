"""SIGKILL of a shim: the job goes on, its exit is told by the kernel or unknown, never zero."""

import pytest
from harness import kernel_tells_exits, marked, until

from iodaemon.backend.linux.process import find_state

pytestmark = pytest.mark.node


def told(code):
    """What becomes of a job whose shim was killed and that then exits with this code."""
    if not kernel_tells_exits():
        return [("LOST", None)]
    return [("FAILED" if code else "COMPLETED", code)]


def running(server, **options):
    job = server.gated("it", **options)
    server.goes_on("it")
    return job


def test_the_job_goes_on_and_the_kernel_tells_its_exit(server):
    job = running(server, code=3)
    server.kill_shim(job)
    server.goes_on("it")
    server.open_gate("it")

    assert told(3) == server.outcome(job)
    assert server.lines() == ["done it", "start it"]


@pytest.mark.slow
def test_a_daemon_that_starts_later_learns_the_exit_as_well(server):
    job = running(server, code=3)
    server.kill()
    server.kill_keeper()
    server.restart()
    server.kill_shim(job)
    server.stop()
    server.restart()
    server.await_state(job, "RUNNING")
    server.open_gate("it")

    assert told(3) == server.outcome(job)


def test_an_exit_that_nobody_saw_is_lost_and_never_zero(server):
    job = running(server, code=0)
    server.kill_shim(job)
    server.kill()
    main = server.shim_of(job)["main_pid"]
    server.open_gate("it")
    until(lambda: find_state(main) is None, "end of the job")
    server.restart()

    assert [("LOST", None)] == server.outcome(job)
    assert server.lines() == ["done it", "start it"]


def test_a_suspended_job_is_let_go_and_says_why(server):
    job = running(server, code=0)
    server.suspend(job)
    server.kill_shim(job)
    server.goes_on("it")

    def look():  # it runs before the daemon has heard that it does
        found = server.job(job)["reason"]
        return None if found is None or found["code"] == "Suspended" else found

    reason = until(look, "a reason")
    server.open_gate("it")

    assert reason["code"] == "SuspendFailed"
    assert "no living shim" in reason["text"]
    assert told(0) == server.outcome(job)


def test_it_cannot_be_suspended_any_more_and_runs_on(server):
    job = running(server, code=0)
    server.kill_shim(job)
    told = server.client.suspend(job)["job"]
    server.goes_on("it")

    assert "SuspendFailed" == told["reason"]["code"]
    assert server.job(job)["state_shown"] == "RUNNING"
    assert server.frozen() == []


def test_cancel_kills_what_it_left(server):
    text = 'sleep 1000 & (sleep 1001 & sleep 1002) & trap "" TERM; while :; do sleep 0.1; done'
    job = server.script(text)
    until(lambda: len(server.job(job)["pids"]) >= 5, "all processes")
    server.kill_shim(job)
    answer = server.client.cancel(job, grace_s=0.2)

    assert answer["gone"]
    assert answer["job"]["state"] == "CANCELLED"
    until(lambda: set(marked(server.mark)) == server.standing(), "an end of all of the job")


def test_one_that_stood_still_when_all_were_killed_runs_again_after_the_restart(server):
    job = running(server, code=6)
    server.suspend(job)
    shim = server.shim_of(job)["pid"]
    server.stop_processes(server.keeper_pid(), shim)
    server.kill_shim(job)
    server.kill_both()
    assert server.frozen()
    server.restart()
    server.goes_on("it")
    server.open_gate("it")

    assert told(6) == server.outcome(job)


def test_one_that_dies_before_it_says_that_its_job_runs_does_not_make_it_run_twice(make_server):
    server = make_server(has_faults=True).start()
    server.arm("shim.let_go")
    job = server.gated("it", code=5)
    server.goes_on("it")
    server.open_gate("it")

    assert told(5) == server.outcome(job)
    assert server.lines() == ["done it", "start it"]


def test_one_that_dies_before_it_takes_its_job_up_is_followed_by_another(make_server):
    server = make_server(has_faults=True).start()
    server.arm("shim.forked")
    job = server.gated("it", code=5)
    server.await_state(job, "PENDING")
    server.stop()
    server.restart()  # which does not wait as long as a start that failed does
    server.open_gate("it")

    assert [("FAILED", 5)] == server.outcome(job)
    assert server.lines() == ["done it", "start it"]
    assert 2 == server.job(job)["attempt"]
