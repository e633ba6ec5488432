"""A keeper as a service of the system: it runs jobs as their submitters, and obeys one user."""

import os
import pwd
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from harness import end, until
from keeping import DAEMON, NOBODY, ServiceKeeper, keeper_words

from iodaemon.backend.linux.account import has_expired
from iodaemon.backend.linux.process import find_state
from iodaemon.cli import main

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others"),
]


def test_a_job_is_its_submitter_and_nothing_more(keeper):
    script = "id -u; id -g; id -G; grep -E 'Cap(Prm|Eff|Inh|Amb)' /proc/self/status"

    printed, status = keeper.run(script)

    uid, gid, groups, *capabilities = printed.splitlines()
    expected = os.getgrouplist(NOBODY.pw_name, NOBODY.pw_gid)
    assert (NOBODY.pw_uid, NOBODY.pw_gid) == (int(uid), int(gid))
    assert sorted(expected) == sorted(map(int, groups.split()))
    assert {"0" * 16} == {line.split()[1] for line in capabilities}
    assert 0 == status["exit"]["code"]


def test_a_job_cannot_become_root_again(keeper):
    code = "import os\ntry: os.setuid(0)\nexcept PermissionError: print('refused')"

    printed, _ = keeper.run(f'exec python3 -I -S -c "{code}"')

    assert "refused\n" == printed


def test_a_job_has_no_descriptor_but_the_standard_ones(keeper):
    printed, _ = keeper.run("ls /proc/$$/fd; true")

    assert ["0", "1", "2"] == printed.split()


def test_a_job_has_its_own_environment_and_what_every_program_expects(keeper):
    printed, _ = keeper.run(
        "env", environment={"X": "1", "HOME": "/h", "IOD_TEST_MARK": keeper.mark}
    )

    found = dict(line.partition("=")[::2] for line in printed.splitlines())
    for name in ("PWD", "SHLVL", "_", "OLDPWD", "IOD_TEST_MARK"):
        found.pop(name, None)
    assert {
        "X": "1",
        "HOME": "/h",
        "USER": NOBODY.pw_name,
        "LOGNAME": NOBODY.pw_name,
        "SHELL": NOBODY.pw_shell,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    } == found


def test_the_output_is_the_users_in_a_directory_of_roots(keeper):
    keeper.run("echo word")

    directory = keeper.directory(1)
    output = os.stat(directory / "output")
    assert (0, 0o700) == (os.stat(directory).st_uid, stat.S_IMODE(os.stat(directory).st_mode))
    assert (NOBODY.pw_uid, 0o600) == (output.st_uid, stat.S_IMODE(output.st_mode))


@pytest.mark.parametrize("uid", [0, 1, 999, -1, True, "65534", None, 3.5])
def test_what_is_no_ordinary_user_is_refused_for_good(keeper, uid):
    printed, status = keeper.run("id", uid=uid)

    assert printed is None
    assert f"jobs of uid {uid} are not run here" in status["never_ran"]
    assert 126 == status["exit_code"]


def test_a_user_that_does_not_exist_is_named(keeper):
    _, status = keeper.run("id", uid=4_000_000)

    assert "uid 4000000 has no account on this machine (any more)" == status["never_ran"]


def test_the_least_uid_is_the_keepers_whatever_the_daemon_says(keeper):
    _, status = keeper.run("id", uid=0, min_uid=0)

    assert "never_ran" in status


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_files_are_opened_as_the_user(keeper, name):
    target = keeper.root / "of-root"
    target.write_text("before")
    target.chmod(0o600)

    _, status = keeper.run("echo after", **{name: str(target)})

    assert f"the output file {target} cannot be written (Permission denied)" == status["never_ran"]
    assert "before" == target.read_text()


def test_a_link_does_not_lead_to_what_the_user_may_not_write(keeper):
    target, place = keeper.root / "of-root", Path(tempfile.mkdtemp(dir=keeper.root))
    target.write_text("before")
    target.chmod(0o600)
    os.chown(place, NOBODY.pw_uid, NOBODY.pw_gid)
    (place / "out").symlink_to(target)

    _, status = keeper.run("echo after", stdout=str(place / "out"))

    assert "cannot be written" in status["never_ran"]
    assert "before" == target.read_text()


def test_the_directory_is_entered_as_the_user(keeper):
    hidden = keeper.root / "hidden"
    hidden.mkdir(mode=0o700)

    _, status = keeper.run("pwd", cwd=str(hidden))

    assert (
        f"the working directory {hidden} cannot be entered (Permission denied)"
        == (status["never_ran"])
    )


def test_a_job_does_not_reach_the_keepers_files_or_socket(keeper):
    script = (
        f"cat {keeper.state}/keeper.json; ls {keeper.state}/jobs; "
        f"kill -0 {os.getpid()}; echo > {keeper.state}/x; ls /proc/$PPID/fd"
    )

    printed, _ = keeper.run(f"({script}) 2>&1 | grep -c -E 'denied|not permitted'")

    assert "5\n" == printed


def try_from(uid, gid, path):
    """Whether a process of this user gets an answer from the keeper."""
    code = (
        "import socket,sys\ns = socket.socket(socket.AF_UNIX)\n"
        f"s.connect({str(path)!r})\n"
        's.sendall(b\'{"id":1,"verb":"list","jobs":[]}\\n\')\nprint(len(s.recv(100)))'
    )
    ended = subprocess.run(
        ["python3", "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        user=uid,
        group=gid,
        extra_groups=[gid],
        cwd="/",
    )
    return ended.returncode == 0 and int(ended.stdout) > 0


def test_the_keeper_obeys_the_daemons_user_and_root_alone(keeper):
    keeper.begin()
    keeper.runtime.chmod(0o711)
    others = pwd.getpwnam("games")

    assert try_from(DAEMON.pw_uid, DAEMON.pw_gid, keeper.path)
    assert try_from(0, 0, keeper.path)
    assert not try_from(others.pw_uid, others.pw_gid, keeper.path)
    assert not try_from(others.pw_uid, DAEMON.pw_gid, keeper.path)


def test_the_keeper_stays_when_a_daemon_leaves(keeper):
    line = keeper.begin(grace_s=0.1)
    line.ask("leave")
    line.close()
    line = keeper.line()

    assert {"jobs": []} == line.ask("list", jobs=[])


def test_a_directory_that_is_not_roots_is_refused(keeper):
    keeper.begin()
    end(keeper.process.pid)
    os.chown(keeper.state, NOBODY.pw_uid, NOBODY.pw_gid)
    command = keeper_words(keeper.state, keeper.runtime / "k", 1, "signals", 1, 1, 1000)

    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")

    assert 78 == ended.returncode
    [line] = ended.stderr.splitlines()
    assert (
        f"{keeper.state} belongs to uid 65534, not to uid 0; 'chown 0 {keeper.state}' as root, "
        "and start the keeper again" in line
    )


def test_a_directory_of_sockets_that_is_not_roots_is_refused(keeper):
    keeper.begin()
    end(keeper.process.pid)
    keeper.path.unlink()
    os.chown(keeper.runtime, DAEMON.pw_uid, DAEMON.pw_gid)
    command = keeper_words(keeper.state, keeper.path, 1, "signals", 1, 1, 1000)

    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")

    assert 78 == ended.returncode
    [line] = ended.stderr.splitlines()
    assert f"{keeper.runtime} belongs to uid {DAEMON.pw_uid}, not to uid 0; " in line
    assert not keeper.path.exists()


def test_a_second_keeper_as_a_service_names_the_first_and_is_not_started_again(keeper):
    line = keeper.begin()
    line.ask("start", job=1, attempt=1, launch=keeper.launch("exec sleep 60"))
    assert {"frozen": True} == line.ask("freeze", job=1, attempt=1)
    command = keeper_words(keeper.state, keeper.runtime / "k", 1, "signals", 1, 1, 1000)

    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")

    assert 78 == ended.returncode
    [told] = ended.stderr.splitlines()
    assert f"a keeper runs already on {keeper.state} (pid {keeper.process.pid})" in told
    [job] = line.ask("list", jobs=[[1, 1]])["jobs"]
    assert job["frozen"]
    line.ask("kill", job=1, attempt=1, signal=9)
    keeper.status()


def test_what_was_refused_thaws_nobodys_jobs(keeper, monkeypatch):
    """systemd runs ExecStopPost= also after a start that came to nothing."""
    line = keeper.begin()
    started = line.ask("start", job=1, attempt=1, launch=keeper.launch("exec sleep 60"))
    main_pid = started["shim"]["main_pid"]
    line.ask("freeze", job=1, attempt=1)
    config = keeper.root / "service.toml"
    config.write_text(f'keeper_dir = "{keeper.state}"\nruntime_dir = "{keeper.runtime}"\n')
    words = ["keeper", "--thaw", "--config", str(config)]

    monkeypatch.setenv("EXIT_STATUS", "78")
    assert 0 == main(words)
    refused = find_state(main_pid)
    monkeypatch.setenv("EXIT_STATUS", "KILL")
    assert 0 == main(words)
    until(lambda: find_state(main_pid) != "T", "the job's going on")

    assert "T" == refused
    line.ask("kill", job=1, attempt=1, signal=9)
    keeper.status()


def test_directories_of_jobs_that_ended_long_ago_are_the_keepers_to_remove(keeper):
    keeper.run("true")
    line = keeper.lines_open[-1]
    ended_s = os.stat(keeper.directory(1) / "status.json").st_mtime
    line.ask("start", job=2, attempt=1, launch=keeper.launch("sleep 60"))

    assert {"removed": 0} == line.ask("retire", before_s=ended_s - 1, most=9)
    assert {"removed": 0} == line.ask("retire", before_s=ended_s + 99, most=0)
    assert {"removed": 1} == line.ask("retire", before_s=ended_s + 99, most=9)
    assert ["2.1"] == os.listdir(keeper.state / "jobs")
    line.ask("kill", job=2, attempt=1, signal=9)


def test_systemd_is_told_once_it_answers(keeper):
    keeper.root.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(str(keeper.root / "notices"))
        notices.settimeout(20)
        keeper.environment["NOTIFY_SOCKET"] = str(keeper.root / "notices")
        keeper.begin()

        assert b"READY=1" in notices.recv(1000).split(b"\n")


@pytest.mark.parametrize("order", ["job first", "shim first"])
def test_a_job_ended_with_its_machine_is_not_one_that_failed(keeper, order):
    line = keeper.begin()
    started = line.ask("start", job=1, attempt=1, launch=keeper.launch("exec sleep 60"))
    shim, main = started["shim"]["pid"], started["shim"]["main_pid"]
    for pid in (main, shim) if order == "job first" else (shim, main):
        os.kill(pid, 15)
        time.sleep(0.1)  # long enough for the status, if nobody waited
    status = keeper.status()

    assert {"code": None, "signal": 15} == status["exit"]
    assert status["stopped_from_outside"]
    until(lambda: not Path(f"/proc/{shim}").exists(), "end of the shim")


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("text", ["kill $$; sleep 60", "exit 143"])
def test_systemd_says_at_once_whether_a_job_that_was_terminated_was_stopped_with_its_unit(
    keeper, stops, text
):
    keeper.root.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(keeper.root / "notices"))
        systemd.settimeout(20)
        keeper.environment["NOTIFY_SOCKET"] = str(keeper.root / "notices")
        line = keeper.begin()
        assert b"READY=1" in systemd.recv(1000)
        shim = line.ask("start", job=1, attempt=1, launch=keeper.launch(text))["shim"]["pid"]
        word, [barrier], _, _ = socket.recv_fds(systemd, 1000, 1)
        has_waited = not (keeper.directory(1) / "status.json").exists()
        if stops:
            os.kill(shim, 15)
        os.close(barrier)
        status = keeper.status()

    assert b"BARRIER=1" == word
    assert has_waited
    assert stops == status.get("stopped_from_outside", False)


def test_a_job_ended_by_the_keeper_is_ended_by_nobody_else_and_systemd_is_not_asked(keeper):
    keeper.root.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(keeper.root / "notices"))
        systemd.settimeout(20)
        keeper.environment["NOTIFY_SOCKET"] = str(keeper.root / "notices")
        line = keeper.begin()
        assert b"READY=1" in systemd.recv(1000)
        line.ask("start", job=1, attempt=1, launch=keeper.launch("exec sleep 60"))
        line.ask("kill", job=1, attempt=1, signal=15)
        status = keeper.status()
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.recv(1000)

    assert {"code": None, "signal": 15} == status["exit"]
    assert "stopped_from_outside" not in status


# -- accounts that have expired --------------------------------------------------------------------


DAY_S = 86400.0


@pytest.mark.parametrize(
    ("line", "is_expired"),
    [
        ("ann:$6$salt$hash:19000:0:99999:7:::", False),
        ("ann:!:19000:0:99999:7:::", False),
        ("ann:!!:19000::::::", False),
        ("ann:*:19000:0:99999:7:::", False),
        ("ann:!$6$salt$hash:19000:0:99999:7:::", False),
        ("ann:!$6$salt$hash:19000:0:99999:7::1:", True),
        ("ann:*:19000:0:99999:7::20000:", True),
        ("ann:*:19000:0:99999:7::20001:", False),
        ("ann:*:19000:0:99999:7::0:", True),
        ("ann:*:19000:0:99999:7::-1:", False),
        ("ann:*:19000:0:1:7:1::", False),
        ("ann:*", False),
        ("anna:*:19000:0:99999:7::1:", False),
        ("", False),
    ],
)
def test_an_account_has_expired_by_its_date_and_by_nothing_else(tmp_path, line, is_expired):
    """Not by a locked password: those who log in by key, and services, have no other."""
    shadow = tmp_path / "shadow"
    shadow.write_text(f"root:*:1:::::1:\n{line}\n")

    assert is_expired is has_expired("ann", 20_000 * DAY_S + 5.0, str(shadow))
    assert not has_expired("ann", 0.0, str(tmp_path / "none"))


class WithShadow(ServiceKeeper):
    """A keeper that sees an /etc/shadow of its own."""

    expires = ""

    def prefix(self, command):
        shadow = self.root / "shadow"
        shadow.write_text(f"{NOBODY.pw_name}:!:19000:0:99999:7::{self.expires}:\n")
        mount = f'mount --bind {shadow} /etc/shadow && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, "sh", *command]


@pytest.mark.parametrize(("expires", "is_run"), [("", True), ("1", False)])
def test_a_job_of_an_expired_account_does_not_start_and_may_be_tried_again(means, expires, is_run):
    with WithShadow(means) as keeper:
        keeper.expires = expires
        printed, status = keeper.run("echo word")

        assert is_run is (printed == "word\n")
        if not is_run:
            assert (None, True) == (status["exit_code"], "has expired" in status["never_ran"])
