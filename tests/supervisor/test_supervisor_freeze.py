"""Standing still and running on, also when nobody is there who would let a job go."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import find_state, until
from root_side import Daemon, RootSide, Tracer, by_either_means, is_alive

from iodaemon.supervisor.ledger import EXEC, Key, Record, open_ledger
from iodaemon.supervisor.reap import children_of, is_stopped

pytestmark = pytest.mark.node
COUNT = "n=0; while :; do n=$((n+1)); echo $n > {path}.new; mv {path}.new {path}; sleep 0.005; done"


def start_counting(root: RootSide, daemon: Daemon, key: str = "1.1") -> Path:
    """A job that goes on for ever, and the file in which that can be seen."""
    path = root.directory / f"count-{key}"
    daemon.run(key, "sh", "-c", COUNT.format(path=path))
    until(path.exists)
    return path


def read_count(path: Path) -> str:
    while True:
        try:
            return path.read_text()
        except FileNotFoundError:
            time.sleep(0.001)


def await_progress(path: Path) -> None:
    before = read_count(path)
    until(lambda: read_count(path) != before, "a job that runs on")


def let_others_run() -> None:
    """Whoever may count has counted by then: a shell has slept as often as ten of its steps."""
    subprocess.run(["sh", "-c", "for n in 1 2 3 4 5 6 7 8 9 10; do sleep 0.01; done"], check=True)


@by_either_means
def test_a_job_stands_still_and_runs_on_and_is_killed_while_it_stands_still(shared):
    """Wishes are states, and may be repeated."""
    daemon = shared.connect()
    path = start_counting(shared, daemon)
    for _ in range(2):
        daemon.hold()
        before = read_count(path)
        let_others_run()

        assert before == read_count(path)

        daemon.thaw()
        await_progress(path)
    for wish in ("freeze", "freeze", "thaw", "thaw", "freeze", "thaw", "freeze"):
        daemon.say(wish, key="1.1")
    daemon.await_state("1.1", "running", frozen=True)
    daemon.say("freeze", key="7.7")

    assert "absent" == daemon.await_state("7.7", "absent")["state"]

    assert 9 == daemon.kill("1.1")["exit"]["signal"]


@pytest.fixture
def stranger():
    """A process that no supervisor has made; it leads a session."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def record_as_begun(root: RootSide, key: Key, pid: int, ticks: int) -> None:
    ledger = open_ledger(str(root.runtime / "ledger"))
    ledger.append(Record(EXEC, key, pid, values=(ticks, 0)))
    os.close(ledger.fd)


def test_a_wish_for_what_is_about_to_run_is_kept(make_root, stranger):
    """As after the death of a supervisor that had handed out EXEC to a child."""
    root = make_root("cgroup")
    daemon = root.connect()
    root.job_cgroup("1.1").mkdir()
    (root.job_cgroup("1.1") / "cgroup.procs").write_text(str(stranger))
    daemon.say("freeze", key="1.1")
    daemon.beat()
    record_as_begun(root, Key(1, 1), stranger, ticks=1)
    daemon.await_state("1.1", "running", frozen=True)


def test_a_number_that_is_anothers_by_now_is_no_job(make_root, stranger):
    root = make_root("processes")
    daemon = root.connect()
    record_as_begun(root, Key(1, 1), stranger, ticks=1)
    daemon.beat()
    daemon.say("kill", key="1.1")
    daemon.await_state("1.1", "absent", "lost")

    assert is_alive(stranger)


IN_MANY_GROUPS = """
import os, sys, time
os.setgroups(range(4_000_000_000, 4_000_000_500))
open(sys.argv[1], "w").close()
time.sleep(1000)
"""
"""Of which /proc/PID/status tells more than a page, before most of what is asked of it."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has any groups it likes")
@by_either_means
def test_a_job_in_hundreds_of_groups_is_held_continued_and_killed(shared):
    daemon = shared.connect()
    path = shared.directory / "begun"
    pid = daemon.run("1.1", sys.executable, "-c", IN_MANY_GROUPS, str(path))["pid"]
    until(path.exists)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid))
    daemon.hold()
    daemon.thaw()
    until(lambda: not is_stopped(pid))

    assert 9 == daemon.kill("1.1")["exit"]["signal"]


@pytest.mark.parametrize("means", ["processes"])
def test_a_tree_of_many_generations_is_killed(shared):
    """Each one is seen once its parent has ended."""
    generations = 150
    last = f"echo > {shared.directory}/begun; sleep 1000"
    text = f'f() {{ if [ "$1" = 0 ]; then {last}; else (f $(($1 - 1)); :); fi; }}'
    daemon = shared.connect()
    daemon.run("1.1", "sh", "-c", f"{text}; f {generations}")
    until((shared.directory / "begun").exists)

    assert 9 == daemon.kill("1.1")["exit"]["signal"]


CHAIN = """
import os, sys
while not os.path.exists(sys.argv[1]):
    if os.fork():
        os._exit(0)
    os.setsid()
    with open(sys.argv[2], "a") as file:
        file.write("x")
"""


@pytest.mark.parametrize("means", ["processes"])
def test_a_chain_that_forks_on_and_leaves_its_session_is_caught(shared):
    daemon = shared.connect()
    end, links = shared.directory / "end", shared.directory / "links"
    daemon.run("1.1", sys.executable, "-S", "-c", CHAIN, str(end), str(links))
    until(links.exists)
    daemon.hold()
    before = links.stat().st_size
    let_others_run()

    assert before == links.stat().st_size

    daemon.say("thaw", key="1.1")
    until(lambda: links.stat().st_size > before, "a chain that goes on")
    end.touch()

    assert 0 == daemon.await_state("1.1", "ended")["exit"]["code"]


@by_either_means
def test_with_a_daemon_that_says_nothing_or_has_gone_all_run_on(means, make_root):
    root = make_root(means, grace_s=0.5, is_service=True)
    daemon = root.connect()
    path = start_counting(root, daemon)
    daemon.hold()

    await_progress(path)
    assert "running" == daemon.await_state("1.1", "running", frozen=False)["state"]

    daemon = root.connect()
    daemon.hold()
    daemon.close()

    await_progress(path)


@by_either_means
def test_a_supervisor_that_stands_still_is_continued_and_all_run_on(means, make_root):
    root = make_root(means, grace_s=0.5)
    daemon = root.connect()
    path = start_counting(root, daemon)
    daemon.hold()
    root.kill("iod-supervisor", signal.SIGSTOP)

    await_progress(path)
    daemon.sync()

    assert "running" == daemon.states["1.1"]["state"]


def test_a_supervisor_that_never_answers_is_killed(make_root):
    root = make_root("cgroup", grace_s=0.2)
    daemon = root.connect()
    path = start_counting(root, daemon)
    daemon.hold()
    pid = daemon.hello["pid"]
    with Tracer(pid, holds=True):  # SIGCONT does not help
        until(lambda: not is_alive(pid))

    await_progress(path)
    daemon = root.connect()
    daemon.sync()

    assert "running" == daemon.states["1.1"]["state"]


@by_either_means
def test_a_killed_supervisor_lets_all_run_on(root):
    daemon = root.connect()
    path = start_counting(root, daemon)
    daemon.hold()
    root.kill("iod-supervisor")

    if root.config.cgroup == "none":  # a holder waits for the next one, and for its daemon
        daemon = root.find("1.1")
    await_progress(path)


def test_what_a_killed_holder_leaves_goes_on_and_can_be_killed(make_root):
    root = make_root("processes")
    daemon = root.connect()
    paths = [root.directory / name for name in ("first", "left")]
    first, left = (COUNT.format(path=path) for path in paths)
    daemon.run("1.1", "sh", "-c", f"setsid sh -c '(setsid sh -c \"$0\" &)' '{left}'; {first}")
    for path in paths:
        until(path.exists)
    daemon.hold()
    root.kill("iod-holder")
    daemon.await_state("1.1", "running", frozen=False, holder=None)
    for path in paths:
        await_progress(path)
    root.kill("iod-supervisor")
    daemon = root.connect()
    daemon.sync(**{"1_1": "freeze"})
    pid = daemon.await_state("1.1", "running", frozen=False)["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))
    await_progress(paths[1])

    assert 9 == daemon.kill("1.1")["exit"]["signal"]

    before = read_count(paths[1])
    let_others_run()

    assert before == read_count(paths[1])


STOPS_ITSELF = ["sh", "-c", "kill -STOP $$; exit 5"]
STOPS_ONCE_MORE = ["script", "-qec", "kill -STOP $$; sleep 0.5; exit 5", "/dev/null"]
"""It takes no notice of a child that ends before it has run again."""


@by_either_means
@pytest.mark.parametrize(
    ("by", "words"), [("thaw", STOPS_ITSELF), ("signal", STOPS_ONCE_MORE)], ids=["sh", "script"]
)
def test_a_job_that_stops_itself_is_continued_by_a_wish_alone(by, words, shared):
    daemon = shared.connect()
    pid = daemon.run("1.1", *words)["pid"]
    until(lambda: find_state(pid) == "T")
    daemon.hold()
    daemon.sync(**{"1_1": "run"})
    daemon.await_state("1.1", "running", frozen=False)

    assert "T" == find_state(pid)

    daemon.say(by, key="1.1", **({"number": int(signal.SIGCONT)} if by == "signal" else {}))

    assert 5 == daemon.await_state("1.1", "ended")["exit"]["code"]


def has_settled(pid: int) -> bool:
    """Whether script(1) has read all that its child did: it takes two SIGCHLD for one, and so would
    never hear of an end.
    """
    [child] = children_of(pid)
    [pending] = re.findall("ShdPnd:\t(.*)", Path(f"/proc/{pid}/status").read_text())
    is_pending = int(pending, 16) >> (signal.SIGCHLD - 1) & 1
    return not is_pending and find_state(child) == "S" == find_state(pid)


@by_either_means
@pytest.mark.parametrize("words", [["script", "-qec"], ["bash", "-c"]], ids=lambda words: words[0])
def test_who_stops_when_a_child_stops_does_not_notice(words, shared):
    """As script(1), and a shell with job control."""
    daemon = shared.connect()
    ready, go = shared.directory / "ready", shared.directory / "go"
    text = f"touch {ready}; while [ ! -e {go} ]; do sleep 0.01; done; exit 3"
    text = f"set -m; sh -c '{text}'" if words[0] == "bash" else text
    pid = daemon.run("1.1", *words, text, *(["/dev/null"] if words[0] == "script" else []))["pid"]
    until(ready.exists)
    for _ in range(2):
        daemon.hold()
        daemon.thaw()
    if words[0] == "script":
        until(lambda: has_settled(pid))
    go.touch()

    assert 3 == daemon.await_state("1.1", "ended")["exit"]["code"]


@by_either_means
def test_a_job_that_stops_or_kills_its_parent_loses_nothing(means, make_root):
    root = make_root(means, grace_s=0.5)
    daemon = root.connect()
    begun = root.directory / "begun"
    text = f"touch {begun}; kill -STOP $PPID; sleep 0.1; kill -KILL $PPID; exit 9"
    daemon.start("1.1", "sh", "-c", text)
    until(begun.exists)

    assert 9 == root.outcome("1.1")["exit"]["code"]
