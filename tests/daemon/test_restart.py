"""What a restarted daemon finds, row by row: started once, adopted, finished, lost, as it was."""

import os
import random
import signal
import subprocess
import sys
import time

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


def test_a_start_that_was_never_asked_for_happens_under_the_same_attempt(server):
    job, keeper = submit_to_a_deaf_keeper(server, "it")
    end(keeper)
    assert not server.directory(job).exists()
    server.restart()

    assert [("FAILED", 3)] == end_in(server, "it", job)
    assert server.lines() == ["done it", "start it"]
    assert server.job(job)["attempt"] == 1


@pytest.mark.slow
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


def test_a_start_that_the_keeper_heard_too_late_is_adopted(server):
    job, keeper = submit_to_a_deaf_keeper(server, "it")
    os.kill(keeper, signal.SIGCONT)
    server.restart()

    assert [("FAILED", 3)] == end_in(server, "it", job)
    assert server.lines() == ["done it", "start it"]
    assert server.job(job)["attempt"] == 1


@pytest.mark.slow
def test_a_job_that_started_and_ended_unseen_has_its_true_times_and_exit(server):
    job, keeper = submit_to_a_deaf_keeper(server, "it")
    server.open_gate("it")
    os.kill(keeper, signal.SIGCONT)
    until(lambda: server.lines() == ["done it", "start it"], "end of the job")
    until(lambda: (server.directory(job) / "status.json").exists(), "status")
    time.sleep(0.2)
    before_s = time.time()
    server.restart()
    found = server.end_of(job)

    assert ["FAILED", 3] == [found["state"], found["exit_code"]]
    assert found["started_s"] <= found["ended_s"] < before_s - 0.1
    assert found["run_s"] == pytest.approx(found["ended_s"] - found["started_s"], abs=0.01)


# -- PENDING, HELD -------------------------------------------------------------------------------


def test_waiting_jobs_are_as_they_were(make_server):
    server = make_server(**ONE_SLOT).start()
    runs = server.gated("runs")
    server.await_state(runs, "RUNNING")
    waits, held = server.gated("waits"), server.gated("held", hold=True)
    server.kill_both()
    server.restart()
    found = server.states(runs, waits, held)
    server.open_gate("runs", "waits", "held")
    server.outcome(waits)
    still_held = server.states(held)
    server.client.resume(held)

    assert found == ["RUNNING", "PENDING", "HELD"]
    assert still_held == ["HELD"]
    assert [("COMPLETED", 0)] * 3 == server.outcome(runs, waits, held)


# -- another boot --------------------------------------------------------------------------------


@pytest.mark.slow
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


# -- never twice, never not at all ---------------------------------------------------------------


@pytest.mark.slow
def test_every_acknowledged_job_runs_exactly_once_whenever_the_daemon_is_killed(make_server):
    server = make_server().start()
    chance = random.Random(7)
    jobs = []
    for number in range(12):
        text = f"echo start {len(jobs)} >> {server.ledger}; exit {number % 3}"
        jobs.append(server.script(text))
        time.sleep(chance.uniform(0.0, 0.03))
        server.kill_both() if number % 4 == 3 else server.kill()
        server.start(wait=number % 2 == 0)
        until(server.answers, "a daemon that answers")
    codes = [number % 3 for number in range(12)]

    assert [("FAILED" if code else "COMPLETED", code) for code in codes] == server.outcome(*jobs)
    assert server.lines() == sorted(f"start {number}" for number in range(12))


# -- a clean stop ----------------------------------------------------------------------------------


def test_a_clean_stop_thaws_all_and_the_next_daemon_adopts_them(make_server):
    server = make_server(orphan_grace="60 s").start()
    runs, held = server.gated("runs", code=3), server.gated("held", code=4)
    server.goes_on("runs")
    server.goes_on("held")
    server.suspend(held)
    keeper = server.keeper_pid()
    exit_code = server.stop()
    frozen = server.frozen()
    server.goes_on("runs")
    server.goes_on("held")
    server.restart()
    server.await_state(held, "SUSPENDED_USER")
    until(lambda: server.stands_still("held"), "standstill of the held job")
    server.client.resume(held)
    server.open_gate("runs", "held")

    assert exit_code == 0
    assert frozen == []
    assert [("FAILED", 3), ("FAILED", 4)] == server.outcome(runs, held)
    assert server.lines() == ["done held", "done runs", "start held", "start runs"]
    assert server.keeper_pid() == keeper


@pytest.mark.slow
def test_jobs_that_end_while_there_is_no_daemon_end_truly(server):
    jobs = [server.gated("one", code=0), server.gated("two", code=9)]
    server.goes_on("one")
    server.goes_on("two")
    server.stop()
    server.open_gate("one", "two")
    until(lambda: not server.keeper_lives(), "end of the keeper")
    server.restart()

    assert [("COMPLETED", 0), ("FAILED", 9)] == server.outcome(*jobs)


@pytest.mark.slow
def test_stop_and_start_in_quick_succession_always_finds_or_makes_a_keeper(server):
    for number in range(3):
        server.process.send_signal(signal.SIGTERM)
        if number % 2:
            server.process.wait()
        else:
            until(lambda: not (server.runtime / "iod.sock").exists(), "closed socket")
            server.process.wait()
        server.start()
        job = server.submit("true")

        assert [("COMPLETED", 0)] == server.outcome(job)


@pytest.mark.slow
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
