"""A condition of the machine is told in one sentence, whichever command or log it is read in."""

import contextlib
import os
import signal
import subprocess
import sys

from harness import until

from iodaemon.backend.linux.keeper_command import KeeperSpec
from iodaemon.backend.linux.link import KeeperLink
from iodaemon.backend.linux.process import find_state
from iodaemon.doctor.examine import judge_condition, judge_keeper
from iodaemon.doctor.place import judge_lock

HOLD = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def link_of(place, **settings):
    keeper = KeeperSpec(state=place, socket=place / "keeper.sock", grace_s=60.0, **settings)
    return KeeperLink(keeper, on_connected=lambda: None, on_trouble=lambda _: None)


# -- the keeper ------------------------------------------------------------------------------------


@contextlib.contextmanager
def stopped_holder(lock):
    words = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert b"held\n" == process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        try:
            until(lambda: find_state(process.pid) == "T", "a standstill")
            yield process.pid
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.stdin.close()


def test_a_stopped_keeper_is_told_alike_by_the_daemon_and_by_its_lock(tmp_path):
    with stopped_holder(tmp_path / "keeper.lock") as pid:
        link = link_of(tmp_path)
        link.pid = pid
        told = link.why_silent()
        [by_daemon] = judge_keeper({"keeper_problem": told, "keeper_pid": pid})
        by_lock = judge_lock("keeper", tmp_path / "keeper.lock", answers=True)

    assert (by_lock.measured, by_lock.remedy) == (by_daemon.measured, by_daemon.remedy)
    assert told == f"{by_daemon.measured}; {by_daemon.remedy}; {by_daemon.cost}"


def test_starts_that_wait_for_the_keeper_are_one_finding():
    problem = "the keeper (pid 7) does not answer; kill it; meanwhile no job starts"
    node = {"measured": {"keeper_problem": problem}, "condition": {"starts_blocked": problem}}

    assert ["keeper"] == [f.what for f in (*judge_keeper(node["measured"]), *judge_condition(node))]


def test_starts_that_wait_for_something_else_are_told_with_its_cure():
    node = {"measured": {"keeper_problem": ""}, "condition": {"starts_blocked": "x is full; free"}}
    [found] = judge_condition(node)

    assert ("x is full", "free") == (found.measured, found.remedy)
