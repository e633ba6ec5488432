"""A user's own rule that fails: the daemon goes on, everybody is told, a reload tries it again."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from process import TREE, daemon, wait_until

from iodaemon.api.care import reload_config
from iodaemon.api.connection import UnixConnection
from iodaemon.cli import main
from iodaemon.errors import RequestError
from iodaemon.trial.run import check_rules

pytestmark = pytest.mark.node

OWN = """
import msgspec

from iodaemon.policy.admission.fcfs import Rule as Fcfs


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    def decide(self, view, memory):
        {body}
"""
MENDED = "return Fcfs().decide(view, memory)  # as it ought to be"
LINE = 9
"""Of ``body``."""
POLICY = """
[admission]
rule = "own_rule:Rule"
[regulation]
rule = "none"
timeslice = "0.2 s"
"""


class Node:
    """A daemon's directories, with a policy of the user's own."""

    def __init__(self, path):
        self.path = path
        self.module = path / "own_rule.py"
        (path / "mine.toml").write_text(POLICY)
        self.config = path / "config.toml"
        self.config.write_text(f'policy = "{path}/mine.toml"\n')
        self.socket = path / "run" / "iod.sock"
        roots = [str(path), *filter(None, [TREE.get("PYTHONPATH")])]
        self.environ = {"PYTHONPATH": os.pathsep.join(roots)}

    def write(self, body):
        self.module.write_text(OWN.format(body=body))

    def daemon(self):
        return daemon(
            *(self.path / "state", self.path / "run"),
            *("--config", str(self.config)),
            environ=self.environ,
        )

    def metrics(self):
        with contextlib.closing(UnixConnection(str(self.socket), 20.0)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def is_running(client):
    return [job["state"] for job in client.jobs()["jobs"]] == ["RUNNING"]


def test_a_rule_that_raises_is_set_aside_told_everywhere_and_comes_back_mended(node, capsys):
    """By ``iod doctor`` as well: tests/doctor/test_conditions.py."""
    node.write("return 1 // len([*view.live, *view.pending][1:])")  # no second job: it divides by 0
    with node.daemon() as (client, process):
        client.submit([{"command": ["compute=1000s"]}], {})
        assert wait_until(lambda: is_running(client))

        [fault] = client.node()["set_aside"]
        assert ("policy", "admission", f"{node.module}:{LINE}") == (
            fault["part"],
            fault["kind"],
            fault["place"],
        )
        assert "none" == client.jobs()["node"]["policy"]
        place = f"{node.module}:{LINE}"
        assert place in client.jobs()["node"]["set_aside"][0]
        assert place == client.policy()["set_aside"][0]["place"]
        with pytest.raises(RequestError, match=f"round 1: .*{place}"):
            check_rules(client.policy(), "round 1")
        for words in (["queue"], ["node"], ["policy", "show"]):
            main(["--api", str(node.socket), *words])
            assert place in capsys.readouterr().out.replace("\n", "")
        assert "iodaemon_rules_set_aside 1.0" in node.metrics()

        node.write(MENDED)
        assert "policy" in {each["path"] for each in reload_config(client)["changed"]}
        assert "mine" == client.jobs()["node"]["policy"]
        assert [] == reload_config(client)["changed"]
        node.write("return (")
        with pytest.raises(RequestError, match="nothing was changed"):
            reload_config(client)
        check_rules(client.policy(), "round 2")
        assert [] == client.jobs()["node"]["set_aside"]
        assert "set_aside" not in client.node()
        assert "iodaemon_rules_set_aside 0.0" in node.metrics()
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=30)[0]
    assert 0 == process.returncode
    assert "event=rule_set_aside" in told
    assert "ZeroDivisionError" in told


# -- rules that never return ---------------------------------------------------------------------

WATCHED = """
import os, pathlib, sys
from builders import FirstFit, InOrder, Script, platform, sampled

from iodaemon.core.controller import Controller
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.daemon.rule_watch import RuleWatch

def forever(view):
    while True:
        {loop}

class Own(Script):
    def decide(self, view, memory):
        {body}

spare = Rules(name="none", admission=InOrder(), placement=FirstFit(), regulation=Script())
own = Rules(name="own", admission=InOrder(), placement=FirstFit(), regulation=Own())
watch = RuleWatch(pathlib.Path(sys.argv[1]), 0.05)
fault = watch.find_fault(own)
if fault:
    print("ended in", fault.kind, fault.place.rpartition("/")[2], flush=True)
    sys.exit()
controller = Controller(State(platform(1)), own, fallback=spare, limit=watch)
plan = controller.step([sampled(1.0)])
print(plan.faults[0].problem, plan.faults[0].place.rpartition("/")[2])
watch.close()
"""


def watched(tmp_path, *, body="forever(view)", loop="pass"):
    """Run a controller whose rule does this, in a process of its own."""
    script = tmp_path / "watched.py"
    script.write_text(textwrap.dedent(WATCHED.format(body=body, loop=loop)))
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, os.path.dirname(tests)])
    return subprocess.run(
        [sys.executable, str(script), str(tmp_path / "asked")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "loop",
    [
        "view.bandwidth(1)",
        "__import__('time').sleep(1000)",
        "__import__('fnmatch').filter(['a'] * 1000, 'b*')",
    ],
)
def test_a_rule_that_loops_for_ever_is_ended_and_set_aside_with_its_line(tmp_path, loop):
    ended = watched(tmp_path, loop=loop)

    assert ended.stdout.startswith("RuleTimeout: did not return within 0.05 s watched.py:1")
    assert (0, "") == (ended.returncode, ended.stderr)


def test_a_rule_that_catches_every_exception_does_not_escape(tmp_path):
    lines = ("while True:", "    try: forever(view)", "    except Exception: pass")
    body = "\n        ".join(lines)

    assert "RuleTimeout" in watched(tmp_path, body=body).stdout


def test_a_policy_inside_which_the_daemon_ended_twice_in_a_row_is_set_aside_at_the_start(tmp_path):
    crash = {"body": "os.kill(os.getpid(), 9)"}

    assert -9 == watched(tmp_path, **crash).returncode
    assert -9 == watched(tmp_path, **crash).returncode
    assert "ended in regulation watched.py:" in watched(tmp_path, **crash).stdout


def test_an_end_outside_a_rule_or_in_order_is_not_held_against_it(tmp_path):
    crash, outside = {"body": "os.kill(os.getpid(), 9)"}, {"body": "return 1 // 0"}

    for each in (crash, outside, crash, outside):
        assert "ended in" not in watched(tmp_path, **each).stdout
