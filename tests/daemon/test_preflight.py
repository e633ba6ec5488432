"""``iod config check`` calls right what a daemon starts with, and says the daemon's words else."""

import json
import os
import re
import subprocess
import sys

import pytest
from harness import until
from process import READY_S, daemon, environment, read_until
from scratching import both_disks, disks, needs_root
from sharing import Shared
from stuck_exec import silent_file_system
from tiering import tables

from iodaemon.supervisor import disk_trouble

__all__ = ["both_disks", "disks"]

pytestmark = pytest.mark.node

TIER = '[tier.fast]\n{}\n[[tier.fast.disk]]\npath = "{}"\non_root = true\n'
NEEDY = """
import msgspec
from iodaemon.policy.regulation.none import Rule as Nothing
class Wish: pass
class Rule(msgspec.Struct, frozen=True, kw_only=True):
    needs = frozenset({Wish})
    timeslice_s: float = 1.0
    decide = Nothing.decide
"""
POLICY = '[admission]\nrule = "fcfs"\n[regulation]\nrule = "{}"\n{}\n'


class Home:
    """A user's home with a configuration, which both commands read."""

    def __init__(self, path):
        self.path = path
        self.state, self.runtime = path / "state", path / "run"
        self.file = path / "config.toml"
        self.environment = environment(path)
        tested = self.environment.get("PYTHONPATH")
        self.environment["PYTHONPATH"] = f"{path}:{tested}" if tested else str(path)

    def write(self, text):
        self.file.write_text(
            f'state_dir = "{self.state}"\nruntime_dir = "{self.runtime}"\n{text}\n'
        )

    def begun(self, *words, stderr=subprocess.STDOUT):
        return subprocess.Popen(
            [sys.executable, "-m", "iodaemon.cli", "--config", str(self.file), *words],
            env=self.environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def iod(self, *words):
        """Exit code, what stands on its standard output, and on its standard error."""
        with self.begun(*words, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=READY_S)
            finally:
                process.kill()
        return process.returncode, out, err

    def refusal(self):
        """The one sentence of a daemon that does not start."""
        code, told, complaint = self.iod("daemon")
        assert (1, "") == (code, told), complaint
        lines = [line for line in complaint.splitlines() if " level=" not in line]
        assert 1 == len(lines), complaint
        return lines[0].removeprefix("iod: ")


@pytest.fixture
def home(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "wishful.py").write_text(NEEDY)
    (tmp_path / "needy.toml").write_text(POLICY.format("wishful:Rule", ""))
    (tmp_path / "guardless.toml").write_text("max_suspend = 0\n" + POLICY.format("none", ""))
    return Home(tmp_path)


REFUSED = {
    "no such policy": ('policy = "nopolicy"', "no policy 'nopolicy' in "),
    "no such policy file": ('policy = "/nowhere/mine.toml"', "mine.toml does not exist"),
    "a value no rule takes": ('[regulation]\nio_bound = "0 MB/s"', "io_bound"),
    "no guard at all": ('policy = "{home}/guardless.toml"', "max_suspend must be above 0"),
    "a rule that needs more": ('policy = "{home}/needy.toml"', "does not offer"),
    "a socket too many": ('[topology]\nsockets = ["0", "7777"]', "CPU 7777 does not exist"),
    "no such rule of a tier": (TIER.format('rule = "nonsense"', "{home}/disk"), "'nonsense'"),
    "no such disk": (TIER.format("", "{home}/none"), f"none {disk_trouble.MISSING}"),
    "a disk that is a file": (TIER.format("", "{home}/needy.toml"), disk_trouble.NO_DIRECTORY),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_daemon_refuses_is_told_in_its_words(home, name):
    text, expected = REFUSED[name]
    home.write(text.replace("{home}", str(home.path)))

    told = home.refusal()

    assert expected in told
    assert (1, f"{told}\n", "") == home.iod("config", "check")
    assert not home.state.exists()
    assert not home.runtime.exists()


def test_what_no_daemon_can_read_is_told_as_well(home):
    home.write("polcy = 3")
    code, _, complaint = home.iod("daemon")

    assert 78 == code
    assert (1, complaint.removeprefix("iod: "), "") == home.iod("config", "check")


@pytest.mark.slow
@needs_root
def test_a_disk_that_does_not_answer_is_told_by_both(home):
    """A process that asked it ends once the kernel lets it go: here, when it answers."""
    disk = home.path / "disk"
    home.write(TIER.format("", disk))
    files = silent_file_system(disk)
    try:
        os.statvfs(disk)  # it is mounted once it has answered
        files.is_mute = True
        with home.begun("daemon") as refused, home.begun("config", "check") as checked:
            try:
                told = [read_until(each.stdout.fileno(), b"\n") for each in (refused, checked)]
            finally:
                files.speak()
    finally:
        files.let_go()

    sentence = f"tier fast: disk {disk} {disk_trouble.SILENT}\n"
    assert [f"iod: {sentence}", sentence] == told
    assert (1, 1) == (refused.returncode, checked.returncode)


def test_all_that_is_wrong_is_told_at_once_the_daemons_reason_first(home):
    home.write(
        'policy = "nopolicy"\n[topology]\nsockets = ["7777"]\n'
        + TIER.format('rule = "nonsense"', home.path / "none")
        + '[tier.slow]\nrule = "nosense"\nbandwidth = "1 MB/s"'
    )

    code, told, _ = home.iod("config", "check")
    lines = told.splitlines()

    assert (1, home.refusal()) == (code, lines[0])
    found = ("'nopolicy'", "CPU 7777", str(home.path / "none"), "'nonsense'", "'nosense'")
    assert [True] * 5 == [each in line for each, line in zip(found, lines, strict=True)]
    as_json = home.iod("config", "check", "--json")
    assert (1, {"problems": lines}) == (as_json[0], json.loads(as_json[1]))


def test_a_right_configuration_is_called_so_and_nothing_is_made(home):
    home.write(TIER.format("", home.path / "disk"))

    assert (0, f"the configuration is valid ({home.file})\n", "") == home.iod("config", "check")
    assert {"problems": []} == json.loads(home.iod("config", "check", "--json")[1])
    assert not home.state.exists()
    assert not home.runtime.exists()


def test_a_simulated_node_has_neither_this_machines_disks_nor_its_sockets(home):
    pretended = f'backend = "simulated"\n[topology]\nsockets = ["7777"]\n{TIER}'
    home.write(pretended.format("", "/nowhere"))

    checked = home.iod("config", "check")
    with daemon(home.state, home.runtime, "--config", str(home.file)) as (client, _):
        disks = client.node()["disks"]

    assert (0, f"the configuration is valid ({home.file})\n", "") == checked
    assert ["/nowhere"] == [disk["path"] for disk in disks]

    home.write(pretended.format('rule = "nonsense"', "/nowhere"))
    assert (1, f"{home.refusal()}\n", "") == home.iod("config", "check")


# -- the service of the system ---------------------------------------------------------------------

SYSTEM_SOCKET = "/run/iodaemon/iod.sock"
_WITH_USER = 'mount --bind "$0" /etc/passwd && exec "$@"'
"""A machine on which the service's user is set up."""


def check_as_root(passwd, file, env):
    """``iod config check`` of the service with this configuration: exit code and output."""
    with open("/etc/passwd") as known:
        passwd.write_text(f"{known.read()}iodaemon:x:64123:64123::/:/usr/sbin/nologin\n")
    iod = [sys.executable, "-m", "iodaemon.cli", "--api", SYSTEM_SOCKET, "--config", str(file)]
    unshare = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _WITH_USER, str(passwd)]
    ended = subprocess.run(
        [*unshare, *iod, "config", "check"],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    assert "" == ended.stderr
    return ended.returncode, ended.stdout


def disks_out(log):
    return set(re.findall(r' event=disk_out disk=\S+ text="(.*)"\n', log.read_text()))


@needs_root
def test_a_disk_that_users_cannot_reach_is_told_of_the_service_as_in_its_log(disks, tmp_path):
    place = disks[0].parent
    with Shared(disks, tables(disks)) as service:
        try:
            reachable = check_as_root(tmp_path / "passwd", service.config, service.environment)
            place.chmod(0o700)
            service.start()
            until(lambda: len(disks_out(service.log)) == 2, "a word of both disks")
            told = disks_out(service.log)
            fenced = check_as_root(tmp_path / "passwd", service.config, service.environment)
        finally:
            place.chmod(0o755)

    assert (0, f"the configuration is valid ({service.config})\n") == reachable
    assert (1, told) == (fenced[0], set(fenced[1].splitlines()))
    assert [True] * 2 == [f"'chmod o+x {place}'" in line for line in told]


@needs_root
def test_a_policy_of_roots_own_is_none_of_the_services(home):
    mine = home.path / ".config" / "iodaemon" / "policies" / "mine.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text(POLICY.format("none", ""))
    home.write('policy = "mine"')
    checked = check_as_root(home.path / "passwd", home.file, home.environment)
    own = home.iod("config", "check")

    home.environment["HOME"] = "/"
    code, _, complaint = home.iod("daemon", "--system")

    assert (0, f"the configuration is valid ({home.file})\n", "") == own
    assert (1, f"iod: {checked[1]}") == (code, complaint)
    assert 1 == checked[0]
    assert complaint.startswith("iod: no policy 'mine' in /etc/iodaemon/policies, ")
