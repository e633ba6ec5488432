"""A job that forks as fast as it can stands still when it is told to, runs on, and is ended."""

import time

import pytest
from server import SCOPE

MOST = 150
"""Processes, by the job's own limit (RLIMIT_NPROC)."""
FROZEN_WITHIN_S = 30
GONE_WITHIN_S = 30
"""Both are under emulation, with four CPUs that are all forking on two."""
BOMB = f"""
import os, random, resource
resource.setrlimit(resource.RLIMIT_NPROC, ({MOST}, {MOST}))
while True:
    try:
        if os.fork():
            if random.random() < 0.5:
                os._exit(0)  # its children are the supervisor's then
        else:
            os.setsid()
    except BlockingIOError:
        os.sched_yield()
"""


def processes(service, user="ann"):
    """Of that user, whatever cgroup they are in; not what has ended and waits to be reaped."""
    found = service.machine.sh(f"ps -u {user} -o pid=,stat= | grep -v Z || true", limit_s=200)
    return {int(line.split()[0]) for line in found.splitlines()}


@pytest.fixture
def bomb(service):
    service.machine.put("/usr/local/lib/bomb.py", BOMB.encode())
    job = service.submit("exec python3 -I -S /usr/local/lib/bomb.py")
    grown = f"[ $(wc -l <{service.cgroup(job)}/cgroup.procs) -gt {MOST // 2} ]"
    service.machine.until(grown, what="a crowd", limit_s=120)
    yield job
    service.machine.sh(f"echo 1 >{service.cgroup(job)}/cgroup.kill || true", limit_s=200)


def test_a_fork_bomb_is_frozen_resumed_and_cancelled(service, bomb):
    began_s = time.monotonic()
    service.ask("POST", f"/v1/jobs/{bomb}/suspend", {})
    service.await_state(bomb, "SUSPENDED_USER", limit_s=FROZEN_WITHIN_S)
    frozen_s = time.monotonic() - began_s
    before = processes(service)
    cpu = service.machine.sh(f"head -1 {service.cgroup(bomb)}/cpu.stat; sleep 2")
    assert [f"{bomb}.1"] == service.frozen()
    assert before == processes(service) == set(service.pids(bomb))
    assert cpu == service.machine.sh(f"head -1 {service.cgroup(bomb)}/cpu.stat")

    service.ask("POST", f"/v1/jobs/{bomb}/resume", {})
    service.await_state(bomb, "RUNNING")
    service.machine.until(
        f"[ $(sort -n {service.cgroup(bomb)}/cgroup.procs | tail -1) -gt {max(before)} ]",
        what="another process",
    )

    began_s = time.monotonic()
    answer = service.ask("POST", f"/v1/jobs/{bomb}/cancel", {"grace_s": 0})
    shown = service.await_state(bomb, "CANCELLED", limit_s=GONE_WITHIN_S)
    gone_s = time.monotonic() - began_s
    print(f"frozen after {frozen_s:.1f} s, gone after {gone_s:.1f} s, {len(before)} processes")
    assert answer["gone"]
    assert "CANCELLED" == shown["state"]
    assert set() == processes(service)
    assert 0 == service.run("true")[1]["exit_code"]


def test_a_frozen_fork_bomb_is_cancelled_as_it_stands(service, bomb):
    service.ask("POST", f"/v1/jobs/{bomb}/suspend", {})
    service.await_state(bomb, "SUSPENDED_USER", limit_s=FROZEN_WITHIN_S)

    service.ask("POST", f"/v1/jobs/{bomb}/cancel", {"grace_s": 0})

    service.await_state(bomb, "CANCELLED", limit_s=GONE_WITHIN_S)
    assert set() == processes(service)


def test_the_service_answers_another_user_beside_it(service, bomb):
    printed, shown = service.run("echo beside it", user="bob")

    assert ("beside it\n", 0) == (printed, shown["exit_code"])
    assert "RUNNING" == service.show(bomb)["state"]


def test_jobs_together_are_limited_in_processes_by_their_scope(service):
    """So that a bomb without a limit of its own leaves the machine its pids."""
    service.run("true")
    most = service.machine.sh(f"cat {SCOPE}/pids.max")
    there = service.machine.sh("cat /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max")
    print(most, there)

    assert int(most) < min(map(int, there.split()))
