"""The daemon, whole, in this process: simulated jobs, virtual time, real HTTP on a real socket.

Nothing happens by itself: jobs go on while a script calls ``advance``, and what a request causes
has happened once it is answered. So each answer is the same in every run. Whatever today's daemon
is built of is named in this module only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from iodaemon.config import load_config
from iodaemon.core import event as ev
from iodaemon.core.job import Exit, IoTotals, JobId
from iodaemon.daemon import main
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.http.server import Server
from iodaemon.daemon.preflight import Preflight
from iodaemon.simulator.timeline import VirtualTimeline

START_S = 1_700_000_000.0
"""The first instant; also where a recorded time is counted from."""
PATIENCE_S = 30.0


class Answered:
    """One answer.

    Attributes:
        status: of HTTP.
        body: all bytes of it, or those of the lines that were asked for.
    """

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """Of a stream of JSON, one document a line."""
        return [json.loads(line) for line in self.body.splitlines() if line.strip()]


class _Clock(VirtualTimeline):
    """Virtual time, from a fixed instant on."""

    anchor_s = START_S

    def __init__(self, _loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(start_s=START_S)


class ScriptedDaemon:
    """A daemon that moves only when told to; made by ``scripted``.

    Attributes:
        socket_path: where it listens.
        config: its configuration file, which may be written anew before a reload.
    """

    def __init__(self, directory: Path, config: str) -> None:
        self.directory = directory
        self.config = directory / "config.toml"
        self.config.write_text(config)
        self.socket_path = directory / "run" / "iod.sock"
        self.loop: asyncio.AbstractEventLoop
        self.clock: _Clock
        self.driver: Driver
        self.server: Server
        self._threads = concurrent.futures.ThreadPoolExecutor(8)

    # -- requests --------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        lines: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answered:
        """One request; time stands still, and simulated jobs do nothing meanwhile.

        Args:
            method: of HTTP.
            target: path and query.
            body: sent as JSON. None: no body.
            lines: read so many lines of the answer and hang up. None: read to its end.
            headers: beside those that every request has.
        """
        answer = self._exchange(method, target, body, lines, headers or {})
        self._settle()
        return answer

    def act(self, method: str, target: str, body: Any = None) -> Answered:
        """One request that is answered when jobs did what it asks for, which they do at once."""
        return self.answer_of(self.begin(method, target, body))

    def begin(
        self, method: str, target: str, body: Any = None
    ) -> concurrent.futures.Future[Answered]:
        """Send a request that is answered later; to be given to ``answer_of``."""
        before = self._conditions()
        begun = self._threads.submit(self._exchange, method, target, body, None, {})
        deadline_s = time.monotonic() + PATIENCE_S
        while not begun.done() and self._conditions() == before:
            assert time.monotonic() < deadline_s, f"{method} {target} was not heard"
            time.sleep(0.001)
        self._settle()
        return begun

    def answer_of(self, begun: concurrent.futures.Future[Answered]) -> Answered:
        """The answer to a request that was sent, while time stands still and jobs react."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not begun.done():
            assert time.monotonic() < deadline_s, "a request is not answered"
            self.advance(0.0)
            concurrent.futures.wait([begun], 0.001)
        self.advance(0.0)
        return begun.result()

    def _exchange(
        self, method: str, target: str, body: Any, lines: int | None, headers: Mapping[str, str]
    ) -> Answered:
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_S)
        connection.sock.connect(str(self.socket_path))
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, target, data, {**kind, **headers})
            answer = connection.getresponse()
            if lines is None:
                return Answered(answer.status, answer.read())
            return Answered(answer.status, b"".join(answer.readline() for _ in range(lines)))
        finally:
            connection.close()

    # -- time and jobs ---------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due meanwhile, each at its time."""
        self._call(self._advance, seconds)

    def ended_by_kernel(self, job_id: int) -> None:
        """The job's processes are killed because memory ran out."""
        self._post_exit(job_id, Exit(signal=9, out_of_memory=True))

    def lost(self, job_id: int) -> None:
        """The job is gone, and nobody can tell how it ended."""
        self._post_exit(job_id, Exit())

    def write_output(self, job_id: int, data: bytes) -> None:
        """Give a job an output file: simulated jobs write none."""
        path = self.directory / "state" / "output" / f"{job_id}.1"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)

    def routes(self) -> set[str]:
        """``METHOD /path`` of everything that is served."""
        runner = self.server._runner
        assert runner is not None
        return {
            f"{route.method} {route.resource.canonical}"
            for route in runner.app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }

    def _post_exit(self, job_id: int, end: Exit) -> None:
        async def post() -> None:
            job = self.driver.state.jobs[JobId(job_id)]
            self.driver.post(
                ev.JobExited(
                    at_s=self.clock.now_s,
                    job_id=job.id,
                    attempt=job.attempt,
                    exit=end,
                    io=IoTotals(),
                )
            )

        self._call(post)
        self._settle()

    # -- within the daemon's loop ----------------------------------------------------------------

    def _conditions(self) -> int:
        """How many requests wait for something."""
        return len(self.driver.watch._conditions)

    def _call(self, make: Callable[..., Any], *arguments: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(make(*arguments), self.loop).result(PATIENCE_S)

    def _settle(self) -> None:
        self._call(self._until_settled)

    async def _advance(self, seconds: float) -> None:
        until_s = self.clock.now_s + seconds
        await self._until_settled()
        while self.clock._step_until(until_s):
            await self._until_settled()
        self.clock.run_until(until_s)

    async def _until_settled(self) -> None:
        """Wait until every event is dealt with, and everything decided is durable and done."""
        for _ in range(3):  # what is durable may be answered by another event
            for _ in range(20):
                await asyncio.sleep(0)
            await asyncio.to_thread(self.driver.journal.flush, PATIENCE_S)
        while self.driver._inbox or self.driver._unwritten:
            await asyncio.sleep(0)
            await asyncio.to_thread(self.driver.journal.flush, PATIENCE_S)


def run_scripted(directory: Path, config: str, script: Callable[[ScriptedDaemon], None]) -> None:
    """Run a daemon while the script runs, and end both; only in a program's first thread.

    Args:
        directory: of its own, empty.
        config: further text of the configuration file.
        script: called in another thread, with the daemon.
    """
    head = (
        f'backend = "simulated"\nstate_dir = "{directory}/state"\nruntime_dir = "{directory}/run"\n'
    )
    daemon = ScriptedDaemon(directory, head + config)
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            while not _is_listening(daemon.socket_path):
                time.sleep(0.002)
            script(daemon)
        except BaseException as error:  # noqa: BLE001 - raised again in the first thread
            failures.append(error)
        finally:
            daemon.loop.call_soon_threadsafe(living._stop)

    def read() -> Any:
        return load_config(daemon.config, {"HOME": str(directory)}, 1000, {})

    thresholds = gc.get_threshold()
    loaded = read()
    preflight = Preflight(loaded)
    preflight.check()
    with _built_of(daemon), main.prepare_places(loaded) as places:
        living = main._Daemon(loaded, preflight, read, None, places)

        async def live() -> int:
            daemon.loop = asyncio.get_running_loop()
            thread.start()
            return await living.live()

        thread = threading.Thread(target=follow)
        try:
            assert asyncio.run(live()) == 0
        finally:
            thread.join(PATIENCE_S)
            gc.unfreeze()
            gc.set_threshold(*thresholds)
    for failure in failures:
        raise failure


@contextmanager
def _built_of(daemon: ScriptedDaemon) -> Iterator[None]:
    """The daemon's clock is virtual, and its parts can be reached."""

    def clock(loop: asyncio.AbstractEventLoop) -> _Clock:
        daemon.clock = _Clock(loop)
        return daemon.clock

    def driver(*arguments: Any, **options: Any) -> Driver:
        daemon.driver = Driver(*arguments, **options)
        return daemon.driver

    def server(*arguments: Any, **options: Any) -> Server:
        daemon.server = Server(*arguments, **options)
        return daemon.server

    with (
        mock.patch.object(main, "WallTimeline", clock),
        mock.patch.object(main, "Driver", driver),
        mock.patch.object(main, "Server", server),
    ):
        yield


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
