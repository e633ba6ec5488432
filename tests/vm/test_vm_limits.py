"""What a job of the installed service cannot take from other users: processes, keys, names."""

import json

import pytest
from server import CONFIG, SCOPE, UNITS

BOMB = """
import os, sys, time
count, began_s = 0, time.monotonic()
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        count += 1
    except BlockingIOError as error:
        print(count, error.strerror, flush=True)
        break
time.sleep(600)
"""
KEYS = """
import ctypes, errno, sys, time
call = ctypes.CDLL(None, use_errno=True).syscall
if sys.argv[1] == "hide":
    print(call(248, b"user", b"ticket", b"secret", 6, -3), flush=True)
    time.sleep(600)
key = call(250, 10, -3, b"user", b"ticket", 0)
print(key, errno.errorcode[ctypes.get_errno()])
"""


MOST = 200
"""Processes of one job: more would first use up the memory of the virtual server."""


@pytest.fixture
def _limited(service):
    place = "/etc/iodaemon/config.toml"
    for text in (f"max_processes = {MOST}\n{CONFIG}", CONFIG):
        service.machine.put(place, text.encode())
        service.machine.sh("systemctl restart iodaemon.service", limit_s=200)
        service.await_ready()
        if text is not CONFIG:
            yield


@pytest.fixture
def bomb(service, _limited):
    service.machine.put("/usr/local/lib/forks.py", BOMB.encode())
    job = service.submit("exec python3 -I -S /usr/local/lib/forks.py")
    service.await_state(job, "RUNNING")
    service.machine.until(
        f"[ -s /var/lib/iodaemon-supervisor/output/{job}.1 ]", what="its last fork", limit_s=600
    )
    yield job
    service.machine.sh(f"echo 1 >{service.cgroup(job)}/cgroup.kill || true", limit_s=300)
    service.await_state(job, "FAILED", "CANCELLED", limit_s=300)


def number(service, path):
    return int(service.machine.sh(f"cat {path}"))


def test_a_job_that_forks_without_end_leaves_processes_to_others(service, bomb):
    kernel = "/proc/sys/kernel"
    there = min(number(service, f"{kernel}/{name}") for name in ("pid_max", "threads-max"))
    most = number(service, f"{service.cgroup(bomb)}/pids.max")
    of_all = number(service, f"{SCOPE}/pids.max")
    printed, shown = service.run("echo beside it | cat", user="bob")
    count, *words = service.output(bomb).split()
    print(f"machine {there}, all jobs {of_all}, a job {most}, forked {count}")

    assert most == MOST
    assert most < there // 4 < of_all < there
    assert (most - 1, ["Resource", "temporarily", "unavailable"]) == (int(count), words)
    assert ("beside it\n", 0) == (printed, shown["exit_code"])
    assert "RUNNING" == service.show(bomb)["state"]


def test_the_limit_of_all_jobs_is_the_same_after_a_reload_of_systemd(service):
    """Of a share of 80 %, 8 % were left once (systemd 252)."""
    service.run("true")  # now the scope is there
    before = number(service, f"{SCOPE}/pids.max")

    service.machine.sh("systemctl daemon-reload")

    assert before == number(service, f"{SCOPE}/pids.max")


@pytest.fixture
def _little_output(service):
    """A job may print 1 MiB."""
    for text in (f'output_max = "1 MiB"\n{CONFIG}', CONFIG):
        service.machine.put("/etc/iodaemon/config.toml", text.encode())
        service.machine.sh("systemctl reload iodaemon.service", limit_s=200)
        if text is not CONFIG:
            yield


@pytest.mark.usefixtures("_little_output")
def test_a_job_that_prints_too_much_is_ended_and_others_go_on(service):
    beside = service.submit("head -c 100000 /dev/zero; sleep 600", user="bob")
    service.await_state(beside, "RUNNING")

    job = service.submit("head -c 8000000 /dev/zero; sleep 600")
    ended = service.await_state(job, "FAILED", "COMPLETED")

    assert ("FAILED", "OutputMax") == (ended["state"], ended["reason"]["code"])
    assert "more than the 1 MiB of output_max" in ended["reason"]["text"]
    assert "RUNNING" == service.show(beside)["state"]


def test_the_node_says_that_processes_are_limited(service):
    measured = service.ask("GET", "/v1/node")["measured"]

    assert "max_processes" in measured["process_limit"]


@pytest.mark.parametrize("other", ["bob", "ann"])
def test_keys_of_a_job_are_no_other_jobs(service, other):
    service.machine.put("/usr/local/lib/keys.py", KEYS.encode())
    hidden = service.submit("exec python3 -I -S /usr/local/lib/keys.py hide", user="ann")
    service.await_state(hidden, "RUNNING")
    service.machine.until(
        f"[ -s /var/lib/iodaemon-supervisor/output/{hidden}.1 ]", what="a key", limit_s=120
    )

    printed, _ = service.run("exec python3 -I -S /usr/local/lib/keys.py seek", user=other)

    assert int(service.output(hidden)) > 0
    assert ["-1", "ENOKEY"] == printed.split()


@pytest.fixture
def _trapped(service):
    """Modules in the daemon's directory that tell who loads them; both units end with a Python.

    With the system's, not the service's own: that of a venv never looks at home for modules.
    """
    sh = service.machine.sh
    place = "/var/lib/iodaemon/.local"
    noted = '/usr/bin/python3 -c \'open("/var/tmp/ran", "a").write("x")\''
    sh(
        "for v in 8 9 10 11 12 13 14; do d={place}/lib/python3.$v/site-packages; mkdir -p $d; "
        'echo \'open("/var/tmp/loaded", "a").write("x")\' >$d/usercustomize.py; done; '
        "chown -R iodaemon: {place}; rm -f /var/tmp/loaded /var/tmp/ran".replace("{place}", place)
    )
    drop_ins = [f"/run/systemd/system/{unit}.d/python.conf" for unit in UNITS]
    for path in drop_ins:
        service.machine.put(path, f"[Service]\nExecStopPost=+{noted}\n".encode())
    sh("systemctl daemon-reload")
    yield
    sh(f"rm -rf {place} {' '.join(drop_ins)} /var/tmp/loaded /var/tmp/ran; systemctl daemon-reload")


@pytest.mark.usefixtures("_trapped")
def test_what_systemd_runs_as_root_loads_nothing_from_the_daemons_directory(service):
    sh = service.machine.sh

    sh(f"systemctl restart {' '.join(UNITS)}", limit_s=200)
    service.await_ready()

    assert "xx" == sh("cat /var/tmp/ran")  # one for each unit
    assert "absent" == sh("[ -e /var/tmp/loaded ] && echo loaded || echo absent")
    sh("HOME=/var/lib/iodaemon /usr/bin/python3 -c pass")
    assert "x" == sh("cat /var/tmp/loaded")  # so it is loaded where nothing forbids it


def test_the_audit_knows_who_submitted_a_job(service):
    printed, _ = service.run("cat /proc/self/loginuid 2>/dev/null || echo none", user="bob")
    uid = service.machine.sh("id -u bob").strip()

    assert printed.strip() in (uid, "none"), json.dumps(printed)
