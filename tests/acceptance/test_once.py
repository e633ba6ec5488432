"""Every job runs once and is found again as it was, wherever those who serve it die."""

import time

import pytest
from harness import direct_reads, until

pytestmark = pytest.mark.node


def test_a_job_that_was_acknowledged_runs_once_wherever_the_daemon_dies(plain):
    jobs = []
    for number, kill in enumerate([plain.kill, plain.kill_both]):
        jobs.append(plain.script(f"echo {number} >> ledger; exit {number}"))
        kill()
        plain.start()

    assert [("COMPLETED", 0), ("FAILED", 1)] == plain.outcome(*jobs)
    assert plain.lines() == ["0", "1"]


def test_a_batch_is_accepted_whole_or_not_at_all(plain):
    first = plain.script("true")
    answer = plain.later(plain.scripts, *["echo it >> ledger"] * 50)
    until(lambda: len(plain.get(f"/v1/jobs?select={first}-9999&limit=2")["jobs"]) > 1, "the batch")
    plain.kill()
    is_acknowledged = answer.exception() is None
    plain.start()
    known = plain.get(f"/v1/jobs?select={first + 1}-9999")["jobs"]
    plain.outcome(*(job["id"] for job in known))

    assert len(known) == 50 or (not is_acknowledged and not known)
    assert len(plain.lines()) == len(known)


def test_a_job_that_began_and_ended_unseen_has_its_own_times(plain):
    """Nor did the supervisor hear of its start while the daemon lived: it happens once."""
    supervisor = plain.supervisor_pid()
    plain.stop_processes(supervisor)
    job = plain.script("echo it >> ledger; exit 3")
    plain.await_durable(job, "STARTING")
    plain.kill()
    plain.continue_processes(supervisor)
    until(lambda: plain.lines() == ["it"] and not plain.job_processes(), "end of the job")
    before_s = time.time()
    plain.start()
    found = plain.end_of(job)

    assert (found["state"], found["exit_code"], found["attempt"]) == ("FAILED", 3, 1)
    assert found["started_s"] <= found["ended_s"] <= before_s + 0.1
    assert found["run_s"] == pytest.approx(found["ended_s"] - found["started_s"], abs=0.01)
    assert plain.lines() == ["it"]


def test_a_start_that_dies_with_both_happens_once(plain):
    plain.stop_processes(plain.supervisor_pid())  # it never hears of the start
    job = plain.gated("it", code=3)
    plain.await_durable(job, "STARTING")
    plain.kill_both()
    plain.start()
    plain.open_gate("it")

    assert plain.outcome(job) == [("FAILED", 3)]
    assert plain.lines() == ["done it", "start it"]
    assert plain.job(job)["attempt"] == 1


def test_every_state_is_found_again_after_both_were_killed(plain):
    runs, stands = plain.gated("runs"), plain.gated("stands", code=6)
    plain.goes_on("runs")
    plain.goes_on("stands")
    plain.suspend(stands)
    waits, held = plain.gated("waits", cpus=16), plain.gated("held", hold=True)
    gone = plain.gated("gone", hold=True)
    plain.client.cancel(gone)
    plain.kill_both()
    plain.start()
    jobs = (runs, waits, held, gone)
    found, _ = plain.states(*jobs), plain.await_state(stands, "SUSPENDED_USER")
    plain.open_gate("runs", "stands", "waits", "held")
    for job in (stands, held):
        plain.client.resume(job)

    assert found == ["RUNNING", "PENDING", "HELD", "CANCELLED"]
    ends = plain.outcome(*jobs, stands)
    assert ends == [*[("COMPLETED", 0)] * 3, ("CANCELLED", None), ("FAILED", 6)]


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_what_ends_a_job_outlives_both(plain, verb):
    job = plain.script(
        "trap 'echo heard >> ledger; exit 9' TERM; echo begin >> ledger;"
        " while [ ! -e open ]; do sleep 0.02; done"
    )
    until(lambda: plain.lines() == ["begin"], "begin of the job")
    plain.stop_processes(plain.supervisor_pid())  # nothing ends the job before the daemon is dead
    asked = plain.later(plain.ask, "POST", f"/v1/jobs/{job}/{verb}", {"grace_s": 20})
    plain.await_durable(job, "STOPPING")
    plain.kill_both()
    assert isinstance(asked.exception(), OSError)
    plain.start()
    again = [] if verb == "cancel" else ["begin"]
    until(lambda: plain.lines() == sorted(["begin", "heard", *again]), "the request, another begin")
    (plain.place / "open").touch()

    assert plain.outcome(job) == [("CANCELLED", 9) if verb == "cancel" else ("COMPLETED", 0)]


def test_a_job_that_is_cancelled_before_its_start_was_heard_ends(plain):
    supervisor = plain.supervisor_pid()
    plain.stop_processes(supervisor)
    job = plain.gated("it")
    plain.await_state(job, "STARTING")
    asked = plain.later(plain.client.cancel, job)
    plain.await_state(job, "STOPPING")
    plain.continue_processes(supervisor)

    assert asked.result()["gone"]
    assert plain.states(job) == ["CANCELLED"]
    assert plain.lines() in ([], ["start it"])


def test_bytes_are_those_of_the_job_and_written_is_not_read(plain):
    reads = direct_reads(plain.place, 16)
    writes = "dd if=/dev/zero of=out bs=1M count=16 oflag=direct 2>/dev/null"
    found = [plain.end_of(job) for job in plain.scripts(reads, writes, "exit 0")]
    mib = 1 << 20

    moved = [(job["read_bytes"], job["written_bytes"]) for job in found]
    expected = [(16 * mib, 0), (0, 16 * mib), (0, 0)]
    assert moved == [pytest.approx(pair, abs=4 * mib) for pair in expected]
