"""A process that hangs in execve(2) makes nobody wait who has to deal with it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest
from harness import PATIENCE_S, until
from sampling import Samplers
from stuck_exec import silent_file_system, start_stuck, stuck_command

from iodaemon.daemon.place import describe_process
from iodaemon.node.sampler.proc_files import find_state, is_executing
from iodaemon.supervisor.ledger import Key

pytestmark = pytest.mark.node

PARENT = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:]) as child:
    pass
sys.stdin.read()
"""
"""Stands for a holder: it starts the words of its arguments."""


def promptly(work):
    """What the work returns; the test fails where it waits."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert answers, "it waits for the process"
    return answers[0]


def test_what_it_is_and_what_its_status_says_is_known(tmp_path):
    files = silent_file_system(tmp_path)
    child = start_stuck(files, session=True)
    try:
        assert promptly(lambda: find_state(child.pid)) in ("S", "D")
        assert is_executing(child.pid)
        assert not is_executing(os.getpid())
        told = promptly(lambda: describe_process(child.pid))
        assert told.startswith(f"pid {child.pid}, python")
    finally:
        child.kill()
        files.let_go()
        child.wait(PATIENCE_S)


# -- sampling --------------------------------------------------------------------------------------


class Jobs:
    """Jobs, each with a process in the place of its holder."""

    def __init__(self, place):
        self.files = silent_file_system(place)
        self.holders = []

    def start(self, *command):
        words = [sys.executable, "-ISc", PARENT, *map(str, command)]
        holder = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        self.holders.append(holder)
        return Key(len(self.holders), 1), holder.pid

    def start_stuck(self):
        """A job the process of which hangs in its execve."""
        before = self.files.wait_for(0)
        job = self.start(*stuck_command(self.files.path))
        [pid] = set(self.files.wait_for(len(before) + 1)) - set(before)
        return job, pid

    def close(self):
        self.files.let_go()
        for holder in self.holders:
            os.killpg(holder.pid, signal.SIGKILL)
            holder.communicate(timeout=PATIENCE_S)


@pytest.fixture
def jobs(tmp_path):
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.close()


@pytest.mark.parametrize("blind", [False, True])
def test_its_io_is_unknown_and_all_others_are_read(jobs, blind):
    """Whether or not it can be told before a sampler waits for it."""
    before, (stuck, pid), after = jobs.start("sleep", 600), jobs.start_stuck(), jobs.start("true")
    with Samplers(blind=blind) as samplers:
        sample = samplers.take(before, stuck, after)
    aside, *others = (sample.jobs[key.job] for key, _ in (stuck, before, after))

    assert (aside.read_bytes, aside.written_bytes, aside.silent_pid) == (None, None, pid)
    assert [None, None] == [counters.silent_pid for counters in others]
    assert all(counters.read_bytes is not None for counters in others)


def test_the_first_sampler_that_waits_for_it_is_the_last(jobs):
    """Others that hang as well are known by what the first one told to look out for."""
    live = [jobs.start_stuck()[0] for _ in range(4)]
    with Samplers() as samplers:
        sample = samplers.take(*live, times=8)

        assert None not in {counters.silent_pid for counters in sample.jobs.values()}
        assert [2, 1] == [len(samplers.children), len(samplers.living)]


def test_it_is_read_again_once_it_answers(jobs):
    stuck, pid = jobs.start_stuck()
    with Samplers() as samplers:
        aside = samplers.take(stuck).jobs[stuck[0].job]
        jobs.files.let_go()
        until(lambda: not is_executing(pid), "the end of its execve")
        again = samplers.take().jobs[stuck[0].job]

    assert aside.silent_pid == pid
    assert again.silent_pid is None
    assert again.read_bytes is not None


def test_one_that_ends_a_sampler_each_time_is_left_out_for_longer_and_longer(jobs):
    stuck, pid = jobs.start_stuck()
    lively = jobs.start("sleep", 600)
    with Samplers(blind=True) as samplers:
        samples = [samplers.take(stuck, lively), *(samplers.take() for _ in range(12))]

        assert {pid} == {sample.jobs[stuck[0].job].silent_pid for sample in samples}
        assert None not in {sample.jobs[lively[0].job].read_bytes for sample in samples}
        assert len(samplers.children) <= 5  # after 1, 1, 4 and 8 samples


def test_the_end_waits_for_no_sampler(jobs):
    with Samplers() as samplers:
        samplers.client.add(*jobs.start_stuck()[0])

        async def leave():
            reading = asyncio.ensure_future(samplers.client.read(0.0))
            await asyncio.sleep(0)
            reading.cancel()
            samplers.client.close()

        samplers.run(leave())
