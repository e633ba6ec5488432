"""SIGKILL of daemon, keeper, both: every job ends with its true exit code, exactly once."""

import pytest
from harness import direct_reads, until

pytestmark = pytest.mark.node

REGULATED = {
    "orphan_grace": "400 ms",
    "policy": "dynamic",
    "regulation": {"io_bound": "4 MB/s", "timeslice": "250 ms"},
}


def scene(make_server):
    """A server with a running job, one that its user holds and one that the regulation holds."""
    server = make_server(**REGULATED).start()
    runs = server.gated("runs", code=3, no_suspend=True)
    held = server.gated("held", code=4, no_suspend=True)
    reads = server.gated("reads", code=5, step=direct_reads(server.root))
    server.goes_on("runs")
    server.goes_on("held")
    assert server.suspend(held) == "SUSPENDED_USER"
    server.await_durable(reads, "SUSPENDED_IO")  # a kill before that takes the time with it
    return server, (runs, held, reads)


def all_ended(server, jobs):
    """Let all of them end; what became of them."""
    server.client.resume(jobs[1])
    server.open_gate("runs", "held", "reads")
    return server.outcome(*jobs)


TRUE_ENDS = [("FAILED", 3), ("FAILED", 4), ("FAILED", 5)]
ONCE = sorted(f"{word} {name}" for word in ("start", "done") for name in ("runs", "held", "reads"))


@pytest.mark.parametrize("victim", ["kill", "kill_keeper", "kill_both"])
def test_jobs_end_with_their_true_exit_codes_exactly_once(make_server, victim):
    server, jobs = scene(make_server)
    getattr(server, victim)()
    if not server.is_running():
        server.restart()
    server.goes_on("runs")
    server.goes_on("reads")
    server.await_state(jobs[1], "SUSPENDED_USER")
    until(lambda: server.stands_still("held"), "standstill of the held job")
    ends = all_ended(server, jobs)
    times = [server.job(job) for job in jobs]

    assert TRUE_ENDS == ends
    assert server.lines() == ONCE
    assert server.frozen() == []
    for job in times:
        lasted_s = job["ended_s"] - job["started_s"]
        booked_s = job["run_s"] + job["suspended_user_s"] + job["suspended_io_s"]
        assert lasted_s == pytest.approx(booked_s, abs=0.1)
        assert [1, "FAILED"] == [job["attempt"], job["state"]]
    assert times[0]["suspended_user_s"] + times[0]["suspended_io_s"] == 0
    assert times[1]["suspended_user_s"] > 0
    assert times[2]["suspended_io_s"] > 0


@pytest.mark.parametrize("victim", ["kill", "kill_both"])
def test_without_another_daemon_all_jobs_run_on_and_are_known_later(make_server, victim):
    server, jobs = scene(make_server)
    getattr(server, victim)()
    until(lambda: not server.frozen(), "thaw of all jobs")
    server.open_gate("runs", "held", "reads")
    until(lambda: server.lines() == ONCE, "end of all jobs")
    until(lambda: not server.keeper_lives(), "end of the keeper")
    server.restart()

    assert TRUE_ENDS == server.outcome(*jobs)
    assert server.lines() == ONCE
