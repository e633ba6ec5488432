"""The daemon's server on a real socket over a simulated node, in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from iodaemon.api.client import Client
from iodaemon.config import Config, load_config, load_policy
from iodaemon.core.controller import Controller
from iodaemon.core.job import JobId
from iodaemon.core.limits import Sharing
from iodaemon.core.rule import Mode
from iodaemon.core.state import State
from iodaemon.daemon.backends import SimulatedDoor
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.http.access import Kind, Rights
from iodaemon.daemon.http.context import Context
from iodaemon.daemon.http.server import Server
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.knowledge import Knowledge
from iodaemon.daemon.metrics.page import MetricsPage
from iodaemon.daemon.metrics.table import Scene
from iodaemon.daemon.reload import InForce
from iodaemon.daemon.timeline import WallTimeline
from iodaemon.model.node import default_platform
from iodaemon.registry import shipped

SHARED = Rights(owner_uid=4321, is_shared=True)
"""Of a daemon for all users of the machine."""


class Served:
    """A daemon without signals, locks and processes; ``close`` raises what went wrong in it."""

    def __init__(
        self,
        directory: Path,
        *,
        kept_finished: int = 1000,
        regulation: dict[str, Any] | None = None,
        mode: Mode = Mode.ON,
        keeps_samples: bool = False,
        rights: Rights | None = None,
        sharing: Sharing | None = None,
        controls: Mapping[str, bool] | None = None,
    ) -> None:
        self.directory = directory
        self._regulation = {"timeslice": "0.1 s", **(regulation or {})}
        self._mode = mode
        self._keeps_samples = keeps_samples
        self._rights = rights
        self._sharing = sharing
        self.controls = controls or {}
        self.socket_path = str(directory / "iod.sock")
        self.outputs = directory / "output"
        self.journal = Journal.open(directory / "journal.db", seed=1)
        self._kept_finished = kept_finished
        self.node_reports = 0
        self._errors: list[BaseException] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))
        self._thread.start()
        assert self._ready.wait(10.0)
        self.client = Client(self.socket_path, timeout_s=20.0)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._on_error)
        self._stop = asyncio.Event()
        try:
            await self._serve()
        finally:
            await asyncio.to_thread(self.journal.close)

    async def _serve(self) -> None:
        timeline = WallTimeline(self.loop)
        restored = self.journal.restore()
        self.knowledge = Knowledge()
        self.knowledge.recall(restored, timeline.now_s)
        self.state = State(
            default_platform(),
            sharing=self._sharing,
            kept_finished=self._kept_finished,
            experience=self.knowledge.recollection,
        )
        self.state.restore(restored.jobs, restored.next_id, restored.drain, restored.lessons)
        policy = load_policy(
            "default",
            overrides={"regulation": self._regulation},
            search=(shipped("policies"),),
        )
        self.driver = Driver(
            Controller(self.state, policy.rules, mode=restored.mode or self._mode),
            self.journal,
            timeline,
            restored.environments,
            requests=restored.requests,
            keeps_samples=self._keeps_samples,
        )
        door = _Door(self, timeline)
        context = self.context = Context(
            driver=self.driver,
            journal=self.journal,
            knowledge=self.knowledge,
            force=InForce(self._config(), policy),
            door=door,
            outputs=self.outputs,
            rights=self._rights,
        )
        self.server = Server(context, MetricsPage(Scene(self.driver)).routes())
        await self.server.open(Path(self.socket_path))
        self.driver.run(door.backend)
        self._ready.set()
        await self._stop.wait()
        await self.server.close()
        self.driver.halt()

    def _config(self) -> Config:
        file = self.directory / "config.toml"
        file.write_text('backend = "simulated"\ncancel_grace = "5 s"\n')
        return load_config(file, {"HOME": str(self.directory)}, os.geteuid(), {})

    def _on_error(self, _: object, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or RuntimeError(str(context)))

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20.0)
        assert not self._thread.is_alive(), "the server does not stop"
        if self._errors:
            raise self._errors[0]

    def call(self, function: Callable[[], Any]) -> Any:
        """The function's result, called in the daemon's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10.0)

    def handlers(self) -> int:
        """How many requests are being answered now."""
        return self.call(
            lambda: sum("start" in (t.get_coro().__qualname__) for t in asyncio.all_tasks())
        )

    # -- jobs ----------------------------------------------------------------------------------

    def submit(self, *words: str, **fields: Any) -> int:
        [job_id] = self.client.submit([{"command": ["job", *words], **fields}], {"A": "1"})
        return job_id

    def running(self, *words: str, **fields: Any) -> int:
        """A job that runs until it is told otherwise."""
        job_id = self.submit(*(words or ("compute=1000s",)), **fields)
        self.until(lambda: self.state.jobs[JobId(job_id)].state == "RUNNING")
        return job_id

    def ended(self, *words: str, **fields: Any) -> int:
        job_id = self.submit(*(words or ("exit=0",)), **fields)
        assert self.client.wait([job_id], timeout_s=10.0)["finished"]
        return job_id

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait in the daemon until this is so."""
        waiting = asyncio.run_coroutine_threadsafe(
            self.driver.watch.until(lambda: bool(holds()), 10.0), self.loop
        )
        assert waiting.result(15.0)

    def await_waiting(self, count: int) -> None:
        """Wait until so many requests wait for something to come true."""
        while self.call(lambda: len(self.driver.watch._conditions)) != count:
            self.ask("GET", "/v1/mode")

    def turn(self, kind: Kind) -> tuple[bool, int]:
        """Whether a request of this user's has the turn of this kind, and how many wait for it."""

        def look() -> tuple[bool, int]:
            lock = self.context.access._turns.get((kind, os.geteuid()))
            return (False, 0) if lock is None else (lock.locked(), len(lock._waiters or ()))

        return self.call(look)

    def await_turn(self, kind: Kind, *wanted: Any) -> None:
        """Wait until ``turn`` is this, for as long as the test may last."""
        while self.turn(kind) != wanted:
            self.ask("GET", "/v1/mode")

    def output(self, job_id: int, data: bytes) -> Path:
        """Give the job an output file, as its supervisor would have."""
        attempt = self.state.jobs[JobId(job_id)].attempt
        path = self.outputs / f"{job_id}.{attempt}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    # -- HTTP ----------------------------------------------------------------------------------

    def raw(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.socket_path)  # without a timeout: then it waits to be accepted
        connection.settimeout(20.0)
        return connection

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request as it stands here; the whole answer."""
        data = b"" if body is None else body
        lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None and "Transfer_Encoding" not in headers:
            lines.append(f"Content-Length: {len(data)}")
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        return self.exchange(head + data)

    def exchange(self, data: bytes) -> Answer:
        """Send these bytes; whatever comes back until the end."""
        with self.raw() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)  # it may answer before it has heard all
            received = b""
            while piece := connection.recv(1 << 16):
                received += piece
        return Answer(received)


class _Door(SimulatedDoor):
    def __init__(self, served: Served, timeline: WallTimeline) -> None:
        super().__init__(
            served.state.platform,
            timeline,
            served.driver.post,
            lambda job_id: served.state.jobs[job_id].spec.command,
        )
        self._served = served

    def describe(self) -> Mapping[str, Any]:
        self._served.node_reports += 1
        return super().describe()

    def controls(self) -> Mapping[str, bool]:
        return self._served.controls


class Answer:
    """Status and body of one answer."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.head = head.decode("latin-1")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str]:
        """Status, code, message: of an answer that is an error in one line, and nothing else."""
        told = self.json
        assert set(told) == {"error"}
        assert set(told["error"]) - {"at", "problem"} == {"code", "message"}
        message = told["error"]["message"]
        assert message
        assert "\n" not in message
        assert len(message) < 500
        return self.status, told["error"]["code"], message


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- other users ---------------------------------------------------------------------------------

ANOTHER = pwd.getpwnam("games").pw_uid
NOBODY = pwd.getpwnam("nobody").pw_uid
PYTHON = shutil.which("python3", path="/usr/bin:/bin")
"""One that every user of the machine can run."""
ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0 or PYTHON is None, reason="only root can become others"
)
_ASK = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(20)
connection.connect(sys.argv[1])
connection.sendall(sys.argv[2].encode())
answer = b""
while piece := connection.recv(65536):
    answer += piece
sys.stdout.buffer.write(answer)
"""


def as_user(served: Served, uid: int, method: str, target: str, body: object = None) -> Answer:
    """The answer to this user, who sends the body as JSON."""
    text = "" if body is None else json.dumps(body)
    request = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    request += f"Content-Length: {len(text)}\r\n\r\n{text}"
    ended = subprocess.run(
        [PYTHON, "-I", "-S", "-c", _ASK, served.socket_path, request],
        capture_output=True,
        check=True,
        user=uid,
        cwd="/",
        timeout=30,
    )
    return Answer(ended.stdout)
