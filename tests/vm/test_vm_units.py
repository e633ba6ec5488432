"""The units: what they may; neither a restart nor a kill costs a job or leaves it frozen."""

import json
import os

import pytest
from server import ASK, SCOPE

DAEMON, SUPERVISOR = "iodaemon.service", "iodaemon-supervisor.service"
ENDS = ("COMPLETED", "FAILED", "LOST", "CANCELLED")


def open_gates(service, *jobs):
    for job in jobs:
        service.machine.sh(f"touch /tmp/gate-{job}")


def test_systemd_finds_nothing_wrong_with_the_units(service):
    said = service.machine.run("bash", "-c", "systemd-analyze verify /etc/systemd/system/iodaemon*")

    assert ("", "") == (said.out, said.err)


def test_jobs_are_begun_by_the_compiled_launcher(service):
    service.run("true")

    said = service.machine.sh("readlink /proc/$(pgrep -x iod-launcher)/exe")

    assert said.startswith("/opt/iodaemon/lib/")
    assert said.endswith("/supervisor/iod-launcher")


def test_the_daemon_is_nobody_without_powers(service):
    pid = service.main_pid(DAEMON)
    status = dict(
        line.split(":\t") for line in service.machine.sh(f"cat /proc/{pid}/status").splitlines()
    )

    assert service.machine.sh("id -u iodaemon") == status["Uid"].split("\t")[1]
    assert [0] * 3 == [int(status[f"Cap{name}"], 16) for name in ("Eff", "Prm", "Bnd")]
    assert ("1", "2") == (status["NoNewPrivs"], status["Seccomp"])


def test_no_system_call_of_the_daemon_changes_another_process(service):
    said = service.machine.sh("systemctl show -P SystemCallFilter iodaemon.service").split()

    assert "read" in said  # what may be called, by name
    wrong = {"process_vm_writev", "process_vm_readv", "process_madvise", "ptrace", "pidfd_getfd"}
    assert set() == wrong & set(said)


@pytest.mark.parametrize(
    ("how", "units"),
    [
        (f"systemctl restart {DAEMON}", (DAEMON,)),
        (f"systemctl reload {SUPERVISOR}", ()),
        (f"systemctl kill -s KILL {DAEMON}", (DAEMON,)),
        ("pkill -KILL -x iod-supervisor", ()),
        (f"pkill -KILL -x iod-supervisor; systemctl kill -s KILL {DAEMON}", (DAEMON,)),
        (f"rm -rf /run/iodaemon; systemctl restart iodaemon.socket {DAEMON}", (DAEMON,)),
    ],
    ids=[
        *("restart daemon", "reload supervisor", "kill daemon", "kill supervisor", "kill both"),
        "remove the sockets",
    ],
)
def test_jobs_outlive_what_happens_to_the_units(service, two_jobs, how, units):
    running, held = two_jobs
    before = [service.pids(job) for job in two_jobs]
    mains = {unit: service.main_pid(unit) for unit in units}

    service.machine.sh(how, limit_s=200)
    for unit, main in mains.items():
        replaced = f"p=$(systemctl show -P MainPID {unit}); [ $p != 0 ] && [ $p != {main} ]"
        service.machine.until(replaced, what=f"another {unit}")
    service.await_ready()

    service.await_state(running, "RUNNING")
    service.await_state(held, "SUSPENDED_USER")
    service.machine.until(f"grep -q '^frozen 1' {service.cgroup(held)}/cgroup.events", what="hold")
    after = [service.pids(job) for job in two_jobs]
    assert [pids[0] for pids in before] == [pids[0] for pids in after]
    open_gates(service, *two_jobs)
    service.ask("POST", f"/v1/jobs/{held}/resume", {}, user="bob")
    ends = [service.await_state(job, "FAILED", "LOST")["exit_code"] for job in two_jobs]
    assert [7, 7] == ends


def test_nothing_stands_still_once_all_is_stopped(service, two_jobs):
    sh = service.machine.sh

    sh("systemctl stop iodaemon.socket iodaemon.service iodaemon-supervisor.service", limit_s=200)

    assert [] == service.frozen()
    assert all(service.pids(job) for job in two_jobs)
    sh("systemctl daemon-reload; systemctl start iodaemon.service", limit_s=200)
    service.await_ready()
    open_gates(service, *two_jobs)
    running, held = two_jobs
    service.ask("POST", f"/v1/jobs/{held}/resume", {}, user="bob")
    # Their parent has ended: nobody knows how they do.
    assert ["LOST"] * 2 == [service.await_state(job, *ENDS)["state"] for job in (running, held)]


@pytest.fixture
def away(service):
    """The daemon is stopped, and another one begins only once this has been called."""
    sh = service.machine.sh
    drop_in = "/run/systemd/system/iodaemon.service.d/away.conf"
    wait = "while [ ! -e /run/vm-may-begin ]; do sleep 0.2; done"
    service.machine.put(drop_in, f'[Service]\nExecStartPre=+/bin/sh -c "{wait}"\n'.encode())
    sh("rm -f /run/vm-may-begin; systemctl daemon-reload; systemctl stop iodaemon", limit_s=200)
    yield lambda: sh("touch /run/vm-may-begin")
    sh("touch /run/vm-may-begin; systemctl start iodaemon.service", limit_s=200)
    service.await_ready()
    sh(f"rm -f {drop_in} /run/vm-may-begin /var/tmp/answer; rmdir {os.path.dirname(drop_in)}")
    sh("systemctl daemon-reload")


def test_a_client_that_comes_while_the_daemon_is_away_waits_for_it(service, away):
    sh, until = service.machine.sh, service.machine.until
    assert "inactive" == sh("systemctl is-active iodaemon.service || true")
    assert 0 == service.main_pid(DAEMON)

    command = f"/usr/bin/python3 -I -S {ASK} GET /v1/jobs"
    sh(f"systemd-run -q --collect --unit=client -p StandardOutput=file:/var/tmp/answer {command}")
    until(
        "[ $(systemctl show -P SubState iodaemon.service) = start-pre ]",
        what="a start for who has connected",
    )
    assert ("active", 0) == (sh("systemctl is-active client"), service.main_pid(DAEMON))
    assert "" == sh("cat /var/tmp/answer")
    away()
    until("! systemctl is-active -q client", what="the client's end", limit_s=120)

    assert "jobs" in json.loads(sh("cat /var/tmp/answer"))
    assert 0 != service.main_pid(DAEMON)


def test_who_stops_the_scope_stops_the_jobs_and_not_the_service(service, two_jobs):
    service.machine.sh("systemctl stop iodaemon-jobs.scope", limit_s=200)

    ended = [service.await_state(job, "FAILED", "LOST") for job in two_jobs]
    printed, shown = service.run("echo again")
    assert ["LOST", "LOST"] == [each["state"] for each in ended]
    assert ("again\n", 0) == (printed, shown["exit_code"])
    assert "1" == service.machine.sh(f"grep -c 'populated 1' {SCOPE}/cgroup.events")


def test_a_job_that_terminates_itself_is_not_taken_for_one_that_was_stopped(service):
    _, shown = service.run("exit 143")

    assert ("FAILED", 143) == (shown["state"], shown["exit_code"])
