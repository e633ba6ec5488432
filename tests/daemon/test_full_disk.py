"""A disk that is full, for real: nothing that was acknowledged is lost, nothing else begins."""

import contextlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from mounting import small_disk
from process import daemon, fails, iod, stop, wait_until

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

    def make_read_only(self):
        subprocess.run(["mount", "-o", "remount,ro", self.path], check=True)


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


def one_line(told):
    assert told.stdout == ""
    assert told.stderr.startswith("iod: ")
    assert told.stderr.count("\n") == 1
    return told.stderr


def submit_again(client, command):
    """Submit as soon as the daemon has noticed that there is room again."""
    ids = []

    def accepted():
        with contextlib.suppress(Exception):
            ids.extend(client.submit([{"command": command}], {}))
        return bool(ids)

    assert wait_until(accepted, JOURNAL_RETRY_S + 8.0)
    return ids[0]


def test_a_submission_is_refused_and_the_job_is_not_queued(disk, runtime):
    with daemon(disk.state, runtime) as (client, _):
        disk.fill()
        told = iod(runtime / "iod.sock", "submit", "--", "/bin/echo", "x" * 100_000)
        line = one_line(told)

        assert 1 == told.returncode
        assert f"no space is left on the file system of {disk.state}; free some space" in line
        assert [] == client.jobs(all_jobs=True)["jobs"]
        disk.free()
        job_id = submit_again(client, ["exit=0"])
        assert "COMPLETED" == client.wait([job_id])["jobs"][0]["state"]
        assert [job_id] == [job["id"] for job in client.jobs(all_jobs=True)["jobs"]]


@pytest.mark.slow
def test_what_is_asked_of_simulated_jobs_meanwhile_is_kept(disk, runtime):
    with daemon(disk.state, runtime) as (client, process):
        ids = client.submit([{"command": ["compute=1000s"]}] * 9, {})
        disk.fill()
        told = iod(runtime / "iod.sock", "submit", "--", "/bin/echo", "x" * 100_000)
        assert 1 == told.returncode
        assert client.cancel(ids[0])["gone"]
        assert client.cancel(ids[8])["gone"]
        disk.free()
        submit_again(client, ["exit=0"])
        stop(process)
    with daemon(disk.state, runtime) as (client, _):
        states = {job["id"]: job["state"] for job in client.jobs(all_jobs=True)["jobs"]}

    assert ("CANCELLED", "CANCELLED") == (states[ids[0]], states[ids[8]])


def test_the_end_of_a_job_on_a_full_disk_is_not_lost(disk, runtime, tmp_path):
    gate = tmp_path / "gate"
    with daemon(disk.state, runtime, backend="linux") as (client, _):
        [job_id] = client.submit([{"command": gated(gate, 7)}], {"PATH": os.environ["PATH"]})
        assert wait_until(lambda: client.job(job_id)["pids"])
        [main, *_] = client.job(job_id)["pids"]
        disk.fill()
        gate.touch()
        assert wait_until(lambda: find_state(main) is None)

        disk.free()
        [job] = client.wait([job_id], timeout_s=20.0)["jobs"]
        assert ("FAILED", 7) == (job["state"], job["exit_code"])


def test_a_cancel_kills_a_jobs_processes_also_on_a_full_disk(disk, runtime):
    """The cancel is answered once its end is in the journal."""
    with daemon(disk.state, runtime, backend="linux") as (client, _):
        [job_id] = client.submit([{"command": ["/bin/sleep", "1000"]}], {})
        assert wait_until(lambda: client.job(job_id)["pids"])
        disk.fill()
        with ThreadPoolExecutor() as others:
            others.submit(client.cancel, job_id, grace_s=0.0)  # answered when it is gone
            assert wait_until(lambda: not client.job(job_id)["pids"])
            disk.free()
        [job] = client.wait([job_id], timeout_s=20.0)["jobs"]
        assert ("CANCELLED", 15) == (job["state"], job["signal"])


def test_the_end_is_found_by_the_next_daemon_where_the_first_could_not_keep_it(
    disk, runtime, tmp_path
):
    gate = tmp_path / "gate"
    with daemon(disk.state, runtime, backend="linux") as (client, process):
        [job_id] = client.submit([{"command": gated(gate, 7)}], {"PATH": os.environ["PATH"]})
        assert wait_until(lambda: client.job(job_id)["pids"])
        [main, *_] = client.job(job_id)["pids"]
        disk.fill()
        stop(process)
    gate.touch()
    assert wait_until(lambda: find_state(main) is None)
    disk.free()
    with daemon(disk.state, runtime, backend="linux") as (client, _):
        [job] = client.wait([job_id], timeout_s=20.0)["jobs"]

    assert ("FAILED", 7) == (job["state"], job["exit_code"])


@pytest.mark.parametrize(("backend", "is_new"), [("simulated", True), ("linux", False)])
def test_a_daemon_does_not_start_on_a_full_disk_and_says_why(disk, runtime, backend, is_new):
    if is_new:
        disk.state.mkdir(mode=0o700)
    else:
        with daemon(disk.state, runtime, backend=backend) as (client, _):
            client.submit([{"command": ["/bin/true"], "hold": True}], {})
    disk.fill()

    code, line = fails(disk.state, runtime, backend=backend)

    assert 1 == code
    assert str(disk.state) in line
    assert any(word in line for word in ("no space is left", "limit"))
    disk.free()
    with daemon(disk.state, runtime, backend=backend) as (client, _):
        assert len(client.jobs()["jobs"]) == (0 if is_new else 1)


@pytest.mark.parametrize("is_new", [False], ids=["used before"])
def test_a_daemon_does_not_start_on_a_read_only_disk_and_says_why(disk, runtime, is_new):
    if is_new:
        disk.state.mkdir(mode=0o700)
    else:
        with daemon(disk.state, runtime):
            pass
    disk.make_read_only()

    code, line = fails(disk.state, runtime)

    assert 1 == code
    assert f"the file system of {disk.state} is read-only; mount it writable" in line
