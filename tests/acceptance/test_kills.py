"""SIGKILL and SIGSTOP of daemon and supervisor: no job is lost, run twice, or left standing."""

import os
import shlex
import sys

import pytest
from harness import direct_reads, find_state, until

pytestmark = pytest.mark.node

SETTINGS = {
    "orphan_grace": "400 ms",
    "policy": "dynamic",
    "regulation": {"io_bound": "4 MB/s", "timeslice": "250 ms"},
}
NAMES = ("runs", "held", "reads")
ONCE = sorted(f"{word} {name}" for word in ("start", "done") for name in NAMES)
TRUE_ENDS = [("FAILED", 3), ("FAILED", 4), ("FAILED", 5)]


def scene(system):
    """A job that runs, one that a person holds, and one that regulation holds."""
    reads = f"sleep 0.02; {direct_reads(system.place, 64)}"
    runs = system.gated("runs", code=3, no_suspend=True)
    held = system.gated("held", code=4, no_suspend=True)
    reader = system.gated("reads", code=5, step=reads)
    system.goes_on("runs")
    system.goes_on("held")
    assert system.suspend(held) == "SUSPENDED_USER"
    system.await_durable(reader, "SUSPENDED_IO")  # a kill before that takes the time with it
    return runs, held, reader


def killed(system, victims):
    {
        "daemon": system.kill,
        "supervisor": system.kill_supervisor,
        "both": system.kill_both,
    }[victims]()


@pytest.mark.parametrize(
    ("freezer", "victims"),
    [("cgroup", "daemon"), ("cgroup", "supervisor"), ("cgroup", "both"), ("signals", "both")],
    indirect=["freezer"],
)
def test_every_job_ends_once_with_its_own_exit_code(system, victims):
    jobs = scene(system)
    killed(system, victims)
    if not system.is_running():
        system.start()
    system.goes_on("runs")
    system.goes_on("reads")
    system.await_state(jobs[1], "SUSPENDED_USER")
    until(lambda: system.stands_still("held"), "standstill of the held job")
    system.client.resume(jobs[1])
    system.open_gate(*NAMES)
    ends = system.outcome(*jobs)
    found = [system.job(job) for job in jobs]

    assert ends == TRUE_ENDS
    assert system.lines() == ONCE
    assert system.frozen() == []
    for job in found:
        booked_s = job["run_s"] + job["suspended_user_s"] + job["suspended_io_s"]
        assert job["ended_s"] - job["started_s"] == pytest.approx(booked_s, abs=0.1)
        assert job["attempt"] == 1
    assert found[0]["suspended_user_s"] + found[0]["suspended_io_s"] == 0
    assert found[1]["suspended_user_s"] > 0
    assert found[2]["suspended_io_s"] > 0


@pytest.mark.parametrize(
    ("freezer", "victims"), [("cgroup", "daemon"), ("signals", "both")], indirect=["freezer"]
)
def test_without_another_daemon_nothing_stays_frozen_and_all_is_known_later(system, victims):
    jobs = scene(system)
    killed(system, victims)
    until(lambda: not system.frozen(), "thaw of all jobs")
    system.open_gate(*NAMES)
    until(lambda: system.lines() == ONCE, "end of all jobs")
    until(lambda: not system.job_processes(), "end of all jobs' processes")
    system.start()

    assert system.outcome(*jobs) == TRUE_ENDS
    assert system.lines() == ONCE


def test_nothing_stays_frozen_while_the_daemon_stands_still(plain):
    job = plain.gated("it")
    plain.goes_on("it")
    plain.suspend(job)
    daemon = plain.process.pid
    assert plain.frozen()
    plain.stop_processes(daemon)
    until(lambda: plain.frozen() == [daemon], "thaw")
    plain.goes_on("it")
    plain.continue_processes(daemon)
    until(lambda: plain.stands_still("it"), "standstill")

    assert plain.states(job) == ["SUSPENDED_USER"]


def test_a_supervisor_that_stands_still_is_let_go_and_what_was_asked_is_done(plain):
    held, going = plain.gated("held", code=3), plain.gated("going")
    plain.goes_on("held")
    plain.goes_on("going")
    plain.suspend(held)
    pid = plain.supervisor_pid()
    plain.stop_processes(pid)
    asked = plain.later(plain.client.cancel, going)
    until(lambda: find_state(pid) != "T", "end of its standstill")
    plain.client.resume(held)
    plain.open_gate("held")

    assert asked.result()["gone"]
    assert plain.outcome(held) == [("FAILED", 3)]
    assert plain.states(going) == ["CANCELLED"]


def test_a_daemon_that_is_stopped_lets_all_go_and_the_next_one_holds_them_again(plain):
    """What ends meanwhile ends as it does."""
    runs, held = plain.gated("runs", code=3), plain.gated("held", code=4)
    plain.goes_on("runs")
    plain.goes_on("held")
    plain.suspend(held)
    code = plain.stop()
    frozen = plain.frozen()
    plain.goes_on("held")
    plain.open_gate("runs")
    until(lambda: "done runs" in plain.lines(), "end of a job")
    plain.start()
    plain.await_state(held, "SUSPENDED_USER")
    until(lambda: plain.stands_still("held"), "standstill of the held job")
    plain.client.resume(held)
    plain.open_gate("held")

    assert (code, frozen) == (0, [])
    assert plain.outcome(runs, held) == [("FAILED", 3), ("FAILED", 4)]
    assert plain.lines() == ["done held", "done runs", "start held", "start runs"]


# -- what is counted -----------------------------------------------------------------------------


def test_bytes_of_children_that_ended_or_detached_are_counted_over_a_kill(plain):
    """Interpreters and loaders read for themselves: 4 MiB of 40 are allowed for them."""
    two = direct_reads(plain.place, 2)
    ten = f"for n in 1 2 3 4 5; do {two}; done"
    os.mkfifo(plain.place / "half")
    job = plain.script(
        f"{ten}; (setsid sh -c '{ten}; echo > half' &); read x < half;"
        f" echo half >> ledger; until [ -e open ]; do sleep 0.02; done;"
        f" {ten}; (setsid sh -c '{ten}' &); exit 5"
    )
    mib = 1 << 20
    seen = [0]

    def has_read_half():
        read_bytes = plain.job(job)["read_bytes"]
        if read_bytes is not None:  # it is not known before the first sample
            seen.append(read_bytes)
        return seen[-1] >= 19 * mib and plain.lines() == ["half"]

    until(has_read_half, "the first half")
    plain.kill()
    plain.start()
    until(has_read_half, "the first half, after the kill")
    (plain.place / "open").touch()
    found = plain.end_of(job)

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
        while not os.path.exists("gate-seen"):
            time.sleep(0.02)
        os._exit(0)
while not os.path.exists("gate-over"):
    time.sleep(0.02)
"""


def test_bytes_of_children_that_the_kernel_reaps_by_itself_are_told_as_at_least(plain):
    job = plain.script(shlex.join([sys.executable, "-c", IGNORES]))
    mib = 1 << 20
    until(lambda: (plain.job(job)["written_bytes"] or 0) >= 32 * mib, "all that they wrote")
    plain.open_gate("seen", "over")
    found = plain.end_of(job)

    assert (found["state"], found["io_at_least"]) == ("COMPLETED", True)
    assert found["written_bytes"] >= 32 * mib
    assert "at least" in plain.says("show", str(job))
