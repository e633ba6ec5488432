"""What an administrator may do wrong: said in one line, and the jobs go on."""

import json
import subprocess
import time

import pytest
from recipe import ROOT
from server import ASK, SCOPE, SCRIPT

from iodaemon.daemon.account import GROUPS_FRESH_S

GATE = "/run/nss-hangs"
NSS = "/lib/x86_64-linux-gnu/libnss_hang.so.2"
AS = """
import os, sys
uid, groups = int(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")]
os.setgroups(groups)
os.setresgid(groups[0], groups[0], groups[0])
os.setresuid(uid, uid, uid)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Be a user as one who logged in earlier is: nobody is asked who that is."""


def open_gates(service, *jobs):
    for job in jobs:
        service.machine.sh(f"touch /tmp/gate-{job}")


def ask_as(service, uid, groups, method, target, body="{}"):
    """What the daemon answers a process with these numbers, and how long that took."""
    began_s = time.monotonic()
    words = ("python3", "-I", "-S", "-c", AS, str(uid), ",".join(map(str, groups)))
    ended = service.machine.run(
        *words, *("python3", "-I", "-S", ASK, method, target), stdin=body.encode(), check=False
    )
    return json.loads(ended.out), time.monotonic() - began_s


def said(service, unit, words, *, since):
    """The lines of a unit's journal with these words."""
    command = f"journalctl -q -o cat -u {unit} --since=@{since} | grep -F -- '{words}' || true"
    return service.machine.sh(command).splitlines()


def doctor(service, *, user="root"):
    """Its findings by name."""
    ended = service.machine.run("iod", "doctor", "--json", user=user, check=False, limit_s=300)
    return {each["what"]: each for each in json.loads(ended.out)}


def now(service):
    return service.machine.sh("date +%s")


def lives_of(service):
    """Main process and restarts of both units: another one of either differs."""
    units = ("iodaemon.service", "iodaemon-supervisor.service")
    shown = [service.machine.sh(f"systemctl show -p MainPID,NRestarts {unit}") for unit in units]
    assert all("MainPID=0" not in each and "NRestarts=" in each for each in shown), shown
    return shown


def await_failed(service, unit):
    service.machine.until(f"systemctl is-failed -q {unit}", what=f"{unit} failed", limit_s=120)


def bring_back(service):
    service.machine.sh(
        "systemctl reset-failed; systemctl start iodaemon.socket iodaemon-supervisor iodaemon",
        limit_s=200,
    )
    service.await_ready()


@pytest.fixture(autouse=True)
def mended(service):
    """Whatever a test leaves wrong is put right, so that the next begins with a sound one."""
    yield
    service.machine.sh("chown -R iodaemon /var/lib/iodaemon/")
    bring_back(service)


# -- whose the directories are --------------------------------------------------------------------


def test_a_journal_of_another_user_stops_the_daemon_once_and_no_job(service, two_jobs):
    sh, (running, held) = service.machine.sh, two_jobs
    before, since = service.pids(running)[0], now(service)
    sh("systemctl stop iodaemon.service", limit_s=200)
    sh("chown root /var/lib/iodaemon/journal.db; systemctl start --no-block iodaemon.service")
    await_failed(service, "iodaemon.service")
    time.sleep(5)  # in which a unit that restarts every second would have said it again

    words = "/var/lib/iodaemon/journal.db belongs to uid 0, not to uid "
    [line] = said(service, "iodaemon.service", words, since=since)
    assert "chown -R" in line
    assert "/var/lib/iodaemon/" in line
    assert "78" == sh("systemctl show -P ExecMainStatus iodaemon.service")
    assert before == service.pids(running)[0]
    finding = doctor(service)["state directory"]
    assert "broken" == finding["verdict"]
    assert "journal.db" in finding["measured"]
    assert "chown -R" in finding["remedy"]
    sh("chown -R iodaemon /var/lib/iodaemon/")
    bring_back(service)
    service.await_state(running, "RUNNING")
    service.await_state(held, "SUSPENDED_USER")
    open_gates(service, running, held)
    service.ask("POST", f"/v1/jobs/{held}/resume", {}, user="bob")
    assert 7 == service.await_state(running, "FAILED", "LOST")["exit_code"]


def test_a_directory_of_another_user_is_given_back_by_systemd(service):
    sh = service.machine.sh
    # With its socket: else systemd starts the daemon for doctor's question, and mends all.
    sh("systemctl stop iodaemon.socket iodaemon.service iodaemon-supervisor.service", limit_s=200)
    sh("chown ann /var/lib/iodaemon /var/lib/iodaemon-supervisor /run/iodaemon")

    found = doctor(service)
    wrong = [
        found[what] for what in ("state directory", "supervisor's directory", "sockets' directory")
    ]
    bring_back(service)

    assert ["broken"] * 3 == [each["verdict"] for each in wrong]
    assert all("chown" in each["remedy"] for each in wrong)
    owners = sh("stat -c %U /var/lib/iodaemon /var/lib/iodaemon-supervisor /run/iodaemon").split()
    assert ["iodaemon", "root", "root"] == owners


# -- two of them ----------------------------------------------------------------------------------


def test_a_second_daemon_and_a_second_supervisor_leave_the_first_alone(service, two_jobs):
    _, held = two_jobs
    daemon, anchor = (
        service.main_pid(unit) for unit in ("iodaemon.service", "iodaemon-supervisor.service")
    )

    words = ("runuser", "-u", "iodaemon", "--", "iod", "daemon", "--system")
    second = service.machine.run(*words, check=False)
    other = service.machine.run("iod", "supervisor", check=False)
    found = doctor(service)

    assert (78, 78) == (second.code, other.code)
    assert (
        f"a daemon runs already on /var/lib/iodaemon (pid {daemon}, iod of iodaemon)" in second.err
    )
    assert "/run/iodaemon: a supervisor runs already" in other.err
    assert [1, 1] == [len(each.err.splitlines()) for each in (second, other)]
    assert [f"{held}.1"] == service.frozen()
    assert [daemon, anchor] == [
        found[what]["values"]["pid"] for what in ("daemon's lock", "anchor's lock")
    ]
    assert (daemon, anchor) == (
        service.main_pid("iodaemon.service"),
        service.main_pid("iodaemon-supervisor.service"),
    )


def test_a_unit_that_finds_a_daemon_run_by_hand_leaves_its_jobs_as_they_are(service, two_jobs):
    _, held = two_jobs
    sh, since = service.machine.sh, now(service)
    sh("systemctl stop iodaemon.socket iodaemon.service", limit_s=200)
    sh("chown iodaemon /run/iodaemon")  # where one that is started by hand makes its socket
    sh("systemd-run -q --unit=by-hand -p User=iodaemon -p Restart=no iod daemon --system")
    held_again = f"grep -q '^frozen 1' {service.cgroup(held)}/cgroup.events"
    try:
        service.machine.until(
            "systemctl is-active -q by-hand && "
            "journalctl -q -o cat -u by-hand | grep -q event=ready",
            what="a daemon by hand",
            limit_s=120,
        )
        service.machine.until(held_again, what="the hold")
        sh("systemctl start --no-block iodaemon.service")
        await_failed(service, "iodaemon.service")

        assert 1 == len(said(service, "iodaemon.service", "a daemon runs already", since=since))
        assert [f"{held}.1"] == service.frozen()
        sh("systemctl stop by-hand.service; systemctl reset-failed", limit_s=200)
        # The unit's socket was made in the meantime, and who stopped has left it there.
        assert "SUSPENDED_USER" == service.show(held)["state"]
    finally:
        sh("systemctl stop by-hand.service 2>/dev/null || true", limit_s=200)


# -- users and groups -----------------------------------------------------------------------------


def test_the_job_of_a_user_who_is_gone_runs_to_its_end_and_is_shown_by_number(service):
    sh = service.machine.sh
    sh("useradd -m -u 1007 gone")
    runs, waits = service.submit(SCRIPT, user="gone"), service.submit("id", user="gone", hold=True)
    service.await_state(runs, "RUNNING")
    sh("userdel -f -r gone 2>/dev/null || true")
    sh("systemctl restart iodaemon.service", limit_s=200)  # it knows no name from before
    service.await_ready()

    shown = service.show(runs)
    found = doctor(service)["users of jobs"]
    service.ask("POST", f"/v1/jobs/{waits}/resume", {}, user="root")
    service.machine.until(
        f"python3 -I -S {ASK} GET /v1/jobs/{waits} </dev/null | grep -q 'has no account'",
        what="the reason",
    )
    kept = service.show(waits)
    open_gates(service, runs)
    ended = service.await_state(runs, "FAILED", "LOST")

    assert ("RUNNING", "1007") == (shown["state"], shown["user"])
    assert "lacking" == found["verdict"]
    assert "1007" in found["measured"]
    assert "HELD" == kept["state"]
    assert 7 == ended["exit_code"]
    assert "1007" in service.machine.sh("iod queue -a")
    assert "1007" in service.machine.sh("iod history --by user")
    service.ask("POST", f"/v1/jobs/{waits}/cancel", {"grace_s": 0}, user="root")
    assert "CANCELLED" == service.show(waits)["state"]


def test_a_group_changed_while_a_job_runs_is_the_next_jobs(service):
    sh = service.machine.sh
    script = "while [ ! -e /tmp/gate-$IOD_JOB_ID ]; do sleep 0.2; done; id -G"
    running = service.submit(script, user="bob")
    service.await_state(running, "RUNNING")
    sh("groupadd -g 4700 crew; usermod -a -G crew bob")
    try:
        printed, _ = service.run("id -G", user="bob")
        found = doctor(service)["groups of jobs"]
        open_gates(service, running)
        service.await_state(running, "COMPLETED")

        assert f"other groups than their users have now: job {running}" == found["measured"]
        assert "4700" in printed.split()
        assert "4700" not in service.output(running, user="bob").split()
    finally:
        sh("gpasswd -d bob crew; groupdel crew")


def test_who_is_taken_out_of_the_daemons_group_loses_its_rights_without_a_restart(service):
    sh = service.machine.sh
    sh("usermod -a -G iodaemon bob")
    gid = int(sh("getent group iodaemon | cut -d: -f3"))
    login = (1002, [1002, gid], "POST")
    job = service.submit(SCRIPT)
    service.await_state(job, "RUNNING")
    found = doctor(service)["group of admins"]

    time.sleep(GROUPS_FRESH_S + 1)  # what was known of bob counts for so long
    before, _ = ask_as(service, *login, f"/v1/jobs/{job}/suspend")
    sh("gpasswd -d bob iodaemon")
    time.sleep(GROUPS_FRESH_S + 1)
    after, _ = ask_as(service, *login, f"/v1/jobs/{job}/resume")

    assert "bob" in found["measured"]
    assert "error" not in before
    assert "not_permitted" == after["error"]["code"]


# -- databases that do not answer -----------------------------------------------------------------


@pytest.fixture
def hangs(service, tmp_path):
    """Account databases that fall silent while a file is there."""
    library = tmp_path / "libnss_hang.so.2"
    source = ROOT / "tests/node/nss/hang.c"
    words = ["gcc", "-shared", "-fPIC", "-O", f'-DGATE="{GATE}"', "-o", library, source]
    subprocess.run(list(map(str, words)), check=True)
    sh = service.machine.sh
    service.machine.put(NSS, library.read_bytes())
    sh("cp /etc/nsswitch.conf /root/nsswitch.before")
    sh("sed -i -E 's/^(passwd|group):.*/\\1: files hang/' /etc/nsswitch.conf")
    yield lambda: sh(f"touch {GATE}")
    sh(f"rm -f {GATE}; cp /root/nsswitch.before /etc/nsswitch.conf; rm {NSS}")


def test_databases_that_hang_hold_up_only_who_is_asked_for(service, two_jobs, hangs):
    sh, (running, held) = service.machine.sh, two_jobs
    since, lives = now(service), lives_of(service)
    ann = (1001, [1001])
    service.machine.run("iod", "doctor", check=False, limit_s=300)  # libraries are in memory now
    sh("sleep 31")  # what is known of ann's groups is old
    hangs()

    submitted, took_s = ask_as(
        service,
        *ann,
        "POST",
        "/v1/jobs",
        json.dumps({"jobs": [{"command": ["id", "-u"], "cwd": "/tmp"}], "environment": {}}),
    )
    [job] = submitted["ids"]
    service.machine.until(
        f"python3 -I -S {ASK} GET /v1/jobs/{job} </dev/null | grep -q 'do not answer within'",
        what="the reason",
        limit_s=120,
    )
    suspended, _ = ask_as(service, *ann, "POST", f"/v1/jobs/{running}/suspend")
    service.await_state(running, "SUSPENDED_USER")
    resumed, _ = ask_as(service, *ann, "POST", f"/v1/jobs/{running}/resume")
    _, soon_s = ask_as(service, *ann, "GET", "/v1/jobs")
    unknown = ask_as(service, *ann, "GET", "/v1/history?user=nosuch")[0]
    found = doctor(service)

    assert took_s < 20
    assert soon_s < 10
    assert "error" not in suspended
    assert "error" not in resumed
    assert "write the user's number" in unknown["error"]["message"]
    # The start that fails is told as often as it is tried again.
    lines = said(service, "iodaemon.service", "event=accounts_silent", since=since)
    assert 1 <= len(lines) <= 3
    assert "broken" == found["account lookup"]["verdict"]
    assert lives == lives_of(service)  # no watchdog, nor anything else, began it anew
    sh(f"rm {GATE}")
    assert "COMPLETED" == service.await_state(job, "COMPLETED", "FAILED", "HELD")["state"]
    open_gates(service, running, held)
    assert 7 == service.await_state(running, "FAILED", "LOST")["exit_code"]


# -- a unit that was not delegated ----------------------------------------------------------------


def test_a_users_unit_without_delegation_says_what_that_costs_and_runs_jobs(service):
    sh = service.machine.sh
    drop_in = "/home/ann/.config/systemd/user/iodaemon.service.d"
    sh("loginctl enable-linger ann")
    service.machine.until("[ -S /run/user/1001/systemd/private ]", what="ann's manager")
    sh(f"mkdir -p {drop_in}; printf '[Service]\\nDelegate=no\\n' > {drop_in}/no.conf", user="ann")
    api = "/run/user/1001/iodaemon/iod.sock"
    try:
        sh("iod install --user", user="ann", limit_s=300)
        words = ("iod", "--api", api)
        ended = service.machine.run(
            *words, "submit", "--wait", "--", "sh", "-c", "exit 3", user="ann", check=False
        )
        logged = sh("journalctl -q -o cat _UID=1001 | grep -F 'Delegate=yes'")
        found = doctor(service, user="ann")

        assert 3 == ended.code
        [line] = logged.splitlines()
        assert "which systemd has not delegated" in line
        assert "lacking" == found["daemon"]["verdict"]
        assert "Delegate=yes" in found["daemon"]["remedy"]
    finally:
        remove = "iod install --user --remove --purge --force"
        sh(f"{remove}; rm -rf {drop_in}", user="ann", limit_s=300)
        sh("loginctl disable-linger ann")


def test_a_scope_that_was_made_without_delegation_is_told(service):
    sh, since = service.machine.sh, now(service)
    sh(
        "systemctl stop iodaemon.service iodaemon-supervisor.service iodaemon-jobs.scope",
        limit_s=200,
    )
    sh(
        "systemd-run -q --scope --collect --unit=iodaemon-jobs.scope --slice=iodaemon.slice "
        "sleep 9999 </dev/null >/dev/null 2>&1 &"
    )
    try:
        service.machine.until(f"grep -q 'populated 1' {SCOPE}/cgroup.events", what="the scope")
        bring_back(service)
        [line] = said(service, "iodaemon.service", "has not delegated:", since=since)
        printed, shown = service.run("echo ran")

        assert "systemctl stop iodaemon-jobs.scope" in line
        assert ("ran\n", 0) == (printed, shown["exit_code"])
    finally:
        sh(
            "systemctl stop iodaemon.service iodaemon-supervisor.service iodaemon-jobs.scope",
            limit_s=200,
        )
        bring_back(service)
