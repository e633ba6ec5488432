"""``iod config check`` calls right what a daemon starts with, and says the daemon's words else."""

import json
import re
import subprocess
import sys

import pytest
from harness import until
from process import READY_S, environment
from scratching import both_disks, disks, needs_root
from sharing import Shared
from tiering import tables

from iodaemon.cli import main
from iodaemon.config import check_offers, load_policy
from iodaemon.core.decision import Kill, Reject, Start, Stop
from iodaemon.errors import ConfigError
from iodaemon.registry import shipped
from iodaemon.supervisor import disk_trouble

__all__ = ["both_disks", "disks"]

pytestmark = pytest.mark.node

HOPELESS = 78
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
MINE = 'policy = "{home}/mine.toml"'


class Home:
    """A user's home with a configuration, which both commands read in this process."""

    def __init__(self, path, capsys):
        self.path = path
        self._capsys = capsys
        self.state, self.runtime = path / "state", path / "run"
        self.file = path / "config.toml"

    def write(self, text):
        places = f'state_dir = "{self.state}"\nruntime_dir = "{self.runtime}"\n'
        self.file.write_bytes(f"{places}{text}\n".encode("latin-1"))

    def iod(self, *words):
        """Exit code, what stands on its standard output, and on its standard error."""
        self._capsys.readouterr()
        code = main(["--config", str(self.file), *words])
        told = self._capsys.readouterr()
        lines = [line for line in told.err.splitlines() if " level=" not in line]
        return code, told.out, "\n".join(lines)

    def refusal(self):
        """Exit code and the one sentence of a daemon that does not start."""
        code, told, complaint = self.iod("daemon")
        assert ("", 0) == (told, complaint.count("\n"))
        return code, complaint.removeprefix("iod: ")


@pytest.fixture
def home(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "IOD_API_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "wishful.py").write_text(NEEDY)
    return Home(tmp_path, capsys)


REFUSED = [
    ("polcy = 3", "unknown key 'polcy'; did you mean 'policy'?"),
    ("what = is this", "no valid TOML"),
    ("\xff", "is no UTF-8 text"),
    ('policy = "defualt"', "did you mean 'default'?"),
    ('policy = "/nowhere/mine.toml"', "/nowhere/mine.toml does not exist"),
    ("[regulation]\nio_bund = 1", "did you mean 'io_bound'?"),
    ('[regulation]\nio_bound = "0 MB/s"', "a finite number above 0"),
    ("[regulation]\nio_bound = [1]", "io_bound"),
    ('[regulation]\nrule = "magic"', "unknown regulation rule 'magic'"),
    ('[topology]\nsockets = ["0-3", "2"]', "CPU 2 is in '0-3' and in '2'"),
    ('[topology]\nsockets = ["0", "7777"]', "CPU 7777 does not exist"),
    (TIER.format('rule = "nonsense"', "{home}/disk"), "'nonsense'"),
    (TIER.format("", "{home}/none"), f"none {disk_trouble.MISSING}"),
    (TIER.format("", "{home}/wishful.py"), disk_trouble.NO_DIRECTORY),
    (
        TIER.format("", "{home}/disk") + TIER.format("", "{home}").replace("fast", "slow"),
        "is on the same filesystem as disk",
    ),
]
WRONG_POLICIES = [
    ("", "'admission' is missing"),
    ("max_suspend = 0\n" + POLICY.format("none", ""), "max_suspend must be above 0"),
    (POLICY.format("dynamic", "io_bound = 0"), "above 0"),
    (POLICY.format("wishful:Rule", ""), "does not offer"),
    (POLICY.format("none", "").replace("fcfs", "fcsf"), "did you mean 'fcfs'?"),
    ("[admission]\n[regulation]", 'needs rule = "NAME"'),
    (POLICY.format("none", "").replace("fcfs", "no.module:Rule"), "no module 'no'"),
]


@pytest.mark.parametrize(
    ("text", "policy", "expected"),
    [(text, None, expected) for text, expected in REFUSED]
    + [(MINE, policy, expected) for policy, expected in WRONG_POLICIES],
)
def test_what_a_daemon_refuses_is_told_in_its_words(home, text, policy, expected):
    if policy is not None:
        (home.path / "mine.toml").write_text(policy)
    home.write(text.replace("{home}", str(home.path)))

    code, told = home.refusal()

    assert expected in told
    assert code in (1, HOPELESS)
    assert (1, f"{told}\n", "") == home.iod("config", "check")
    assert not home.state.exists()
    assert not home.runtime.exists()


def test_all_that_is_wrong_is_told_at_once_the_daemons_reason_first(home):
    home.write(
        'policy = "nopolicy"\n[topology]\nsockets = ["7777"]\n'
        + TIER.format('rule = "nonsense"', home.path / "none")
        + '[tier.slow]\nrule = "nosense"\nbandwidth = "1 MB/s"'
    )

    code, told, _ = home.iod("config", "check")
    lines = told.splitlines()

    assert (1, home.refusal()[1]) == (code, lines[0])
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
    home.file = home.path / "none.toml"
    assert (HOPELESS, True) == (home.refusal()[0], "none.toml does not exist" in home.refusal()[1])


def test_a_simulated_node_has_neither_this_machines_disks_nor_its_sockets(home):
    pretended = f'backend = "simulated"\n[topology]\nsockets = ["7777"]\n{TIER}'
    home.write(pretended.format("", "/nowhere"))

    assert (0, f"the configuration is valid ({home.file})\n", "") == home.iod("config", "check")
    home.write(pretended.format('rule = "nonsense"', "/nowhere"))
    assert (1, f"{home.refusal()[1]}\n", "") == home.iod("config", "check")


def test_a_policy_that_suspends_is_refused_where_nothing_can_be_suspended():
    rules = load_policy("dynamic", overrides={}, search=(shipped("policies"),)).rules

    with pytest.raises(ConfigError) as caught:
        check_offers(rules, {Start, Stop, Kill, Reject}, "slurm")

    message = str(caught.value)
    assert "policy 'dynamic'" in message
    assert "needs Resume and Suspend, which backend 'slurm' does not offer" in message


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
def test_a_policy_of_roots_own_is_none_of_the_services(home, monkeypatch):
    mine = home.path / ".config" / "iodaemon" / "policies" / "mine.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text(POLICY.format("none", ""))
    home.write('policy = "mine"')
    checked = check_as_root(home.path / "passwd", home.file, environment(home.path))
    own = home.iod("config", "check")
    monkeypatch.setenv("HOME", "/")
    code, _, complaint = home.iod("daemon", "--system")

    assert (0, f"the configuration is valid ({home.file})\n", "") == own
    assert (1, f"iod: {checked[1]}") == (code, f"{complaint}\n")
    assert 1 == checked[0]
    assert complaint.startswith("iod: no policy 'mine' in /etc/iodaemon/policies, ")
