"""Private daemons to be measured, of this checkout or of another one, and nothing left of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import toml

from iodaemon.api.client import Client
from iodaemon.api.connection import UnixConnection
from iodaemon.errors import NoDaemon
from iodaemon.trial.private import MARK, kill_marked

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0
STOP_S = 10.0
_ROOT_SIDE = ("iod-supervisor", "iod-launcher", "iod-sampler")


class Daemon:
    """One daemon that is up.

    Attributes:
        base: its directory; jobs may write there.
        client: opens a connection for every request.
        pid: its process.
        environment: what jobs are submitted with.
    """

    def __init__(self, base: Path, client: Client, pid: int, environment: dict[str, str]) -> None:
        self.base = base
        self.client = client
        self.pid = pid
        self.environment = environment
        self._connection = UnixConnection(client.socket_path, TIMEOUT_S)

    @property
    def root_side(self) -> list[int]:
        """Anchor, supervisor and launcher."""
        anchor = int((self.base / "run/lock").read_text())
        found = [anchor]
        for pid in [*found, *_children(anchor)]:
            found += (child for child in _children(pid) if _name(child) in _ROOT_SIDE)
        return list(dict.fromkeys(found))

    def submit(self, *commands: list[str]) -> list[int]:
        """Submit on the connection that stays open; the ids, once durable."""
        return self.post(submission(commands, self.environment))

    def post(self, body: bytes) -> list[int]:
        """Send a submission that is ready, on the connection that stays open."""
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/jobs", body, headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if response.status >= http.client.BAD_REQUEST:
            raise RuntimeError(answer["error"]["message"])
        ids: list[int] = answer["ids"]
        return ids

    def finish(self, ids: Sequence[int]) -> float:
        """Wait for these jobs; when that was known, by the monotonic clock, s."""
        answer = self.client.wait(ids, timeout_s=300.0)
        ended_s = time.monotonic()
        if not answer["finished"]:
            raise RuntimeError(f"{len(ids)} jobs do not end")
        return ended_s

    def hang_up(self) -> None:
        """Close the connection."""
        self._connection.close()


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def submission(commands: Sequence[list[str]], environment: Mapping[str, str]) -> bytes:
    """The body of a submission of jobs that keep no output."""
    common: dict[str, Any] = {"cwd": "/", "stdout": "/dev/null"}
    jobs = [{**common, "command": command} for command in commands]
    return json.dumps({"environment": dict(environment), "jobs": jobs}).encode()


@contextlib.contextmanager
def private_daemon(slots: int = 2, *, checkout: Path = ROOT) -> Iterator[Daemon]:
    """A daemon with at least so many slots of one socket, gone afterwards with its jobs.

    Args:
        slots: see above; on two CPUs at most.
        checkout: the tree whose ``iodaemon`` is run.
    """
    base = Path(tempfile.mkdtemp(prefix="iod-bench-"))
    mark = uuid.uuid4().hex
    config = base / "config.toml"
    config.write_text(toml.dumps(_settings(base, slots)))
    try:
        with (base / "daemon.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "iodaemon.cli", "--config", str(config), "daemon"],
                stdout=log,
                stderr=log,
                env={**os.environ, MARK: mark, "PYTHONPATH": str(checkout)},
                start_new_session=True,
                cwd="/",
            )
        try:
            client = _reach(process, base)
            daemon = Daemon(base, client, process.pid, {**os.environ, MARK: mark})
            yield daemon
            daemon.hang_up()
        finally:
            _end(process, base, mark)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _reach(process: subprocess.Popen[bytes], base: Path) -> Client:
    """A client of a daemon that is just starting."""
    client = Client(str(base / "run/iod.sock"), timeout_s=TIMEOUT_S)
    until_s = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < until_s:
        with contextlib.suppress(NoDaemon):
            client.jobs(limit=1)
            return client
        time.sleep(0.02)
    words = (base / "daemon.log").read_text().splitlines()[-5:]
    raise RuntimeError("the daemon does not start:\n" + "\n".join(words))


def _settings(base: Path, slots: int) -> dict[str, object]:
    cpus = sorted(os.sched_getaffinity(0))[: min(2, slots)]
    return {
        "state_dir": str(base / "state"),
        "runtime_dir": str(base / "run"),
        "regulation": {"timeslice": "1 s"},
        "topology": {
            "sockets": [",".join(map(str, cpus))],
            "slot": "thread",
            "oversubscribe": -(-slots // len(cpus)),
        },
    }


def _end(process: subprocess.Popen[bytes], base: Path, mark: str) -> None:
    """The daemon in order, whatever it started by force, and the cgroups that are left of it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    groups = _cgroups(base)
    kill_marked(mark)
    for _ in range(100):
        for group in filter(Path.exists, groups):
            with contextlib.suppress(OSError):
                group.rmdir()
        if not any(map(Path.exists, groups)):
            return
        time.sleep(0.02)


def _cgroups(base: Path) -> list[Path]:
    """Of the root side, inner ones first."""
    try:
        top = (base / "run/cgroup").read_text()
    except FileNotFoundError:
        return []
    return [
        *Path(top, "jobs").glob("*/"),
        *(Path(top, each) for each in ("jobs", "supervisor", "")),
    ]
