"""A tree of processes is stopped, let go and ended by signals, and nobody else is."""

import contextlib
import os
import pwd
import signal
import subprocess
import sys

import pytest
from harness import until

from iodaemon.backend.linux import stopping
from iodaemon.backend.linux.process import descendants_of, find_living_state, find_state
from iodaemon.backend.linux.stopping import kill_below, look_below, stop_below, tell

pytestmark = pytest.mark.node

TREE = "sleep 600 & (sleep 600 & wait) & wait"
SIZE = 4
LEFT_BY_ITS_FIRST = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def top():
    """A process with a tree below it; nothing is left of both."""
    with subprocess.Popen(["sh", "-c", f"({TREE}) & wait"], start_new_session=True) as top:
        try:
            until(lambda: len(members(top.pid)()) == SIZE, "a tree")
            yield top.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(top.pid, signal.SIGKILL)


def members(top):
    return lambda: list(descendants_of(top))


def test_all_below_stand_still_and_go_on(top):
    pids = members(top)()
    stopped = until(lambda: stop_below(top), "a stop")
    seen = look_below(top)
    tell(pids[::-1], signal.SIGCONT, {top, *pids})
    until(lambda: "T" not in map(find_state, pids), "all on their way")

    assert dict.fromkeys(pids, "T") == stopped == seen
    assert look_below(top) is None


def test_who_is_held_otherwise_is_passed_and_left_alone(top):
    first, *others = members(top)()
    stopped = until(lambda: stop_below(top, lambda: {first}), "a stop")

    assert dict.fromkeys(others, "T") == stopped
    assert find_state(first) in ("S", "R")


def test_all_below_are_ended(top):
    kill_below(top, members(top))

    assert {find_living_state(pid) for pid in members(top)()} <= stopping.ENDED
    assert find_state(top) in ("S", "R", "Z")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL])
def test_another_process_under_a_members_number_is_told_nothing(top, number):
    """Its parent is none of the job's."""
    with subprocess.Popen(["sleep", "600"]) as stranger:
        pids = members(top)()
        told = tell([stranger.pid], number, {top, *pids})
        state = find_state(stranger.pid)
        stranger.kill()

    assert 0 == told
    assert state in ("S", "R")


def test_what_a_dead_shim_left_is_told_by_its_session(top):
    pids = members(top)()

    assert SIZE == tell(pids, signal.SIGKILL, (), session=top)


def test_a_process_whose_first_thread_has_ended_is_alive():
    command = [sys.executable, "-I", "-S", "-c", LEFT_BY_ITS_FIRST]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        until(lambda: find_state(process.pid) == "Z", "the end of its first thread")
        alive = find_living_state(process.pid)
        stopped = until(
            lambda: stop_below(os.getpid(), lambda: set(members(os.getpid())()) - {process.pid}),
            "a stop",
        )
        is_stopped = find_living_state(process.pid)
        process.kill()
        until(lambda: find_living_state(process.pid) == "X", "its end")

    assert alive in ("S", "R")
    assert "T" == is_stopped
    assert {process.pid: "T"} == stopped
    assert find_living_state(process.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others")
def test_another_users_process_is_no_reason_to_leave_the_others_as_they_are(top):
    """Who may signal none of them says so; and a thaw goes on to the next."""
    pids = members(top)()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(pwd.getpwnam("nobody").pw_uid)
        words = []
        for act in (lambda: stop_below(top), lambda: kill_below(top, members(top))):
            try:
                act()
            except PermissionError:
                words.append("refused")
        words.append(str(tell(pids, signal.SIGCONT, {top, *pids})))
        os.write(write, " ".join(words).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(read, 100)
    os.close(read)
    os.close(write)

    assert b"refused refused 0" == said


def test_no_descriptor_is_left(top):
    before = os.listdir("/proc/self/fd")
    stop_below(top)
    tell(members(top)(), signal.SIGCONT, {top, *members(top)()})

    assert before == os.listdir("/proc/self/fd")
