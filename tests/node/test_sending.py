"""A signal reaches the processes of a job, and none that got a number of theirs."""

import os
import signal
import subprocess

import pytest
from harness import until

from iodaemon.backend.linux.process import find_state
from iodaemon.backend.linux.sending import send

pytestmark = pytest.mark.node


@pytest.fixture
def sleepers():
    with subprocess.Popen(["sleep", "600"]) as one, subprocess.Popen(["sleep", "600"]) as two:
        yield one, two
        for each in (one, two):
            each.kill()


def test_each_member_is_told(sleepers):
    pids = [each.pid for each in sleepers]

    assert 2 == send(lambda: [*pids, pids[0]], signal.SIGTERM)
    assert [-15, -15] == [each.wait(20) for each in sleepers]


def test_who_is_no_member_any_more_is_not_told(sleepers):
    one, two = sleepers
    lists = iter([[one.pid, two.pid], [one.pid]])

    assert 1 == send(lambda: next(lists), signal.SIGTERM)
    assert -15 == one.wait(20)
    assert two.poll() is None


def test_another_process_under_a_members_number_is_not_told(sleepers):
    """The one that was seen first has ended by then, and a signal to it reaches nobody."""
    one, two = sleepers
    lists = iter([lambda: None, lambda: (one.kill(), one.wait(20))])

    def members():
        next(lists)()
        return [one.pid, two.pid]

    assert 1 == send(members, signal.SIGTERM)
    assert -15 == two.wait(20)


def test_what_is_gone_or_ended_is_no_failure(sleepers):
    one, two = sleepers
    one.kill()
    until(lambda: find_state(one.pid) == "Z", "its end")
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)

    assert send(lambda: [one.pid, gone, two.pid], signal.SIGTERM) >= 1
    assert -15 == two.wait(20)


def test_no_descriptor_is_left(sleepers):
    before = os.listdir("/proc/self/fd")
    send(lambda: [each.pid for each in sleepers], signal.SIGCONT)

    assert before == os.listdir("/proc/self/fd")
