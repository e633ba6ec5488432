"""A job that is slowed down, and what clears its cap: all that thaws a job, whoever dies."""

import time

import pytest

DAEMON, SUPERVISOR = "iodaemon.service", "iodaemon-supervisor.service"
DISK = "/dev/nvme0n1"
WRITES = """
while [ ! -e /tmp/gate-$IOD_JOB_ID ]; do
    dd if=/dev/zero of=/var/tmp/writer-$IOD_JOB_ID bs=128k count=32 oflag=direct conv=notrunc
done 2>/dev/null
"""
RATE = 2_000_000


def written_bytes(service, job):
    stat = service.machine.sh(f"cat {service.cgroup(job)}/io.stat")
    words = [word for line in stat.splitlines() for word in line.split()]
    return sum(int(word.removeprefix("wbytes=")) for word in words if word.startswith("wbytes="))


def rate_of(service, job, *, during_s=6.0):
    before, began_s = written_bytes(service, job), time.monotonic()
    time.sleep(during_s)
    return (written_bytes(service, job) - before) / (time.monotonic() - began_s)


def await_uncapped(service, job, *, limit_s=60.0):
    path = f"{service.cgroup(job)}/io.max"
    service.machine.until(f'[ -z "$(cat {path})" ]', what=f"{path} empty", limit_s=limit_s)


@pytest.fixture
def slowed(service):
    """A writer that may write 2 MB/s, by a cap that the daemon knows nothing of."""
    job = service.submit(WRITES)
    service.await_state(job, "RUNNING")
    time.sleep(2)
    disk = service.machine.sh(f"lsblk -no MAJ:MIN {DISK}").strip()
    service.machine.sh(f"echo {disk} wbps={RATE} > {service.cgroup(job)}/io.max")
    yield job
    service.cancel_all()
    service.machine.sh("rm -f /var/tmp/writer-*")


def test_a_job_moves_what_its_cap_says_and_more_once_it_is_cleared(service, slowed):
    slow = rate_of(service, slowed)
    service.ask("POST", f"/v1/jobs/{slowed}/suspend", {})
    service.await_state(slowed, "SUSPENDED_USER")
    service.ask("POST", f"/v1/jobs/{slowed}/resume", {})
    await_uncapped(service, slowed)

    assert 0.5 * RATE < slow < 1.5 * RATE
    assert rate_of(service, slowed) > 2.0 * slow


@pytest.mark.parametrize(
    "how",
    [
        f"systemctl kill -s KILL {DAEMON}",
        f"systemctl kill -s KILL {SUPERVISOR}",
        f"systemctl kill -s KILL {SUPERVISOR} {DAEMON}",
        f"systemctl restart {DAEMON}",
        f"systemctl restart {SUPERVISOR}",
        f"systemctl kill -s STOP {DAEMON}",
    ],
)
def test_no_cap_outlives(service, slowed, how):
    before = service.pids(slowed)[0]
    try:
        service.machine.sh(how, limit_s=200)
        await_uncapped(service, slowed)
    finally:
        service.machine.sh(f"systemctl kill -s CONT {DAEMON}")
    service.await_ready()

    assert before == service.pids(slowed)[0]
    assert "RUNNING" == service.show(slowed)["state"]
