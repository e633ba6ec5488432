"""Cancel and walltime: TERM first, KILL after the grace time, and nothing is left."""

import os
import signal

import pytest
from harness import find_state, marked, until

from iodaemon.errors import RequestError

pytestmark = pytest.mark.node

TRAP = 'trap "echo trapped >> {ledger}; exit 9" TERM; touch {ready}; while :; do sleep 0.02; done'
DEAF = 'trap "" TERM; touch {ready}; while :; do sleep 0.02; done'


def begun(server, text, **options):
    """A job that has set its traps."""
    ready = server.place / "ready"
    job = server.script(text.format(ledger=server.ledger, ready=ready), **options)
    until(ready.exists, "start of the job")
    return job


def only_the_daemon_is_left(server):
    """Soon: what has been killed may still be on its way out of the table of processes."""
    return until(lambda: set(marked(server.mark)) == server.standing(), "end of all others")


def test_a_job_may_end_by_itself_when_it_is_asked_to(shared):
    job = begun(shared, TRAP)
    answer = shared.client.cancel(job, grace_s=20)

    assert answer["gone"]
    assert ["CANCELLED", 9] == [answer["job"]["state"], answer["job"]["exit_code"]]
    assert shared.lines() == ["trapped"]


def test_a_job_that_does_not_listen_is_killed_after_the_grace_time(shared):
    job = begun(shared, DEAF)
    answer = shared.client.cancel(job, grace_s=0.3)
    found = answer["job"]

    assert answer["gone"]
    assert ["CANCELLED", signal.SIGKILL] == [found["state"], found["signal"]]
    assert found["run_s"] >= 0.3
    assert only_the_daemon_is_left(shared)


def test_a_suspended_job_hears_the_request_and_runs_on_to_obey_it(shared):
    job = begun(shared, TRAP)
    shared.suspend(job)
    answer = shared.client.cancel(job, grace_s=20)

    assert ["CANCELLED", 9] == [answer["job"]["state"], answer["job"]["exit_code"]]
    assert shared.lines() == ["trapped"]


def test_a_job_that_stopped_itself_hears_the_request(shared):
    job = begun(shared, TRAP.replace("while", "kill -STOP $$; while"))
    main = shared.shim_of(job)["main_pid"]
    until(lambda: find_state(main) == "T", "a stop of the job")
    answer = shared.client.cancel(job, grace_s=20)

    assert ["CANCELLED", 9] == [answer["job"]["state"], answer["job"]["exit_code"]]
    assert shared.lines() == ["trapped"]


def test_a_job_that_forks_on_and_on_is_killed_as_a_whole(shared):
    if shared.means == "signals":
        pytest.skip("signals cannot catch what forks faster than they are sent")
    job = begun(
        shared, 'trap "" TERM; touch {ready}; b() {{ b & b & sleep 0.01; }}; ulimit -u 400; b; b'
    )
    answer = shared.client.cancel(job, grace_s=0)

    assert answer["gone"]
    assert answer["job"]["state"] == "CANCELLED"
    assert only_the_daemon_is_left(shared)


def test_children_that_detach_themselves_are_killed_with_it(shared):
    text = (
        "setsid sleep 1000 & (setsid sh -c 'sleep 1001 & sleep 1002 &' &) & "
        'trap "" TERM; touch {ready}; while :; do sleep 0.02; done'
    )
    job = begun(shared, text)
    until(lambda: len(shared.job(job)["pids"]) >= 4, "all children")
    answer = shared.client.cancel(job, grace_s=0.1)

    assert answer["gone"]
    assert only_the_daemon_is_left(shared)


def test_a_job_is_stopped_when_it_has_run_for_its_walltime(shared):
    found = shared.end_of(shared.submit("sleep", "1000", walltime_s=0.4))

    assert ["TIMEOUT", signal.SIGTERM] == [found["state"], found["signal"]]
    assert 124 == found["shell_code"]
    assert 0.4 <= found["run_s"]


def test_suspended_time_does_not_count_as_walltime(shared):
    """It has to be suspended, and to end, within the walltime: some tens of milliseconds each."""
    job = shared.gated("it", walltime_s=3.0)
    shared.goes_on("it")
    shared.suspend(job)
    until(lambda: shared.job(job)["suspended_user_s"] > 3.2, "a long suspension")
    state = shared.states(job)
    shared.open_gate("it")
    shared.client.resume(job)

    assert state == ["SUSPENDED_USER"]
    assert [("COMPLETED", 0)] == shared.outcome(job)


def test_a_waiting_job_never_runs_once_it_is_cancelled(make_server):
    server = make_server(topology={"sockets": ["0"], "oversubscribe": 1}).start()
    runs = server.gated("runs")
    waits = server.gated("waits")
    answer = server.client.cancel(waits)
    server.open_gate("runs", "waits")
    server.outcome(runs)

    assert [True, "CANCELLED"] == [answer["gone"], answer["job"]["state"]]
    assert server.lines() == ["done runs", "start runs"]


def test_a_job_that_is_cancelled_while_it_starts_hears_of_it(shared):
    keeper = shared.keeper_pid()
    os.kill(keeper, signal.SIGSTOP)
    job = shared.gated("it")
    shared.await_state(job, "STARTING")
    [(_, answer)] = _cancel_and_go_on(shared, job, keeper)

    assert [True, "CANCELLED"] == [answer["gone"], answer["job"]["state"]]
    assert answer["job"]["signal"] == signal.SIGTERM
    assert only_the_daemon_is_left(shared)


def _cancel_and_go_on(server, job, keeper):
    answers = server.client.cancel_each([job], grace_s=20)
    first = _Later(answers)
    server.await_state(job, "STOPPING")
    os.kill(keeper, signal.SIGCONT)
    return first.result()


class _Later:
    """The answers of a generator, asked for in a thread."""

    def __init__(self, answers):
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(list, answers)

    def result(self):
        with self._pool:
            return self._future.result()


def test_a_job_whose_output_nobody_reads_fails_and_there_is_nothing_to_cancel(shared):
    fifo = shared.place / "fifo"
    os.mkfifo(fifo)
    job = shared.await_state(shared.script("echo never", stdout=str(fifo)), "FAILED")

    assert "it is a pipe that nobody reads" in job["reason"]["text"]
    with pytest.raises(RequestError, match="has ended already"):
        shared.client.cancel(job["id"], grace_s=0.2)


def test_a_cancel_under_way_survives_a_restart(server):
    job = begun(server, TRAP)
    os.kill(server.keeper_pid(), signal.SIGSTOP)
    keeper = server.keeper_pid()
    later = _Later(_cancel_quietly(server, job))
    server.await_durable(job, "STOPPING")
    server.kill()
    os.kill(keeper, signal.SIGKILL)
    later.result()
    server.restart()
    found = server.end_of(job)

    assert ["CANCELLED", 9] == [found["state"], found["exit_code"]]
    assert server.lines() == ["trapped"]


def _cancel_quietly(server, job):
    from iodaemon.errors import NoDaemon

    try:
        yield from server.client.cancel_each([job], grace_s=20)
    except NoDaemon:
        return
