"""The daemon's connection to the supervisor; starts an anchor if none runs.

Wishes are states (``supervisor.protocol``), so this module repeats none: without a connection they
are dropped, and after each new one its owner sends ``sync``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from iodaemon.errors import BackendError
from iodaemon.node.condition import find_full_or_read_only, why_silent
from iodaemon.supervisor import anchor, protocol
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.protocol import LineReader, Message
from iodaemon.supervisor.syscalls import peer_of

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S: Final = 10.0
"""A started supervisor listens after about 0.1 s."""
_LEAVE_WITHIN_S: Final = 5.0
_RETRY_S: Final = 1.0
_POLL_S: Final = 0.01
_SILENT_S: Final = 3.0
"""A beat is answered within 31 ms beside 5,000 exits."""
_MOST_BETWEEN_BEATS_S: Final = 1.0


def start_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task. A failure is a bug: the loop's exception handler stops the daemon."""
    loop = asyncio.get_running_loop()

    def tell(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            loop.call_exception_handler({"message": "backend task failed", "exception": error})

    task = loop.create_task(work)
    task.add_done_callback(tell)
    return task


def encode_wish(wish: str, **fields: object) -> bytes:
    """One line (``supervisor.protocol``)."""
    message = {"wish": wish, **fields}
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, as a variable that is not UTF-8 has
        return protocol.encode(message)


class _Line(asyncio.Protocol):
    """One connection. What comes before the answer to a greeting is made good by ``sync``.

    Attributes:
        transport: open until ``over`` is done.
    """

    transport: asyncio.Transport

    def __init__(self, take: Callable[[Message], None]) -> None:
        self.over = asyncio.get_running_loop().create_future()
        self._take = take
        self._lines = LineReader()
        self._answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def greet(self, wish: bytes) -> asyncio.Future[Message]:
        """The future answer, ``hello`` or a refusal."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(wish)
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            try:
                message = msgspec.json.decode(line, type=dict)
            except msgspec.DecodeError:
                message = {"error": "what it says is no message of this protocol"}
            if self._answer.done():
                self._take(message)
            elif "hello" in message or "error" in message:
                self._answer.set_result(message)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


class SupervisorClient:
    """One connection at a time, renewed for as long as the daemon lives.

    Args:
        messages: the log of an anchor that is started here; in the state directory.
        on_connected: called after each connection except the first, and after this daemon stood
            still for so long that the supervisor may have let all jobs run on.
        on_message: called with each report and each refusal.
        on_used: called with what jobs used, by key, after each answered beat.
        on_trouble: called when ``problem`` changes.

    Attributes:
        hello: how the supervisor described itself.
        problem: why no wish is carried out now; empty if wishes are.
    """

    def __init__(
        self,
        config: anchor.Config,
        messages: Path,
        *,
        on_connected: Callable[[], None],
        on_message: Callable[[Message], None],
        on_used: Callable[[Message], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._config = config
        self._messages = messages
        self._state = os.path.realpath(messages.parent)
        self._on_connected = on_connected
        self._on_message = on_message
        self._on_used = on_used
        self._on_trouble = on_trouble
        self._child: subprocess.Popen[bytes] | None = None
        self._spawned_s = -math.inf
        self._line: _Line | None = None
        """None: no supervisor has said hello on one."""
        self._unsent = bytearray()
        self._connected = asyncio.Event()
        self._is_closing = self._is_replaced = False
        self._tasks: list[asyncio.Task[None]] = []
        self._asked = 0
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self.hello: Message = {}
        self.problem = ""

    @property
    def pid(self) -> int:
        """The supervisor's pid; 0 if none was ever reached."""
        return int(self.hello.get("pid", 0))

    @property
    def controls(self) -> tuple[str, ...]:
        """What jobs' cgroups have: controllers, ``pressure``, ``cap``."""
        return tuple(self.hello.get("controls", ()))

    @property
    def jobs_cgroup(self) -> str | None:
        """The parent of the jobs' cgroups, which are named by key. None without cgroups."""
        base = self.hello.get("base")
        return None if base is None else f"{base}/jobs"

    async def open(self) -> None:
        """Reach or start a supervisor, and keep in touch from now on; raises BackendError."""
        line = await self._connect()
        self._connected.set()
        self._tasks = [start_task(self._stay_connected(line)), start_task(self._keep_beating())]

    async def close(self) -> bool:
        """Leave: jobs run on, and a supervisor without jobs ends. Returns whether it answered."""
        self._is_closing = True
        running = None
        if self._connected.is_set():
            left = self._expect("left")
            self.wish("leave")
            with contextlib.suppress(TimeoutError, ConnectionError):
                within_s = _POLL_S if self.problem else _LEAVE_WITHIN_S
                running = (await asyncio.wait_for(left, within_s))["left"]
        await self.hang_up()
        if self._child is not None:
            await self._see_off(self._child, is_over=running == 0)
        return running is not None

    async def hang_up(self) -> None:
        """Close the connection without leaving: the daemon opens another one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()

    # -- wishes ------------------------------------------------------------------------------------

    def wish(self, wish: str, **fields: object) -> bool:
        """Send a wish. Returns whether there is a connection; if not, ``sync`` makes up for it."""
        self.send(encode_wish(wish, **fields))
        if wish == "freeze":
            self.flush()
        return self._line is not None

    def send(self, line: bytes) -> None:
        """Send an encoded wish, together with all others of this turn of the event loop."""
        if self._line is not None:
            if not self._unsent:
                asyncio.get_running_loop().call_soon(self.flush)
            self._unsent += line

    def flush(self) -> None:
        """Send all wishes now."""
        if self._line is not None and self._unsent:
            self._line.transport.write(bytes(self._unsent))
        self._unsent.clear()

    async def beat(self, within_s: float) -> None:
        """Ask for a call of ``on_used``; returns after it, or after this time."""
        if self._connected.is_set():
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(asyncio.shield(self._begin_beat()), within_s)

    async def ask_scratch(self, **fields: object) -> Message:
        """The answer to a ``scratch`` wish, which is repeated if the supervisor dies."""
        while True:
            await self._connected.wait()
            self._asked += 1
            what = f"scratch {self._asked}"
            answer = self._expect(what)
            self.wish("scratch", id=self._asked, **fields)
            try:
                return await answer
            except ConnectionError:
                continue
            finally:
                self._answers.pop(what, None)

    def _begin_beat(self) -> asyncio.Future[Message]:
        if "beat" not in self._answers:
            self._asked += 1
            self.wish("beat", n=self._asked)
        return self._expect("beat")

    def _expect(self, what: str) -> asyncio.Future[Message]:
        """The future answer, one for all callers that wait for the same."""
        if what not in self._answers:
            self._answers[what] = asyncio.get_running_loop().create_future()
        return self._answers[what]

    # -- staying in touch --------------------------------------------------------------------------

    async def _keep_beating(self) -> None:
        """Show the supervisor that this daemon lives, and notice one that does not answer."""
        loop = asyncio.get_running_loop()
        between_s = min(self._config.grace_s / anchor.BEATS, _MOST_BETWEEN_BEATS_S)
        while True:
            before_s = loop.time()
            await asyncio.sleep(between_s)
            slept_s = loop.time() - before_s
            await self._connected.wait()
            asked_s = loop.time()
            beat = self._begin_beat()
            was_silent = False
            while not (await asyncio.wait({beat}, timeout=_SILENT_S))[0]:
                if not self.problem:
                    why = self.why_silent()
                    log.error('event=supervisor_silent pid=%d problem="%s"', self.pid, why)
                was_silent = True
                self._tell_trouble(self.why_silent())
            still_s = slept_s + loop.time() - asked_s
            if not beat.cancelled() and beat.exception() is not None:
                continue  # the line ended: another trouble
            if was_silent:
                log.info("event=supervisor_answers pid=%d", self.pid)
                self._tell_trouble("")
            elif still_s >= self._config.grace_s:
                log.warning("event=stood_still seconds=%.1f", still_s)
            if was_silent or still_s >= self._config.grace_s:
                self._on_connected()

    def why_silent(self) -> str:
        """Why the supervisor does not answer, what to do, and the consequences meanwhile."""
        return (
            f"{why_silent(self.pid)}; meanwhile no job starts, is suspended or ended, and "
            f"suspended ones run on after {self._config.grace_s:g} s"
        )

    def _tell_trouble(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_trouble(problem)

    async def _stay_connected(self, line: _Line) -> None:
        while True:
            await line.over
            self._hang_up()
            if self._is_closing:
                return
            log.warning("event=supervisor_lost pid=%d", self.pid)
            while True:
                try:
                    line = await self._connect()
                    break
                except BackendError as error:
                    self._tell_trouble(str(error))
                    await asyncio.sleep(_RETRY_S)
            self._tell_trouble("")
            means = self.hello.get("means")
            log.info("event=supervisor_connected pid=%d means=%s", self.pid, means)
            self._connected.set()
            self._on_connected()

    def _take(self, message: Message) -> None:
        if "protected" in message:  # of each beat, and when the anchor dies
            self.hello["protected"] = message["protected"]
        if "beat" in message:
            self._on_used(message["use"])
            what = "beat"
        elif "scratch" in message:
            what = f"scratch {message['scratch']}"
        elif "left" in message:
            what = "left"
        else:
            self._on_message(message)
            return
        answer = self._answers.pop(what, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _hang_up(self) -> None:
        self._connected.clear()
        self._unsent.clear()
        if self._line is not None:
            self._line.transport.close()
            self._line = None
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the supervisor is gone"))
                answer.exception()  # whoever waits for it hears of it; else nobody has to

    async def _connect(self) -> _Line:
        """A connection to a supervisor that has said hello; BackendError if none answers."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _ANSWER_WITHIN_S
        while True:
            if (line := await self._open_line()) is not None:
                try:
                    if await self._greet(line):  # else it was just about to end
                        self._line = line
                        return line
                finally:
                    if self._line is None:
                        line.transport.close()
            if loop.time() > deadline_s:
                raise BackendError(self._why_unreachable())
            await asyncio.sleep(_POLL_S)

    async def _open_line(self) -> _Line | None:
        """Connect to its socket, or to its second address if somebody removed that."""
        path = os.path.join(self._config.runtime, anchor.SOCKET)
        for address in (path, anchor.abstract_address(self._config)):
            try:
                if (line := await self._open_at(address)) is not None:
                    return line
            except (FileNotFoundError, ConnectionError):
                pass
            except OSError as error:  # also where no descriptor is left
                raise BackendError(f"{path}: {error.strerror}") from error
        if not self._config.is_service:  # there systemd does
            self._start_if_none()
        return None

    async def _open_at(self, address: str) -> _Line | None:
        """Connect. None if it is another user's, from whom nothing is read; raises OSError."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            )
            await loop.sock_connect(connection, address)
            pid, uid = peer_of(connection)
            if uid in (0, os.geteuid()):
                _, line = await loop.create_unix_connection(
                    lambda: _Line(self._take), sock=connection
                )
                self.hello = {**self.hello, "pid": pid}
                opened.pop_all()
                return line
        return None

    async def _greet(self, line: _Line) -> bool:
        """Whether it said hello; False if the connection ended, BackendError if it is of no use.

        A supervisor of another release is asked to become the installed program, which ends the
        connection.
        """
        for wish in ("hello", "reexec"):
            greeting = encode_wish(wish, protocol=protocol.VERSION, state=self._state)
            answer = line.greet(greeting)
            await asyncio.wait(
                {answer, line.over}, timeout=_ANSWER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not answer.done():
                if line.over.done():
                    return False
                raise BackendError(self.why_silent())
            if "error" in (message := answer.result()):
                raise BackendError(f"the supervisor refuses: {message['error']}")
            self.hello = message["hello"]
            if self.hello.get("protocol") == protocol.VERSION:
                reach("client.greeted")
                return True
            if self._is_replaced:
                raise BackendError(
                    f"the supervisor that runs (pid {self.pid}) is of another release and cannot "
                    "become this one; restart it once no job runs"
                )
            self._is_replaced = True
        return False

    def _why_unreachable(self) -> str:
        fact = f"no supervisor answers on {os.path.join(self._config.runtime, anchor.SOCKET)}"
        if self._config.is_service:
            return f"{fact}; see 'journalctl -u iodaemon-supervisor'"
        if (problem := find_full_or_read_only(self._messages.parent)) is not None:
            return f"{fact}, and {problem}"  # it could write no messages
        return f"{fact}; its messages are in {self._messages}"

    # -- an anchor of one's own --------------------------------------------------------------------

    def _start_if_none(self) -> None:
        """Start an anchor unless one runs or was started just now; BackendError if it fails."""
        alive = self._child is not None and self._child.poll() is None
        now_s = asyncio.get_running_loop().time()
        if alive or now_s < self._spawned_s + _RETRY_S:
            return
        self._spawned_s = now_s
        reach("client.spawning")
        try:
            with _open_messages(self._messages) as messages:
                self._child = subprocess.Popen(
                    anchor.command("anchor", self._config.dump()),
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    start_new_session=True,
                    cwd="/",
                )
        except OSError as error:
            raise BackendError(f"no supervisor can be started ({error.strerror})") from error
        reach("client.spawned")

    async def _see_off(self, child: subprocess.Popen[bytes], *, is_over: bool) -> None:
        """Wait until an anchor without jobs ends; one with jobs stays."""
        until_s = asyncio.get_running_loop().time() + _LEAVE_WITHIN_S
        while is_over and asyncio.get_running_loop().time() < until_s:
            if child.poll() is not None:
                return
            await asyncio.sleep(_POLL_S)
        if child.poll() is None:
            child.returncode = 0  # it stays on purpose; do not warn that it was not waited for


def _open_messages(path: Path) -> BinaryIO:
    """The anchor's log, or /dev/null: a supervisor without a log is better than none."""
    try:
        return open(path, "ab")
    except OSError as error:
        log.warning("event=no_supervisor_log path=%s problem=%s", path, error.strerror)
        return open(os.devnull, "ab")
