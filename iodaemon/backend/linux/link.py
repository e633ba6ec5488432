"""The daemon's end of the line to the keeper; starts a keeper when none answers.

Every verb is idempotent, so a request that was under way when the keeper went away is simply
asked again of the next one: nothing a job needs is lost with a keeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import subprocess
from collections.abc import Callable
from typing import Final

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.keeper_command import KeeperSpec, keeper_command
from iodaemon.backend.linux.protocol import Message
from iodaemon.errors import BackendError, TooLarge
from iodaemon.fault import reach

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S: Final = 10.0
"""A keeper that has been started listens after about 0.05 s; more than this is a failure."""
_LEAVE_WITHIN_S: Final = 2.0
"""A keeper without jobs ends in milliseconds."""
_RETRY_S: Final = 1.0
_BEATS: Final = 3
"""So often in the keeper's grace time it hears of the daemon, though nothing be asked."""
_POLL_S: Final = 0.005


class KeeperLink:
    """One connection at a time, renewed for as long as the daemon lives."""

    def __init__(
        self,
        keeper: KeeperSpec,
        *,
        on_connected: Callable[[], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        """Remember how to reach or start a keeper.

        Args:
            keeper: started when none answers, unless it is a service.
            on_connected: runs after every connection but the first, and after this daemon stood
                still for so long that the keeper may have thawed everything.
            on_trouble: told why no keeper can be had, and ``""`` once one answers again.
        """
        self._keeper = keeper
        self._real_state = os.path.realpath(keeper.state)
        self._on_connected = on_connected
        self._on_trouble = on_trouble
        self._child: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._connected = asyncio.Event()
        self._is_closing = False
        self._next_id = 0
        self._spawned_s = -math.inf
        self._tasks: list[asyncio.Task[None]] = []
        self.freezer = "unknown"
        self.detail = ""
        self.controls: tuple[str, ...] = ()
        self.pid = 0

    async def open(self) -> None:
        """Reach or start a keeper, and keep in touch from now on.

        Raises:
            BackendError: none can be had; says why.
        """
        reader = await self._connect()
        self._connected.set()
        work = (self._stay_connected(reader), self._beat())
        self._tasks = [asyncio.create_task(each) for each in work]

    async def close(self, *, leave: bool) -> None:
        """Hang up; with ``leave`` a keeper that was started so ends as soon as no job needs it."""
        stays = True
        self._is_closing = True  # a keeper that leaves is not replaced
        if leave and not self._keeper.is_service and self._connected.is_set():
            with contextlib.suppress(TimeoutError):
                answer = await asyncio.wait_for(self._ask_once("leave", {}), _LEAVE_WITHIN_S)
                stays = answer is not None and "ok" in answer and answer["ok"]["jobs"] > 0
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()
        if self._child is not None:
            await self._see_off(self._child, stays=stays)

    async def ask(self, verb: str, **fields: object) -> Message:
        """Ask the keeper, and the next one if this one dies before it answers.

        Raises:
            TooLarge: the keeper would hang up on it, each time it is asked; so it is never sent.
            BackendError: the keeper says no, and why.
        """
        while True:
            await self._connected.wait()
            answer = await self._ask_once(verb, fields)
            if answer is not None:
                break
        if "error" in answer:
            raise BackendError(str(answer["error"]))
        ok: Message = answer["ok"]
        return ok

    async def _ask_once(self, verb: str, fields: dict[str, object]) -> Message | None:
        """The keeper's answer; None when the connection broke before it came."""
        self._next_id += 1
        request_id = self._next_id
        line = protocol.encode({"id": request_id, "verb": verb, **fields})
        if len(line) > protocol.LARGEST_LINE_BYTES:
            raise TooLarge(
                f"{verb}: {len(line)} bytes are more than the {protocol.LARGEST_LINE_BYTES} that "
                "can be passed on; put data into a file"
            )
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        assert self._writer is not None
        reach("link.asking", verb)
        self._writer.write(line)
        reach("link.asked", verb)
        try:
            told = await answer
        except ConnectionError:
            return None
        else:
            reach("link.told", verb)
            return told
        finally:
            self._answers.pop(request_id, None)

    # -- staying in touch ----------------------------------------------------------------------

    async def _stay_connected(self, reader: asyncio.StreamReader) -> None:
        while True:
            await self._read_answers(reader)
            self._hang_up()
            if self._is_closing:
                return
            log.warning("event=keeper_lost pid=%d", self.pid)
            reader = await self._reconnect()
            log.info("event=keeper_connected pid=%d freezer=%s", self.pid, self.freezer)
            self._connected.set()
            self._on_connected()

    async def _beat(self) -> None:
        """Let the keeper hear of us; one that has not for its grace time has thawed everything."""
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            await asyncio.sleep(max(self._keeper.grace_s / _BEATS, _POLL_S))
            await self._connected.wait()
            await self._ask_once("list", {"jobs": []})
            if loop.time() - before_s >= self._keeper.grace_s:
                log.warning("event=stood_still seconds=%.1f", loop.time() - before_s)
                self._on_connected()

    async def _reconnect(self) -> asyncio.StreamReader:
        told = False
        while True:
            try:
                reader = await self._connect()
            except BackendError as error:
                self._on_trouble(str(error))
                told = True
                await asyncio.sleep(_RETRY_S)
            else:
                if told:
                    self._on_trouble("")
                return reader

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        while True:
            try:
                data = await reader.read(1 << 16)
            except OSError:
                return
            if not data:
                return
            buffer += data
            for message in protocol.split_lines(buffer):
                answer = self._answers.get(message["id"])
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def _hang_up(self) -> None:
        self._connected.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the keeper is gone"))

    async def _connect(self) -> asyncio.StreamReader:
        """A connection to a keeper that has said hello."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _ANSWER_WITHIN_S
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._keeper.socket)
                if await self._greet(reader, self._writer):
                    return reader
                self._hang_up()
            except (FileNotFoundError, ConnectionError):
                self._start_if_none()
            except OSError as error:
                raise BackendError(f"{self._keeper.socket}: {error.strerror}") from error
            if loop.time() > deadline_s:
                where = f"its messages are in {self._keeper.state / 'keeper.log'}"
                if self._keeper.is_service:
                    where = "see 'journalctl -u iodaemon-keeper'"
                raise BackendError(f"the keeper does not answer on {self._keeper.socket}; {where}")
            await asyncio.sleep(_POLL_S)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """True once the keeper has said hello; False when it was just about to end."""
        hello = {
            "id": 0,
            "verb": "hello",
            "version": protocol.VERSION,
            "state": self._real_state,
        }
        writer.write(protocol.encode(hello))
        try:
            line = await asyncio.wait_for(reader.readline(), _ANSWER_WITHIN_S)
            if not line.endswith(b"\n"):
                return False
            answer = protocol.split_lines(bytearray(line))[0]
        except (TimeoutError, ValueError) as error:
            raise BackendError("the keeper does not answer; stop it and try again") from error
        if "error" in answer:
            raise BackendError(str(answer["error"]))
        reach("link.greeted")
        ok = answer["ok"]
        self.freezer, self.detail, self.pid = ok["freezer"], ok["detail"], ok["pid"]
        self.controls = tuple(ok.get("controls", ()))
        return True

    def _start_if_none(self) -> None:
        if self._keeper.is_service:
            return
        alive = self._child is not None and self._child.poll() is None
        now_s = asyncio.get_running_loop().time()
        if alive or now_s < self._spawned_s + _RETRY_S:
            return
        self._spawned_s = now_s
        reach("link.spawning")
        try:
            with open(self._keeper.state / "keeper.log", "ab") as messages:
                self._child = subprocess.Popen(
                    keeper_command(self._keeper),
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    start_new_session=True,
                    cwd="/",
                )
        except OSError as error:
            raise BackendError(f"the keeper cannot be started ({error.strerror})") from error
        reach("link.spawned")

    async def _see_off(self, child: subprocess.Popen[bytes], *, stays: bool) -> None:
        """Wait for a keeper without jobs to end; one that keeps jobs stays."""
        until_s = asyncio.get_running_loop().time() + _LEAVE_WITHIN_S
        while not stays and asyncio.get_running_loop().time() < until_s:
            if child.poll() is not None:
                return
            await asyncio.sleep(_POLL_S)
        if child.poll() is None:
            child.returncode = 0  # it stays on purpose; do not warn that it was not waited for
