"""Every job runs once and is found again as it was, wherever those who serve it die."""

import time

import pytest
from system import reads, until

pytestmark = pytest.mark.node


def test_a_job_that_was_acknowledged_runs_once_wherever_the_daemon_dies(plain):
    jobs = []
    for number in range(4):
        jobs.append(plain.submit(f"echo {number} >> ledger; exit {number % 3}"))
        plain.kill("daemon", "supervisor") if number == 2 else plain.kill("daemon")
        plain.start()
    codes = [number % 3 for number in range(4)]

    assert [("FAILED" if code else "COMPLETED", code) for code in codes] == plain.outcome(*jobs)
    assert plain.ledger() == [str(number) for number in range(4)]


def test_a_batch_is_accepted_whole_or_not_at_all(plain):
    first = plain.submit("true")
    answer = plain.later(plain.submit_all, ["echo it >> ledger"] * 50)
    until(lambda: len(plain.get(f"/v1/jobs?select={first}-9999&limit=2")["jobs"]) > 1, "the batch")
    plain.kill("daemon")
    is_acknowledged = answer.exception() is None
    plain.start()
    known = plain.get(f"/v1/jobs?select={first + 1}-9999")["jobs"]
    plain.outcome(*(job["id"] for job in known))

    assert len(known) == 50 or (not is_acknowledged and not known)
    assert len(plain.ledger()) == len(known)


@pytest.mark.parametrize("fate", ["hears of it later", "dies as well"])
def test_a_start_that_the_supervisor_did_not_hear_happens_once(plain, fate):
    plain.stop("supervisor")
    job = plain.gated("it", code=3)
    plain.await_durable(job, "STARTING")
    plain.kill("daemon")
    plain.cont("supervisor") if fate == "hears of it later" else plain.kill("supervisor")
    plain.start()
    plain.open("it")

    assert plain.outcome(job) == [("FAILED", 3)]
    assert plain.ledger() == ["begin it", "end it"]
    assert plain.job(job)["attempt"] == 1


def test_a_job_that_began_and_ended_unseen_has_its_own_times(plain):
    plain.stop("supervisor")
    job = plain.submit("echo it >> ledger; exit 3")
    plain.await_durable(job, "STARTING")
    plain.kill("daemon")
    plain.cont("supervisor")
    until(lambda: plain.ledger() == ["it"] and not plain.job_processes(), "end of the job")
    before_s = time.time()
    plain.start()
    found = plain.end_of(job)

    assert (found["state"], found["exit_code"]) == ("FAILED", 3)
    assert found["started_s"] <= found["ended_s"] <= before_s + 0.1
    assert found["run_s"] == pytest.approx(found["ended_s"] - found["started_s"], abs=0.01)


def test_every_state_is_found_again_after_both_were_killed(plain):
    runs, stands = plain.gated("runs"), plain.gated("stands", code=6)
    plain.goes_on("runs", "stands")
    plain.post(f"/v1/jobs/{stands}/suspend")
    waits, held = plain.gated("waits", cpus=16), plain.gated("held", hold=True)
    gone = plain.gated("gone", hold=True)
    plain.post(f"/v1/jobs/{gone}/cancel")
    plain.kill("daemon", "supervisor")
    plain.start()
    jobs = (runs, waits, held, gone)
    found, _ = plain.states(*jobs), plain.await_state(stands, "SUSPENDED_USER")
    plain.open("runs", "stands", "waits", "held")
    for job in (stands, held):
        plain.post(f"/v1/jobs/{job}/resume")

    assert found == ["RUNNING", "PENDING", "HELD", "CANCELLED"]
    ends = plain.outcome(*jobs, stands)
    assert ends == [*[("COMPLETED", 0)] * 3, ("CANCELLED", None), ("FAILED", 6)]


def test_jobs_that_end_while_there_is_no_daemon_end_as_they_did(plain):
    jobs = [plain.gated("one"), plain.gated("two", code=9)]
    plain.goes_on("one", "two")
    plain.end()
    plain.open("one", "two")
    until(lambda: not plain.job_processes(), "end of all jobs' processes")
    plain.start()

    assert plain.outcome(*jobs) == [("COMPLETED", 0), ("FAILED", 9)]


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_what_ends_a_job_outlives_both(plain, verb):
    job = plain.submit(
        "trap 'echo heard >> ledger; exit 9' TERM; echo begin >> ledger;"
        " while [ ! -e open ]; do sleep 0.02; done"
    )
    until(lambda: plain.ledger() == ["begin"], "begin of the job")
    plain.stop("supervisor")  # nothing ends the job before the daemon is dead
    asked = plain.later(plain.ask, "POST", f"/v1/jobs/{job}/{verb}", {"grace_s": 20})
    plain.await_durable(job, "STOPPING")
    plain.kill("daemon", "supervisor")
    assert isinstance(asked.exception(), OSError)
    plain.start()
    until(lambda: "heard" in plain.ledger(), "the request")
    again = [] if verb == "cancel" else ["begin"]
    until(lambda: plain.ledger() == sorted(["begin", "heard", *again]), "another begin")
    (plain.work / "open").touch()

    assert plain.outcome(job) == [("CANCELLED", 9) if verb == "cancel" else ("COMPLETED", 0)]


def test_a_job_that_is_cancelled_before_its_start_was_heard_ends(plain):
    plain.stop("supervisor")
    job = plain.gated("it")
    plain.await_state(job, "STARTING")
    asked = plain.later(plain.post, f"/v1/jobs/{job}/cancel")
    plain.await_state(job, "STOPPING")
    plain.cont("supervisor")

    assert asked.result()["gone"]
    assert plain.states(job) == ["CANCELLED"]
    assert plain.ledger() in ([], ["begin it"])


def test_bytes_are_those_of_the_job_and_written_is_not_read(plain):
    sixteen = reads(plain.work, 16)
    writes = "dd if=/dev/zero of=out bs=1M count=16 oflag=direct 2>/dev/null"
    found = [plain.end_of(job) for job in plain.submit_all([sixteen, writes, "exit 0"])]
    mib = 1 << 20

    moved = [(job["read_bytes"], job["written_bytes"]) for job in found]
    expected = [(16 * mib, 0), (0, 16 * mib), (0, 0)]
    assert moved == [pytest.approx(pair, abs=4 * mib) for pair in expected]
