"""A job that has its user's own systemd take it out of its cgroup."""

import time

import pytest

MANAGER = "/run/user/1001"
LEAVES = f"export XDG_RUNTIME_DIR={MANAGER}; exec systemd-run --user --scope --quiet "
SPINS = "sh -c 'while :; do echo >> /tmp/outside; sleep 0.05; done'"


@pytest.fixture
def manager(service):
    """Of ann's, without a login."""
    service.machine.sh("loginctl enable-linger ann; rm -f /tmp/outside")
    service.machine.until(f"[ -S {MANAGER}/systemd/private ]", what="ann's manager")
    yield
    service.machine.sh("loginctl disable-linger ann")


@pytest.fixture
def job(service, manager):
    """One of ann's that runs outside, and of which nothing is in its cgroup."""
    job = service.submit(LEAVES + SPINS)
    service.machine.until(
        "[ -s /tmp/outside ] && grep -q 'user@1001.service' "
        "/proc/$(pgrep -u ann -f 'while :; do echo' | head -n 1)/cgroup",
        what="a job in a scope of ann's",
    )
    service.machine.until(f'[ -z "$(cat {service.cgroup(job)}/cgroup.procs)" ]', what="it leaves")
    return job


def size(service):
    return int(service.machine.sh("stat -c %s /tmp/outside"))


def test_a_job_in_a_scope_of_its_users_is_suspended_and_resumed(service, job):
    told = service.ask("POST", f"/v1/jobs/{job}/suspend", {})
    service.await_state(job, "SUSPENDED_USER")
    before = size(service)
    time.sleep(1)
    after = size(service)
    service.ask("POST", f"/v1/jobs/{job}/resume", {})
    service.machine.until(f"[ $(stat -c %s /tmp/outside) -gt {after} ]", what="progress")
    said = service.machine.sh("journalctl -q -o cat -u iodaemon-keeper -g 'left its cgroup'")

    assert "error" not in told
    assert before == after
    assert f"job {job}.1: " in said


@pytest.mark.parametrize("grace_s", [0, 3])
@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_job_in_a_scope_of_its_users_is_cancelled(service, job, grace_s, is_suspended):
    if is_suspended:
        service.ask("POST", f"/v1/jobs/{job}/suspend", {})
        service.await_state(job, "SUSPENDED_USER")
    service.ask("POST", f"/v1/jobs/{job}/cancel", {"grace_s": grace_s}, user="root")
    service.await_state(job, "CANCELLED", limit_s=20)

    assert "" == service.machine.sh("pgrep -u ann -f 'while :; do echo' || true")


def test_a_walltime_ends_a_job_in_a_scope_of_its_users(service, manager):
    job = service.submit(LEAVES + "sleep 600", walltime_s=5)

    assert "TIMEOUT" == service.await_state(job, "TIMEOUT", "COMPLETED", "FAILED")["state"]
