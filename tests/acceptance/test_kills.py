"""SIGKILL and SIGSTOP of daemon and supervisor: no job is lost, run twice, or left standing."""

import os
import shlex
import sys

import pytest
from system import reads, state_of, until

pytestmark = pytest.mark.node

SETTINGS = {
    "orphan_grace": "400 ms",
    "policy": "dynamic",
    "regulation": {"io_bound": "4 MB/s", "timeslice": "250 ms"},
}
NAMES = ("runs", "held", "reads")
ONCE = sorted(f"{word} {name}" for word in ("begin", "end") for name in NAMES)
TRUE_ENDS = [("FAILED", 3), ("FAILED", 4), ("FAILED", 5)]


def scene(system):
    """A job that runs, one that a person holds, and one that regulation holds."""
    runs = system.gated("runs", code=3, no_suspend=True)
    held = system.gated("held", code=4, no_suspend=True)
    reader = system.gated("reads", code=5, step=reads(system.work, 64))
    system.goes_on("runs", "held")
    assert system.post(f"/v1/jobs/{held}/suspend")["job"]["state"] == "SUSPENDED_USER"
    system.await_durable(reader, "SUSPENDED_IO")  # a kill before that takes the time with it
    return runs, held, reader


@pytest.mark.parametrize("victims", [("daemon",), ("supervisor",), ("daemon", "supervisor")])
def test_every_job_ends_once_with_its_own_exit_code(system, victims):
    jobs = scene(system)
    system.kill(*victims)
    system.ensure_running()
    system.goes_on("runs", "reads")
    system.await_state(jobs[1], "SUSPENDED_USER")
    until(lambda: system.stands_still("held"), "standstill of the held job")
    system.post(f"/v1/jobs/{jobs[1]}/resume")
    system.open(*NAMES)
    ends = system.outcome(*jobs)
    found = [system.job(job) for job in jobs]

    assert ends == TRUE_ENDS
    assert system.ledger() == ONCE
    assert system.frozen() == []
    for job in found:
        booked_s = job["run_s"] + job["suspended_user_s"] + job["suspended_io_s"]
        assert job["ended_s"] - job["started_s"] == pytest.approx(booked_s, abs=0.1)
        assert job["attempt"] == 1
    assert found[0]["suspended_user_s"] + found[0]["suspended_io_s"] == 0
    assert found[1]["suspended_user_s"] > 0
    assert found[2]["suspended_io_s"] > 0


@pytest.mark.parametrize("victims", [("daemon",), ("daemon", "supervisor")])
def test_without_another_daemon_nothing_stays_frozen_and_all_is_known_later(system, victims):
    jobs = scene(system)
    system.kill(*victims)
    until(lambda: not system.frozen(), "thaw of all jobs")
    system.open(*NAMES)
    until(lambda: system.ledger() == ONCE, "end of all jobs")
    until(lambda: not system.job_processes(), "end of all jobs' processes")
    system.start()

    assert system.outcome(*jobs) == TRUE_ENDS
    assert system.ledger() == ONCE


def test_nothing_stays_frozen_while_the_daemon_stands_still(system):
    job = system.gated("it")
    system.goes_on("it")
    system.post(f"/v1/jobs/{job}/suspend")
    assert system.frozen()
    system.stop("daemon")
    until(lambda: not system.frozen(), "thaw")
    system.goes_on("it")
    system.cont("daemon")
    until(lambda: system.stands_still("it"), "standstill")

    assert system.states(job) == ["SUSPENDED_USER"]


def test_a_supervisor_that_stands_still_is_let_go(system):
    job = system.gated("it", code=3)
    system.goes_on("it")
    system.post(f"/v1/jobs/{job}/suspend")
    pid = system.role_pid("supervisor")
    system.stop("supervisor")
    until(lambda: state_of(pid) != "T", "end of its standstill")
    system.post(f"/v1/jobs/{job}/resume")
    system.open("it")

    assert system.outcome(job) == [("FAILED", 3)]


def test_a_daemon_that_is_stopped_lets_all_go_and_the_next_one_holds_them_again(system):
    runs, held = system.gated("runs", code=3), system.gated("held", code=4)
    system.goes_on("runs", "held")
    system.post(f"/v1/jobs/{held}/suspend")
    code = system.end()
    frozen = system.frozen()
    system.goes_on("runs", "held")
    system.start()
    system.await_state(held, "SUSPENDED_USER")
    until(lambda: system.stands_still("held"), "standstill of the held job")
    system.post(f"/v1/jobs/{held}/resume")
    system.open("runs", "held")

    assert (code, frozen) == (0, [])
    assert system.outcome(runs, held) == [("FAILED", 3), ("FAILED", 4)]
    assert system.ledger() == ["begin held", "begin runs", "end held", "end runs"]


# -- what is counted -----------------------------------------------------------------------------


def test_bytes_of_children_that_ended_or_detached_are_counted_over_a_kill(system):
    """Interpreters and loaders read for themselves: 4 MiB of 40 are allowed for them."""
    two = reads(system.work, 2)
    ten = f"for n in 1 2 3 4 5; do {two}; done"
    os.mkfifo(system.work / "half")
    job = system.submit(
        f"{ten}; (setsid sh -c '{ten}; echo > half' &); read x < half;"
        f" echo half >> ledger; until [ -e open ]; do sleep 0.02; done;"
        f" {ten}; (setsid sh -c '{ten}' &); exit 5"
    )
    mib = 1 << 20
    seen = [0]

    def has_read_half() -> bool:
        read_bytes = system.job(job)["read_bytes"]
        if read_bytes is not None:  # it is not known before the first sample
            seen.append(read_bytes)
        return seen[-1] >= 19 * mib and system.ledger() == ["half"]

    until(has_read_half, "the first half")
    system.kill("daemon")
    system.start()
    until(has_read_half, "the first half, after the kill")
    (system.work / "open").touch()
    found = system.end_of(job)

    assert (found["state"], found["exit_code"]) == ("FAILED", 5)
    assert [*seen, found["read_bytes"]] == sorted([*seen, found["read_bytes"]])
    assert seen[-1] == pytest.approx(20 * mib, abs=4 * mib)
    assert found["read_bytes"] == pytest.approx(40 * mib, abs=4 * mib)


IGNORES = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(4):
    if os.fork() == 0:
        with open(f"part{number}", "wb") as file:
            file.write(bytes(8 << 20))
            file.flush()
            os.fsync(file.fileno())
        while not os.path.exists("open-seen"):
            time.sleep(0.02)
        os._exit(0)
while not os.path.exists("open-over"):
    time.sleep(0.02)
"""


def test_bytes_of_children_that_the_kernel_reaps_by_itself_are_told_as_at_least(system):
    job = system.submit(shlex.join([sys.executable, "-c", IGNORES]))
    mib = 1 << 20
    until(lambda: (system.job(job)["written_bytes"] or 0) >= 32 * mib, "all that they wrote")
    system.open("seen", "over")
    found = system.end_of(job)

    assert (found["state"], found["io_at_least"]) == ("COMPLETED", True)
    assert found["written_bytes"] >= 32 * mib
    assert "at least" in system.says("show", str(job))
