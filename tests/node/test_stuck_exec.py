"""A process that hangs in execve(2) makes nobody wait who has to deal with it."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from harness import PATIENCE_S, until
from stuck_exec import silent_file_system, start_stuck, stuck_command

from iodaemon.backend.linux import job_files, job_io, process, reading
from iodaemon.backend.linux.process import (
    Identity,
    find_kin,
    find_living_state,
    find_state,
    identify,
    in_time,
    is_alive,
    is_executing,
    open_pidfd,
    read_boot_id,
    survivors_of,
)
from iodaemon.backend.linux.reader_thread import ReaderThread
from iodaemon.backend.linux.reading import NodeReader
from iodaemon.backend.linux.sending import send
from iodaemon.backend.linux.stopping import kill_below
from iodaemon.backend.linux.track import Track
from iodaemon.core.job import JobId
from iodaemon.daemon.host import describe_process

pytestmark = pytest.mark.node

PARENT = """
import subprocess, sys
with subprocess.Popen(sys.argv[1:]) as child:
    pass
sys.stdin.read()
"""
"""Stands for a shim: it starts the words of its arguments."""


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
    state = promptly(lambda: (find_state(stuck), find_living_state(stuck)))

    assert state[0] in ("S", "D")
    assert state[1] in ("S", "D")
    assert (os.getpid(), stuck) == promptly(lambda: find_kin(stuck))
    assert is_executing(stuck)
    assert not is_executing(os.getpid())


def test_signals_reach_it(stuck):
    assert 1 == promptly(lambda: send(lambda: [stuck], signal.SIGCONT))


def test_it_is_told_to_end_with_its_tree(stuck):
    others = set(process.descendants_of(os.getpid())) - {stuck}
    promptly(lambda: kill_below(os.getpid(), lambda: [stuck], lambda: others))

    until(lambda: find_state(stuck) == "D", "a wait that nothing interrupts")


def test_it_is_found_in_its_session(stuck):
    assert [stuck] == promptly(lambda: survivors_of(stuck))


@pytest.mark.parametrize("is_seen", [True, False])
def test_it_is_not_taken_for_a_shim_whose_number_it_has(stuck, monkeypatch, is_seen):
    """Also where only the deadline tells."""
    monkeypatch.setattr(process, "is_executing", lambda _: is_seen)
    shim = Identity(stuck, 1, read_boot_id())

    assert promptly(lambda: is_alive(shim)) is False
    assert promptly(lambda: open_pidfd(shim)) is None


def test_it_may_be_the_first_process_of_a_job_that_has_its_number(stuck):
    assert promptly(lambda: is_alive(Identity(stuck, 1, read_boot_id()), may_execute=True))


def test_who_it_is_can_be_told(stuck):
    assert promptly(lambda: describe_process(stuck)).startswith(f"pid {stuck}, python")


def test_a_reader_that_only_waits_for_a_cpu_gets_more_time():
    def work(write):
        time.sleep(0.2)
        os.write(write, b"x")

    assert (b"x", True) == process.in_time(work, 0.05)


@pytest.fixture
def many_open():
    """More descriptors are open than select(2) can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    null = os.open(os.devnull, os.O_RDONLY)
    fds = [null, *(os.dup(null) for _ in range(1024))]
    yield
    for fd in fds:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_reads_for_a_keeper_with_many_open_files(many_open):
    assert (b"read", True) == in_time(lambda fd: os.write(fd, b"read"), 10.0)


def test_no_reader_is_left_behind(stuck, monkeypatch):
    monkeypatch.setattr(process, "is_executing", lambda _: False)
    before = set(process.children_of(os.getpid()))
    promptly(lambda: open_pidfd(Identity(stuck, 1, read_boot_id())))
    left = set(process.children_of(os.getpid())) - before

    until(lambda: {find_state(pid) for pid in left} <= {"Z", None}, "an end of the reader")


# -- sampling --------------------------------------------------------------------------------------


class Jobs:
    """Tracks of jobs, each with a process in the place of its shim."""

    def __init__(self, place):
        self.files = silent_file_system(place)
        self.shims = []

    def start(self, *command):
        words = [sys.executable, "-ISc", PARENT, *map(str, command)]
        shim = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        self.shims.append(shim)
        record = {
            **identify(shim.pid)._asdict(),
            "main_pid": None,
            "main_start_ticks": None,
            "cgroup": None,
            "baseline": [0, 0, 0],
        }
        return Track(JobId(len(self.shims)), 1, record)

    def start_stuck(self):
        """A job the process of which hangs in its execve."""
        before = self.files.wait_for(0)
        track = self.start(*stuck_command(self.files.path))
        [pid] = set(self.files.wait_for(len(before) + 1)) - set(before)
        return track, pid

    def close(self):
        self.files.let_go()
        for shim in self.shims:
            os.killpg(shim.pid, signal.SIGKILL)
            shim.communicate(timeout=PATIENCE_S)


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


def take(reader, *tracks):
    """Two samples, of which the second has all that there is to be known."""
    for track in tracks:
        reader.add(track)

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
    aside, *others = (sample.jobs[track.job_id] for track in (stuck, before, after))

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
    tracks = [jobs.start_stuck()[0] for _ in range(4)]
    sample = take(node_reader, *tracks)

    assert None not in {counters.silent_pid for counters in sample.jobs.values()}
    assert 2 == readers()  # the other one reads


def test_the_threads_that_wait_are_bounded(jobs, node_reader, monkeypatch):
    """Nothing of processes is read then, and all else is."""
    monkeypatch.setattr(job_io, "is_executing", lambda _: False)
    monkeypatch.setattr(job_files, "PERIOD", 1)
    monkeypatch.setattr(reading, "MOST_GIVEN_UP", 2)
    tracks = [jobs.start_stuck()[0] for _ in range(4)]
    lively = jobs.start("sleep", 600)
    sample = take(node_reader, *tracks, lively)

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
