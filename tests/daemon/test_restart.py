"""What a restarted daemon finds, row by row: started once, adopted, finished, lost, as it was."""

import os
import signal

import pytest
from harness import end, find_state, is_of_job, marked, until

pytestmark = pytest.mark.node

ONE_SLOT = {"topology": {"sockets": ["0"], "oversubscribe": 1}}


def submit_to_a_deaf_supervisor(server, name):
    """A job whose start is durable but has not been heard; daemon and supervisor are dead then."""
    anchor, supervisor = server.anchor_pid(), server.supervisor_pid()
    server.stop_processes(anchor, supervisor)
    job = server.gated(name, code=3)
    server.await_durable(job, "STARTING")
    server.kill()
    end(supervisor)
    os.kill(anchor, signal.SIGCONT)
    return job


def end_in(server, name, *jobs):
    server.open_gate(name)
    return server.outcome(*jobs)


# -- STARTING ------------------------------------------------------------------------------------


def test_a_start_that_is_prepared_when_the_daemon_dies_is_made_by_the_next_one(make_server):
    """The daemon ended what an earlier one had prepared."""
    server = make_server(has_faults=True, **ONE_SLOT).start()
    first, second = server.gated("first"), server.gated("second", code=3)
    server.await_durable(first, "RUNNING")
    server.arm("journal.committed")
    server.open_gate("first")
    server.process.wait()
    server.restart()

    assert [("COMPLETED", 0), ("FAILED", 3)] == end_in(server, "second", first, second)
    assert server.lines() == ["done first", "done second", "start first", "start second"]
    assert server.job(second)["attempt"] == 1


def test_a_start_under_which_the_supervisor_is_upgraded_is_made_by_the_new_one(make_server):
    server = make_server(has_faults=True).start()
    server.arm("child.prepared", number=signal.SIGSTOP)
    job = server.gated("it", code=3)
    until(lambda: not server.armed(), "a child that is prepared")
    os.kill(server.supervisor_pid(), signal.SIGHUP)
    server.open_gate("it")

    assert [("FAILED", 3)] == server.outcome(job)
    assert server.lines() == ["done it", "start it"]
    assert server.job(job)["attempt"] == 1


def test_a_start_that_failed_is_made_by_the_next_daemon_without_waiting(make_server):
    server = make_server(regulation={"timeslice": "60 s"}).start()
    output = server.output_file(1).parent
    output.rename(output.with_name("aside"))
    output.touch()
    job = server.gated("it")
    waiting = until(lambda: server.job(job)["reason"], "the word that it failed")
    output.unlink()
    output.with_name("aside").rename(output)
    server.stop()
    server.restart()
    found = server.await_state(job, "RUNNING")

    assert "the output file " in waiting["text"]
    assert None is found["reason"]
    assert 2 == found["attempt"]


# -- nobody is left ------------------------------------------------------------------------------


def test_when_all_were_killed_a_job_stands_still_if_a_person_holds_it_and_runs_on_if_not(server):
    """Whether it stood still or ran meanwhile."""
    held, free = server.gated("held"), server.gated("free")
    for name in ("held", "free"):
        server.goes_on(name)
    server.suspend(held)
    server.await_durable(held, "SUSPENDED_USER")
    server.await_durable(free, "RUNNING")
    cgroups = [path for path in server.job_cgroups() if path.name.startswith(f"{free}.")]
    server.kill_all()
    for cgroup in cgroups:
        (cgroup / "cgroup.freeze").write_text("1")
    server.restart()
    server.await_state(held, "SUSPENDED_USER")
    server.goes_on("free")

    assert server.stands_still("held")
    assert (server.means == "cgroup") == bool(cgroups)
    server.client.resume(held)
    server.goes_on("held")
    server.open_gate("held", "free")
    ends = {server.end_of(job)["state"] for job in (held, free)}
    assert ends <= {"COMPLETED", "LOST"}
    assert server.lines() == ["done free", "done held", "start free", "start held"]


# -- another boot --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_in_order", [True, False])
def test_after_a_reboot_running_jobs_are_lost_and_all_others_are_as_they_were(
    make_server, is_in_order
):
    """A shutdown leaves a copy of the ledger; how jobs ended before a power failure is lost."""
    server = make_server(topology={"sockets": ["0"], "oversubscribe": 3}).start()
    ended, lost = server.gated("ended", code=4), server.gated("lost")
    again = server.gated("again", code=5, requeue=True)
    for name in ("ended", "lost", "again"):
        server.goes_on(name)
    waits, held = server.gated("waits"), server.gated("held", hold=True)
    main = server.main_pid(ended)
    server.kill()
    server.open_gate("ended")
    until(lambda: find_state(main) is None, "its end")
    if is_in_order:
        supervisor = server.supervisor_pid()
        os.kill(server.anchor_pid(), signal.SIGTERM)
        until(lambda: find_state(supervisor) is None, "the end of the supervisor")
    lose_power(server)
    server.restart()
    server.open_gate("waits", "again")
    found = server.outcome(ended, lost, waits, again)

    end_of_ended = ("FAILED", 4) if is_in_order else ("LOST", None)
    assert [end_of_ended, ("LOST", None), ("COMPLETED", 0), ("FAILED", 5)] == found
    assert server.states(held) == ["HELD"]
    assert "restarted" in server.job(lost)["reason"]["text"]
    assert [1, 2] == [server.job(job)["attempt"] for job in (waits, again)]
    begun = ["start again", "start again", "start ended", "start lost", "start waits"]
    assert server.lines() == ["done again", "done ended", "done waits", *begun]


def lose_power(server):
    """End everything at once, and boot again: the runtime directory is empty."""
    for pid in sorted(marked(server.mark), key=is_of_job):
        end(pid)
    until(lambda: not marked(server.mark), "end of everything")
    (server.runtime / "ledger").unlink()
    (server.state / "boot_id").write_text("11111111-2222-3333-4444-555555555555\n")


def test_a_start_that_may_have_happened_before_a_reboot_is_not_repeated(server):
    job = submit_to_a_deaf_supervisor(server, "it")
    lose_power(server)
    server.restart()

    assert [("LOST", None)] == server.outcome(job)
    assert server.lines() == []
