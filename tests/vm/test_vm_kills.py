"""SIGKILL of everything there is, alone and together, beside jobs that run and that stand still."""

import pytest

DAEMON, SUPERVISOR = "iodaemon.service", "iodaemon-supervisor.service"
ENDS = ("COMPLETED", "FAILED", "LOST", "CANCELLED")


def finish(service, running, held):
    """Let both end by themselves; how they did."""
    for job in (running, held):
        service.machine.sh(f"touch /tmp/gate-{job}")
    service.ask("POST", f"/v1/jobs/{held}/resume", {}, user="bob")
    return [service.await_state(job, *ENDS) for job in (running, held)]


@pytest.mark.parametrize("role", ["iod-supervisor", "iod-anchor"])
def test_a_job_of_a_root_side_that_is_killed_in_part_goes_on_and_its_end_is_known(
    service, two_jobs, role
):
    before = [service.pids(job)[0] for job in two_jobs]
    service.machine.sh(f"pkill -KILL -x {role}")

    printed, shown = service.run("echo beside")
    assert ("beside\n", 0) == (printed, shown["exit_code"])
    assert before == [service.pids(job)[0] for job in two_jobs]
    service.await_state(two_jobs[1], "SUSPENDED_USER")
    assert [7, 7] == [each["exit_code"] for each in finish(service, *two_jobs)]


def test_all_of_it_killed_at_once_leaves_no_job_still_and_none_is_taken_for_done(service, two_jobs):
    """Daemon, anchor and supervisor: nobody is left that knows how the jobs end."""
    mains = {unit: service.main_pid(unit) for unit in (DAEMON, SUPERVISOR)}
    others = service.machine.sh("pgrep -x iod-supervisor").split()
    service.machine.sh(f"kill -KILL {' '.join([*map(str, mains.values()), *others])}")
    for unit, main in mains.items():
        replaced = f"p=$(systemctl show -P MainPID {unit}); [ $p != 0 ] && [ $p != {main} ]"
        service.machine.until(replaced, what=f"another {unit}")
    service.await_ready()

    states = [service.show(job)["state"] for job in two_jobs]
    print(states, service.frozen())
    assert all(service.pids(job) for job in two_jobs)
    ends = finish(service, *two_jobs)
    assert ["LOST"] * 2 == [each["state"] for each in ends]
    assert [None] * 2 == [each["exit_code"] for each in ends]


@pytest.mark.parametrize(
    "how",
    [
        "systemctl daemon-reexec",
        "systemctl kill -s KILL dbus.service; systemctl start dbus.socket",
        "systemctl kill -s KILL systemd-journald.service",
    ],
    ids=["systemd itself begins anew", "dbus is killed", "journald is killed"],
)
def test_jobs_outlive_what_happens_to_the_machines_own_services(service, two_jobs, how):
    before = [service.pids(job)[0] for job in two_jobs]
    mains = [service.main_pid(unit) for unit in (DAEMON, SUPERVISOR)]

    service.machine.sh(f"{how}; systemctl reset-failed", limit_s=200)
    service.await_ready()

    printed, shown = service.run("echo again")
    assert ("again\n", 0) == (printed, shown["exit_code"])
    assert mains == [service.main_pid(unit) for unit in (DAEMON, SUPERVISOR)]
    assert before == [service.pids(job)[0] for job in two_jobs]
    assert [f"{two_jobs[1]}.1"] == service.frozen()
    assert [7, 7] == [each["exit_code"] for each in finish(service, *two_jobs)]


def test_kills_one_after_the_other_leave_both_jobs_as_they_were(service, two_jobs):
    """Each while the one before is not over: what is half done is found and finished."""
    for _ in range(2):
        for kill in ("pkill -KILL -x iod-supervisor", f"systemctl kill -s KILL {DAEMON}"):
            service.machine.sh(f"{kill} || true; sleep 0.7")
    service.await_ready()

    service.await_state(two_jobs[0], "RUNNING")
    service.await_state(two_jobs[1], "SUSPENDED_USER")
    assert [7, 7] == [each["exit_code"] for each in finish(service, *two_jobs)]
