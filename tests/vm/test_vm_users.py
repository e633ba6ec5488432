"""Two users: each job is its submitter's, and out of the other's reach."""

import pytest

OF_A_JOB = [("suspend", {}), ("resume", {}), ("requeue", {}), ("cancel", {"grace_s": 0})]


def test_a_job_runs_as_its_submitter(service):
    jobs = {user: service.run("id; id -Gn; pwd", user=user)[0] for user in ("ann", "bob")}

    for user, printed in jobs.items():
        who, groups, place = printed.splitlines()
        assert f"({user})" in who
        assert (user, "/tmp") == (groups, place)


def test_the_program_itself_serves_a_user(service):
    printed = service.iod("submit", "--wait", "--", "sh", "-c", "id -un; exit 3", check=False)

    assert 3 == printed.code


def test_roots_jobs_are_not_run(service):
    told = service.ask("POST", "/v1/jobs", {"jobs": [{"command": ["id"]}]}, user="root")

    assert "jobs are run for uids from 1000 on" in told["error"]["message"]


def test_nobody_acts_on_anothers_job_but_root_does(service):
    job = service.submit("sleep 600", user="bob")
    service.await_state(job, "RUNNING")

    told = [
        service.ask("POST", f"/v1/jobs/{job}/{verb}", body, user="ann") for verb, body in OF_A_JOB
    ]
    told.append(service.ask("GET", f"/v1/jobs/{job}/logs", user="ann"))

    assert ["not_permitted"] * len(told) == [each["error"]["code"] for each in told]
    assert "RUNNING" == service.show(job)["state"]
    service.ask("POST", f"/v1/jobs/{job}/cancel", {"grace_s": 0}, user="root")
    assert "CANCELLED" == service.show(job)["state"]


@pytest.mark.parametrize("path", ["/home/bob/out", "/etc/passwd", "/tmp/link"])
def test_output_goes_nowhere_the_user_may_not_write(service, path):
    service.machine.sh(
        "chmod 0700 /home/bob; ln -sfn /etc/shadow /tmp/link; chown -h ann /tmp/link"
    )
    before = service.machine.sh("cat /etc/passwd /etc/shadow | md5sum")

    job = service.submit("echo word", stdout=path)
    shown = service.await_state(job, "FAILED", "COMPLETED")

    assert "FAILED" == shown["state"]
    assert f"the output file {path} cannot be written" in shown["reason"]["text"]
    assert before == service.machine.sh("cat /etc/passwd /etc/shadow | md5sum")


def test_the_daemon_reads_no_file_for_a_user_that_the_user_names(service):
    job = service.submit("true", stdout="/tmp/ann-out")
    service.await_state(job, "COMPLETED")

    told = service.ask("GET", f"/v1/jobs/{job}/logs")

    assert f"job {job} writes to /tmp/ann-out; read it there" == told["error"]["message"]


def test_a_job_reaches_neither_supervisor_nor_journal_nor_other_jobs(service):
    other = service.submit("sleep 600", user="bob")
    service.await_state(other, "RUNNING")
    [pid, *_] = service.pids(other)
    attempts = [
        "ls /var/lib/iodaemon-supervisor",
        "cat /var/lib/iodaemon/journal.db",
        "echo 0 > /sys/fs/cgroup/cgroup.procs",
        f"echo $$ > {service.cgroup(other)}/cgroup.procs",
        f"echo 1 > {service.cgroup(other)}/cgroup.kill",
        f"kill -9 {pid}",
        "kill -9 $PPID",
        "rm -f /run/iodaemon/iod.sock; [ ! -e /run/iodaemon/iod.sock ]",
        "python3 -c 'import socket; socket.socket(1).connect(\"/run/iodaemon/supervisor.sock\")'",
        "systemctl --no-ask-password stop iodaemon.service",
    ]
    script = "\n".join(
        f"( {each} ) >/dev/null 2>&1 && echo 'done: {i}'" for i, each in enumerate(attempts)
    )

    printed, _ = service.run(script + "\ntrue")

    assert "" == printed
    assert "RUNNING" == service.show(other)["state"]


def test_a_user_who_is_gone_is_named_and_the_others_go_on(service):
    service.machine.sh("useradd -m -u 1003 eve")
    job = service.submit("id", user="eve", hold=True)
    service.machine.sh("userdel -r eve 2>/dev/null || true")

    service.ask("POST", f"/v1/jobs/{job}/resume", {}, user="root")
    service.machine.until(
        f"python3 -I -S /usr/local/lib/vm-ask GET /v1/jobs/{job} </dev/null | grep -q 'no account'",
        what="the reason",
    )
    shown = service.show(job)

    assert "HELD" == shown["state"]
    assert "uid 1003 has no account on this machine" in shown["reason"]["text"]
    assert 0 == service.run("true")[1]["exit_code"]
