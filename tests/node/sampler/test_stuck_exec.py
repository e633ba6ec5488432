"""A process that hangs in execve(2) makes nobody wait who has to deal with it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness import PATIENCE_S, until
from stuck_exec import silent_file_system, start_stuck, stuck_command

from iodaemon.daemon.host import describe_process
from iodaemon.node.live_job import LiveJob
from iodaemon.node.sampler import job_io, open_files, sweep
from iodaemon.node.sampler.proc_files import find_state, is_executing
from iodaemon.node.sampler.reader_thread import ReaderThread
from iodaemon.node.sampler.sweep import NodeReader
from iodaemon.supervisor.ledger import Key

pytestmark = pytest.mark.node

PARENT = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:]) as child:
    pass
sys.stdin.read()
"""
"""Stands for a holder: it starts the words of its arguments."""


@pytest.fixture
def stuck(tmp_path):
    """A process of ours that hangs in execve, in a session of its own."""
    files = silent_file_system(tmp_path)
    child = start_stuck(files, session=True)
    yield child.pid
    child.kill()
    files.let_go()
    child.wait(PATIENCE_S)


def promptly(work):
    """What the work returns; the test fails where it waits."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert answers, "it waits for the process"
    return answers[0]


def test_what_its_status_says_is_known(stuck):
    assert promptly(lambda: find_state(stuck)) in ("S", "D")
    assert is_executing(stuck)
    assert not is_executing(os.getpid())


def test_who_it_is_can_be_told(stuck):
    assert promptly(lambda: describe_process(stuck)).startswith(f"pid {stuck}, python")


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
        report = {"pid": holder.pid, "holder": holder.pid}
        return LiveJob(Key(len(self.holders), 1), report, None)

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


@pytest.fixture
def node_reader():
    reader = NodeReader(Path("/"), ())
    yield reader
    reader.close()


def take(reader, *live):
    """Two samples, of which the second has all that there is to be known."""
    for job in live:
        reader.add(job)

    async def read():
        await reader.read(0.0)
        return await reader.read(1.0)

    return promptly(lambda: asyncio.run(read()))


def readers():
    return sum(isinstance(thread, ReaderThread) for thread in threading.enumerate())


@pytest.mark.parametrize("is_seen", [True, False])
def test_the_job_is_set_aside_and_all_others_are_read(jobs, node_reader, monkeypatch, is_seen):
    """Whether or not it can be told before a thread waits for it."""
    monkeypatch.setattr(job_io, "is_executing", is_executing if is_seen else lambda _: False)
    before, (stuck, pid), after = jobs.start("sleep", 600), jobs.start_stuck(), jobs.start("true")
    sample = take(node_reader, before, stuck, after)
    aside, *others = (sample.jobs[job.job_id] for job in (stuck, before, after))

    assert (aside.read_bytes, aside.written_bytes, aside.silent_pid) == (None, None, pid)
    assert [None, None] == [counters.silent_pid for counters in others]
    assert all(counters.read_bytes is not None for counters in others)


def test_it_is_read_again_once_it_answers(jobs, node_reader):
    stuck, pid = jobs.start_stuck()
    aside = take(node_reader, stuck).jobs[stuck.job_id]
    jobs.files.let_go()
    until(lambda: not is_executing(pid) and readers() == 1, "a thread that comes back")
    again = take(node_reader).jobs[stuck.job_id]

    assert aside.silent_pid == pid
    assert again.silent_pid is None
    assert again.read_bytes is not None


def test_many_of_them_hold_one_thread(jobs, node_reader):
    """The first one tells what to look out for."""
    live = [jobs.start_stuck()[0] for _ in range(4)]
    sample = take(node_reader, *live)

    assert None not in {counters.silent_pid for counters in sample.jobs.values()}
    assert 2 == readers()  # the other one reads


def test_the_threads_that_wait_are_bounded(jobs, node_reader, monkeypatch):
    """Nothing of processes is read then, and all else is."""
    monkeypatch.setattr(job_io, "is_executing", lambda _: False)
    monkeypatch.setattr(open_files, "PERIOD", 1)
    monkeypatch.setattr(sweep, "MOST_GIVEN_UP", 2)
    live = [jobs.start_stuck()[0] for _ in range(4)]
    lively = jobs.start("sleep", 600)
    sample = take(node_reader, *live, lively)

    assert 3 == readers()
    assert 0 == sample.jobs[lively.job_id].silent_pid
    assert sample.node.available_bytes is not None


def test_the_end_waits_for_no_reading(jobs):
    reader = NodeReader(Path("/"), ())
    reader.add(jobs.start_stuck()[0])

    async def leave():
        reading = asyncio.ensure_future(reader.read(0.0))
        await asyncio.sleep(0)
        reading.cancel()
        reader.close()

    promptly(lambda: asyncio.run(leave()))
