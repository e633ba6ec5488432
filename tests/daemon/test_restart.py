"""What a restarted daemon finds, row by row: started once, adopted, finished, lost, as it was."""

import os
import signal
import subprocess
import sys

import pytest
from harness import end, marked, until

pytestmark = pytest.mark.node

ONE_SLOT = {"topology": {"sockets": ["0"], "oversubscribe": 1}}


def submit_to_a_deaf_keeper(server, name):
    """A job whose start is durable but has not been heard; the daemon is dead then."""
    keeper = server.keeper_pid()
    os.kill(keeper, signal.SIGSTOP)
    job = server.gated(name, code=3)
    server.await_durable(job, "STARTING")
    server.kill()
    return job, keeper


def end_in(server, name, *jobs):
    server.open_gate(name)
    return server.outcome(*jobs)


# -- STARTING ------------------------------------------------------------------------------------


def test_a_start_that_nobody_took_up_is_given_up_and_tried_again(server):
    job, keeper = submit_to_a_deaf_keeper(server, "it")
    end(keeper)
    server.directory(job).mkdir(mode=0o700)
    server.restart()
    waiting = server.await_state(job, "PENDING")
    server.stop()
    server.restart()  # which does not wait as long as a start that failed does

    assert [("FAILED", 3)] == end_in(server, "it", job)
    assert waiting["reason"]["code"] == "StartFailed"
    assert server.lines() == ["done it", "start it"]
    assert server.job(job)["attempt"] == 2


def test_a_start_that_failed_is_made_by_the_next_daemon_without_waiting(make_server):
    server = make_server(has_faults=True, regulation={"timeslice": "60 s"}).start()
    server.arm("keeper.directory_made")
    job = server.gated("it")
    server.await_state(job, "PENDING")
    server.stop()
    server.restart()
    found = server.await_state(job, "RUNNING")

    assert None is found["reason"]
    assert 2 == found["attempt"]


# -- another boot --------------------------------------------------------------------------------


def test_after_a_reboot_running_jobs_are_lost_and_all_others_are_as_they_were(make_server):
    server = make_server(**{**ONE_SLOT, "topology": {"sockets": ["0"], "oversubscribe": 2}}).start()
    ended, lost = server.gated("ended", code=4), server.gated("lost")
    server.goes_on("ended")
    server.goes_on("lost")
    waits, held = server.gated("waits"), server.gated("held", hold=True)
    server.kill()
    server.open_gate("ended")
    until(lambda: (server.directory(ended) / "status.json").exists(), "status")
    lose_power(server)
    server.restart()
    server.open_gate("waits")

    assert [("FAILED", 4), ("LOST", None), ("COMPLETED", 0)] == server.outcome(ended, lost, waits)
    assert server.states(held) == ["HELD"]
    assert "restarted" in server.job(lost)["reason"]["text"]
    assert server.lines() == [
        "done ended",
        "done waits",
        "start ended",
        "start lost",
        "start waits",
    ]


@pytest.mark.parametrize("record", ["kept", "emptied"])
def test_after_a_reboot_a_job_that_asked_for_it_runs_again(server, record):
    job = server.gated("it", code=4, requeue=True)
    server.goes_on("it")
    server.kill()
    lose_power(server)
    if record == "emptied":  # as a power failure leaves a file that was not made durable
        server.directory(job).joinpath("shim.json").write_text("")
    server.restart()

    assert [("FAILED", 4)] == end_in(server, "it", job)
    assert server.lines() == ["done it", "start it", "start it"]
    assert server.job(job)["attempt"] == 2


def lose_power(server):
    """End everything at once, shims before their jobs, and boot again."""
    for pid in sorted(marked(server.mark)):
        end(pid)
    until(lambda: not marked(server.mark), "end of everything")
    (server.state / "boot_id").write_text("11111111-2222-3333-4444-555555555555\n")


def test_a_start_that_may_have_happened_before_a_reboot_is_not_repeated(server):
    job, _ = submit_to_a_deaf_keeper(server, "it")
    lose_power(server)
    server.restart()

    assert [("LOST", None)] == server.outcome(job)
    assert server.lines() == []


def test_somebody_who_reads_the_journal_meanwhile_takes_nothing_from_it(server):
    server.gated("it")
    server.goes_on("it")
    for _ in range(3):
        subprocess.run(
            [sys.executable, "-c", READ_JOURNAL, server.state / "journal.db"], check=True
        )
    job = server.submit("true")
    ended = server.outcome(job)
    server.kill()
    server.restart()

    assert [("COMPLETED", 0)] == ended == server.outcome(job)


READ_JOURNAL = """
import sqlite3, sys
journal = sqlite3.connect(sys.argv[1])
journal.execute("SELECT * FROM job").fetchall()
journal.close()
"""
