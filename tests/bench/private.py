"""A private daemon for one run, and what is left of it taken away whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import toml

from iodaemon.api.client import Client
from iodaemon.api.model import Job, JobSpec
from iodaemon.errors import IodaemonError, NoDaemon

MARK = "IOD_BENCH_MARK"
"""Everything a daemon starts inherits it, by which leftovers are found."""
PATIENCE_S = 20.0
SLOTS = 8


class Private:
    """A daemon that is up. Use ``private`` to make one."""

    def __init__(self, base: Path, client: Client, mark: str) -> None:
        self.log = base / "daemon.log"
        self.client = client
        self._environment = {**os.environ, MARK: mark}

    def run(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Submit them together and wait for all.

        Raises:
            RuntimeError: one did not complete with exit code 0.
        """
        ids = self.client.submit(specs, self._environment)
        jobs = sorted(self.client.wait(ids)["jobs"], key=lambda job: job["id"])
        for job in jobs:
            if job["state"] != "COMPLETED" or job["exit_code"] != 0:
                raise RuntimeError(
                    f"job {job['id']} ({job['name']}) is {job['state']}, exit code "
                    f"{job['exit_code']}; see {self.log}"
                )
        return jobs

    def suspensions(self) -> int:
        """How often a job was suspended, by the daemon's log."""
        return self.log.read_text().count("decision=suspend")


@contextlib.contextmanager
def private(base: Path, policy: str, regulation: dict[str, float | str]) -> Iterator[Private]:
    """A daemon under this policy in a directory of its own, gone afterwards with its jobs."""
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    config = base / "config.toml"
    config.write_text(toml.dumps(settings(base, policy, regulation)))
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "iodaemon.cli", "--config", str(config), "daemon"]
    with (base / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, MARK: mark},
            start_new_session=True,
            cwd="/",
        )
    try:
        yield Private(base, connect(base / "run/iod.sock", process), mark)
    finally:
        stop(process, base)
        kill_marked(mark)


def settings(base: Path, policy: str, regulation: dict[str, float | str]) -> dict[str, object]:
    """Two sockets, divided by configuration, with room for all jobs at once."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    halves = [cpus[:half], cpus[half:]] if half else [cpus]
    return {
        "state_dir": str(base / "state"),
        "runtime_dir": str(base / "run"),
        "policy": policy,
        "topology": {
            "sockets": [",".join(map(str, one)) for one in halves],
            "slot": "thread",
            "oversubscribe": max(1, -(-SLOTS // len(cpus))),
        },
        "regulation": {"timeslice": "1 s", **regulation},
    }


def connect(socket: Path, process: subprocess.Popen[bytes]) -> Client:
    """A client of a daemon that is just starting."""
    client = Client(str(socket))
    deadline_s = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(NoDaemon):
            client.jobs()
            return client
        time.sleep(0.05)
    raise RuntimeError(f"the daemon does not start; see {socket.parents[1] / 'daemon.log'}")


def stop(process: subprocess.Popen[bytes], base: Path) -> None:
    """Cancel what still runs, then end the daemon."""
    client = Client(str(base / "run/iod.sock"), timeout_s=PATIENCE_S)
    with contextlib.suppress(IodaemonError, OSError):
        left = [job["id"] for job in client.jobs()["jobs"] if job["ended_s"] is None]
        for job_id in left:
            client.cancel(job_id, grace_s=0.0)
        client.wait(left)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_marked(mark: str) -> None:
    """SIGKILL to what the daemon started and did not end: its keeper, jobs after a failure."""
    wanted = f"{MARK}={mark}".encode()
    deadline_s = time.monotonic() + 2.0
    while marked(wanted) and time.monotonic() < deadline_s:  # it may just be ending by itself
        time.sleep(0.05)
    for pid in marked(wanted):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked(wanted: bytes) -> list[int]:
    """All processes with this in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found
