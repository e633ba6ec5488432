"""Learning that jobs have ended while their shims live on."""

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import subprocess

import pytest
from harness import PATIENCE_S

from iodaemon.backend.linux.attempt_record import lost_status
from iodaemon.backend.linux.ends import Ends
from iodaemon.backend.linux.process import has_ended, identify
from iodaemon.backend.linux.protocol import write_json
from iodaemon.backend.linux.track import Track
from iodaemon.core.job import JobId


class Ear:
    """What is heard of jobs in this directory."""

    def __init__(self, directory):
        self.directory = directory
        self.ended = []
        self.bereaved = []
        self.ends = Ends(
            str(directory), on_status=self._on_status, on_bereaved=self.bereaved.append
        )

    def _on_status(self, track, status):
        self.ended.append((track.job_id, status["exit"]["code"]))
        self.ends.forget(track)
        track.close()

    def expect(self, job, shim_pid):
        shim = identify(shim_pid)._asdict()
        record = {**shim, "main_pid": None, "main_start_ticks": None, "cgroup": None}
        track = Track(JobId(job), 1, {**record, "baseline": [0, 0, 0]})
        self.ends.expect(track)
        return track

    def write_status(self, job):
        place = self.directory / f"{job}.1"
        place.mkdir(exist_ok=True)
        status = {**lost_status("", 1.0), "exit": {"code": job, "signal": None}}
        write_json(str(place / "status.json"), status, durable=False)


@pytest.fixture
def shim():
    """A process that stands for a shim, and for no job."""
    with subprocess.Popen(["/bin/sleep", "1000"]) as process:
        yield process
        process.kill()


def listen(directory, act):
    """Run ``act(ear)``; the ear afterwards."""

    async def run():
        ear = Ear(directory)
        await act(ear)
        ear.ends.close()
        return ear

    return asyncio.run(run())


@contextlib.contextmanager
def descriptors_left(count):
    """This process can open so many files more, and not one beyond."""
    free = [os.dup(0) for _ in range(count + 1)]
    for fd in free:
        os.close(fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_job_without_its_shim_is_waited_for_while_no_descriptor_is_left(shim):
    main = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
    leader = identify(main.pid)
    record = {**identify(shim.pid)._asdict(), "cgroup": None, "baseline": [0, 0, 0]}
    track = Track(
        JobId(1), 1, {**record, "main_pid": main.pid, "main_start_ticks": leader.start_ticks}
    )
    track.lose_shim(())

    async def run():
        with descriptors_left(0):
            waiting = asyncio.create_task(track.gone())
            main.kill()
            main.wait()
            await asyncio.wait({waiting}, timeout=0.3)
            told = track.describe_left()
            assert not waiting.done()
        await asyncio.wait_for(waiting, PATIENCE_S)
        return told

    assert asyncio.run(run())
    track.close()


def test_no_process_is_lost_where_descriptors_run_out_as_a_shim_dies(tmp_path):
    script = "sleep 1000 & sleep 1000 & sleep 1000 & echo; wait"
    shim = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE)
    shim.stdout.readline()
    children = []

    async def act(ear):
        track = ear.expect(1, shim.pid)
        children.extend(track.pids())
        with descriptors_left(2):
            shim.kill()
            await asyncio.sleep(0.3)
            early = list(ear.bereaved)
        async with asyncio.timeout(PATIENCE_S):
            while not ear.bereaved:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert early == []
        assert sorted(track.pids()) == sorted(children)
        ear.ends.forget(track)
        track.close()

    try:
        listen(tmp_path, act)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        shim.wait()
        shim.stdout.close()
    assert 3 == len(children)


def test_the_end_of_a_process_is_seen_by_a_descriptor_of_any_number(shim):
    low = os.pidfd_open(shim.pid)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024)
    before = has_ended(high)
    shim.kill()
    shim.wait()

    assert (False, True) == (before, has_ended(high))
    os.close(low), os.close(high)


def test_two_jobs_of_one_shim_end_while_it_lives(tmp_path, shim):
    for job in (1, 2):
        (tmp_path / f"{job}.1").mkdir()

    async def act(ear):
        ear.expect(1, shim.pid)
        ear.write_status(1)
        second = ear.expect(2, shim.pid)  # the shim has gone on to it
        await asyncio.sleep(0.05)
        ear.write_status(2)
        ear.ends.look()
        assert second.shim_fd is None

    ear = listen(tmp_path, act)

    assert ear.ended == [(1, 1), (2, 2)]
    assert ear.bereaved == []


def test_an_end_in_a_directory_that_cannot_be_watched_is_found_by_looking(tmp_path, shim):
    async def act(ear):
        ear.expect(1, shim.pid)  # there is no such directory yet
        ear.ends.look()
        assert ear.ended == []
        ear.write_status(1)
        ear.ends.look()

    assert listen(tmp_path, act).ended == [(1, 1)]


def test_a_shim_that_dies_bereaves_only_the_job_without_a_status(tmp_path, shim):
    for job in (1, 2):
        (tmp_path / f"{job}.1").mkdir()

    async def act(ear):
        tracks = [ear.expect(job, shim.pid) for job in (1, 2)]
        shim.kill()
        shim.wait()
        ear.write_status(1)
        async with asyncio.timeout(PATIENCE_S):
            while not ear.bereaved:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert ear.bereaved == [tracks[1]]
        ear.ends.forget(tracks[1])
        tracks[1].close()

    assert listen(tmp_path, act).ended == [(1, 1)]
