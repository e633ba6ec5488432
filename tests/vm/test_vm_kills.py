"""SIGKILL of everything there is, alone and together, beside jobs that run and that stand still."""

import pytest

DAEMON, KEEPER = "iodaemon.service", "iodaemon-keeper.service"
ENDS = ("COMPLETED", "FAILED", "LOST", "CANCELLED")


def finish(service, running, held):
    """Let both end by themselves; how they did."""
    for job in (running, held):
        service.machine.sh(f"touch /tmp/gate-{job}")
    service.ask("POST", f"/v1/jobs/{held}/resume", {}, user="bob")
    return [service.await_state(job, *ENDS) for job in (running, held)]


def shims(service, *jobs):
    """Their pids: a shim is its job's parent."""
    firsts = [service.pids(job)[0] for job in jobs]
    return service.machine.sh(f"ps -o ppid= -p {','.join(map(str, firsts))}").split()


def test_a_job_whose_shim_is_killed_goes_on_and_is_lost_not_done(service, two_jobs):
    before = [service.pids(job)[0] for job in two_jobs]
    service.machine.sh(f"kill -KILL {' '.join(shims(service, *two_jobs))}")

    printed, shown = service.run("echo beside")
    assert ("beside\n", 0) == (printed, shown["exit_code"])
    assert before == [service.pids(job)[0] for job in two_jobs]
    # Nobody is left that would thaw it, were the keeper to die as well: so it is thawed, and said.
    service.await_state(two_jobs[1], "RUNNING")
    assert [] == service.frozen()
    ends = finish(service, *two_jobs)

    assert ["LOST"] * 2 == [each["state"] for each in ends]
    assert [None] * 2 == [each["exit_code"] for each in ends]


def test_all_of_it_killed_at_once_leaves_no_job_still_and_none_is_taken_for_done(service, two_jobs):
    """Daemon, keeper and every shim: nobody is left that knows how the jobs end."""
    mains = {unit: service.main_pid(unit) for unit in (DAEMON, KEEPER)}
    pids = " ".join([*map(str, mains.values()), *shims(service, *two_jobs)])
    service.machine.sh(f"kill -KILL {pids}")
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
    mains = [service.main_pid(unit) for unit in (DAEMON, KEEPER)]

    service.machine.sh(f"{how}; systemctl reset-failed", limit_s=200)
    service.await_ready()

    printed, shown = service.run("echo again")
    assert ("again\n", 0) == (printed, shown["exit_code"])
    assert mains == [service.main_pid(unit) for unit in (DAEMON, KEEPER)]
    assert before == [service.pids(job)[0] for job in two_jobs]
    assert [f"{two_jobs[1]}.1"] == service.frozen()
    assert [7, 7] == [each["exit_code"] for each in finish(service, *two_jobs)]


def test_kills_one_after_the_other_leave_both_jobs_as_they_were(service, two_jobs):
    """Each while the one before is not over: what is half done is found and finished."""
    for unit in (KEEPER, DAEMON, KEEPER, DAEMON):
        service.machine.sh(f"systemctl kill -s KILL {unit} || true; sleep 0.7")
    service.await_ready()

    service.await_state(two_jobs[0], "RUNNING")
    service.await_state(two_jobs[1], "SUSPENDED_USER")
    assert [7, 7] == [each["exit_code"] for each in finish(service, *two_jobs)]
