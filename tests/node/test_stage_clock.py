"""The clock of a step of staging: it goes on with its process, and stands still with it."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from iodaemon.backend.linux import stage_clock
from iodaemon.backend.linux.stage_clock import Clock

pytestmark = pytest.mark.node

PROGRAM = """
import sys, time
from iodaemon.backend.linux.stage_clock import Clock
clock = Clock()
began_s = time.monotonic()
print("go", flush=True)
sys.stdin.readline()
print(clock.took_s(), time.monotonic() - began_s)
clock.stop()
"""


def test_it_counts_what_passes_also_while_nobody_asks():
    began_s, clock = time.monotonic(), Clock()
    time.sleep(2 * stage_clock._MOST_S)
    took_s = clock.took_s()
    clock.stop()

    assert stage_clock._MOST_S < took_s <= time.monotonic() - began_s


def test_it_stands_still_with_its_process():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe) as process:
        assert b"go\n" == process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        took_s, passed_s = map(float, process.communicate(b"\n")[0].split())

    assert passed_s > 1.4
    assert took_s < passed_s - 0.8


def test_it_leaves_no_thread_and_may_be_stopped_twice():
    before = threading.enumerate()
    clock = Clock()
    clock.stop()
    clock.stop()

    assert before == threading.enumerate()


def test_where_no_thread_can_be_had_it_knows_nothing():
    """As uid 65534 under a limit of processes that has been reached."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os, resource; from iodaemon.backend.linux.stage_clock import Clock; "
        f"resource.setrlimit({resource.RLIMIT_NPROC}, (0, 0)); os.setuid(65534); "
        "clock = Clock(); print(clock.took_s()); clock.stop()"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)

    assert b"None\n" == done.stdout
