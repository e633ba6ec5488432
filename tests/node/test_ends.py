"""Learning that jobs have ended while their shims live on."""

import asyncio
import os
import subprocess

import pytest

from iodaemon.backend.linux.ends import Ends
from iodaemon.backend.linux.process import identify
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
        self.ended.append((track.job_id, status["n"]))
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
        write_json(str(place / "status.json"), {"n": job}, durable=False)


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
        os.kill(shim.pid, 9)
        ear.write_status(1)
        await asyncio.sleep(0.1)
        assert ear.bereaved == [tracks[1]]
        ear.ends.forget(tracks[1])
        tracks[1].close()

    assert listen(tmp_path, act).ended == [(1, 1)]
