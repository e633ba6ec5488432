"""A disk that is full, for real: nothing that was acknowledged is lost, nothing else begins.

That no daemon starts on one: tests/doctor/test_conditions.py.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from mounting import small_disk
from process import daemon, iod, stop, wait_until

from iodaemon.daemon.driver import JOURNAL_RETRY_S
from iodaemon.node.sampler.proc_files import find_state

pytestmark = pytest.mark.node

DISK_KIB = 4096


class Disk:
    """A small file system of its own, and what fills it."""

    def __init__(self, path):
        self.path = path
        self.state = path / "state"

    def fill(self):
        """Leave nothing."""
        with contextlib.suppress(OSError), (self.path / "ballast").open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert 0 == os.statvfs(self.path).f_bavail

    def free(self):
        (self.path / "ballast").unlink()


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    with small_disk(path, kib=DISK_KIB):
        yield Disk(path)


@pytest.fixture
def runtime(tmp_path):
    return tmp_path / "run"


def gated(gate, code):
    """A command that ends with this code once the file is there."""
    return ["/bin/sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done; exit {code}"]


def submit_again(client, command):
    """Submit as soon as the daemon has noticed that there is room again."""
    ids = []

    def accepted():
        with contextlib.suppress(Exception):
            ids.extend(client.submit([{"command": command}], {}))
        return bool(ids)

    assert wait_until(accepted, JOURNAL_RETRY_S + 8.0)
    return ids[0]


def test_submissions_are_refused_and_what_happens_to_jobs_is_not_lost(disk, runtime, tmp_path):
    """A cancel kills at once, and is answered when the end is in the journal."""
    gate = tmp_path / "gate"
    with daemon(disk.state, runtime, backend="linux") as (client, _):
        commands = [gated(gate, 7), ["/bin/sleep", "1000"]]
        jobs = client.submit([{"command": each} for each in commands], dict(os.environ))
        pids = [first_pid(client, job) for job in jobs]
        disk.fill()
        told = iod(runtime / "iod.sock", "submit", "--", "/bin/echo", "x" * 100_000)
        queued = [job["id"] for job in client.jobs(all_jobs=True)["jobs"]]
        gate.touch()
        with ThreadPoolExecutor() as others:
            others.submit(client.cancel, jobs[1], grace_s=0.0)
            assert wait_until(lambda: not any(map(find_state, pids)))
            disk.free()
        ended = client.wait(jobs, timeout_s=20.0)["jobs"]
        again = submit_again(client, ["/bin/true"])
        assert "COMPLETED" == client.wait([again])["jobs"][0]["state"]

    assert (1, "", 1) == (told.returncode, told.stdout, told.stderr.count("\n"))
    full = f"no space is left on the file system of {disk.state}; free some space"
    assert told.stderr.startswith("iod: ")
    assert full in told.stderr
    assert jobs == queued
    found = [(job["state"], job["exit_code"], job["signal"]) for job in ended]
    assert [("FAILED", 7, None), ("CANCELLED", None, 15)] == found


def first_pid(client, job):
    assert wait_until(lambda: client.job(job)["pids"])
    return client.job(job)["pids"][0]


def test_the_end_is_found_by_the_next_daemon_where_the_first_could_not_keep_it(
    disk, runtime, tmp_path
):
    gate = tmp_path / "gate"
    with daemon(disk.state, runtime, backend="linux") as (client, process):
        [job_id] = client.submit([{"command": gated(gate, 7)}], dict(os.environ))
        main = first_pid(client, job_id)
        disk.fill()
        stop(process)
    gate.touch()
    assert wait_until(lambda: find_state(main) is None)
    disk.free()
    with daemon(disk.state, runtime, backend="linux") as (client, _):
        [job] = client.wait([job_id], timeout_s=20.0)["jobs"]

    assert ("FAILED", 7) == (job["state"], job["exit_code"])
