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
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.condition import find_full_or_read_only, why_silent
from iodaemon.backend.linux.keeper_command import KeeperSpec, keeper_command
from iodaemon.backend.linux.protocol import Message
from iodaemon.backend.linux.pulse import Pulse
from iodaemon.errors import BackendError, TooLarge, Unsupported
from iodaemon.fault import reach

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S: Final = 10.0
"""A keeper that has been started listens after about 0.05 s; more than this is a failure."""
_LEAVE_WITHIN_S: Final = 2.0
"""A keeper without jobs ends in milliseconds."""
_RETRY_S: Final = 1.0
_BEATS: Final = 3
"""So often in the keeper's grace time it hears of the daemon, though nothing be asked."""
_MOST_BETWEEN_BEATS_S: Final = 5.0
_TICK_S: Final = 1.0
"""Between beats while something that was asked has no answer yet."""
_LOOK_S: Final = 1.5
_SILENT_AFTER_LOOKS: Final = 2
"""A beat is answered in less than a millisecond. Two looks, because a daemon that stood still
itself finds the first one over at once."""
_BUSY_LOOKS: Final = 20
"""A keeper that does something is not called silent before: a thousand starts take it 4 s."""
_POLL_S: Final = 0.005
_PEER: Final = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid; of a listening socket those of who listens."""
_HAS_CODES: Final = 2
"""The protocol's first version in which a refusal may have a code."""
_NO_VERB_BEFORE_CODES: Final = "has no verb"
"""In the text of a keeper of version 1."""


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
            on_trouble: told why no keeper can be had or heard, at once and for as long as that is
                so, and ``""`` once one answers again.
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
        self.problem = ""
        """Why nothing that is asked is answered now; empty: it is."""
        self.version = protocol.OLDEST_VERSION

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
        is_heard = self._connected.is_set() and not self.problem
        if leave and not self._keeper.is_service and is_heard:
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
            Unsupported: this keeper, of another version, has no such verb.
            BackendError: the keeper says no, and why.
        """
        while True:
            await self._connected.wait()
            answer = await self._ask_once(verb, fields)
            if answer is not None:
                break
        if "error" in answer:
            kind = Unsupported if self._is_unsupported(answer) else BackendError
            raise kind(str(answer["error"]))
        ok: Message = answer["ok"]
        return ok

    def _is_unsupported(self, answer: Message) -> bool:
        if self.version >= _HAS_CODES:
            return answer.get("code") == protocol.NO_VERB
        return _NO_VERB_BEFORE_CODES in str(answer["error"])

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
            between_s = min(self._keeper.grace_s / _BEATS, _MOST_BETWEEN_BEATS_S)
            until_s = before_s + max(between_s, _POLL_S)
            while (left_s := until_s - loop.time()) > 0:
                await asyncio.sleep(min(left_s, _TICK_S))
                if self._answers:
                    break
            await self._connected.wait()
            was_silent = await self._is_silent_at_first()
            if was_silent:
                log.info("event=keeper_answers pid=%d", self.pid)
            elif loop.time() - before_s >= self._keeper.grace_s:
                log.warning("event=stood_still seconds=%.1f", loop.time() - before_s)
            else:
                continue
            self._on_connected()

    async def _is_silent_at_first(self) -> bool:
        """Ask what is answered at once, and wait for the answer; True when that took too long."""
        asking = asyncio.ensure_future(self._ask_once("list", {"jobs": []}))
        pulse: Pulse | None = None
        looks, count, is_silent = 0, None, False
        try:
            while not (await asyncio.wait({asking}, timeout=_LOOK_S))[0]:
                looks, before = looks + 1, count
                pulse = pulse or Pulse(self.pid)
                count = pulse.count()
                is_still = looks >= _SILENT_AFTER_LOOKS and count == before
                if is_silent or is_still or looks >= _BUSY_LOOKS:
                    is_silent = True
                    self._tell_silence()
        finally:
            asking.cancel()
            if pulse is not None:
                pulse.close()
        if asking.result() is None or not is_silent:
            return False  # it died meanwhile, which is another trouble, or was in time
        self._tell_trouble("")
        return True

    def _tell_silence(self) -> None:
        problem = self.why_silent()
        if not self.problem:
            log.error('event=keeper_silent pid=%d problem="%s"', self.pid, problem)
        self._tell_trouble(problem)

    def why_silent(self) -> str:
        """Why the keeper does not answer, what to do, and what that costs meanwhile."""
        return (
            f"{why_silent(self.pid)}; meanwhile no job starts, is suspended or ended, and "
            f"suspended ones run on after {self._keeper.grace_s:g} s"
        )

    def _tell_trouble(self, problem: str) -> None:
        self.problem = problem
        self._on_trouble(problem)

    async def _reconnect(self) -> asyncio.StreamReader:
        told = False
        while True:
            try:
                reader = await self._connect()
            except BackendError as error:
                self._tell_trouble(str(error))
                told = True
                await asyncio.sleep(_RETRY_S)
            else:
                if told or self.problem:
                    self._tell_trouble("")
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
                raise BackendError(self._why_unreachable())
            await asyncio.sleep(_POLL_S)

    def _why_unreachable(self) -> str:
        fact = f"the keeper does not answer on {self._keeper.socket}"
        if self._keeper.is_service:
            return f"{fact}; see 'journalctl -u iodaemon-keeper'"
        if (problem := find_full_or_read_only(self._keeper.state)) is not None:
            return f"{fact}, and {problem}"  # it could write no messages
        return f"{fact}; its messages are in {self._keeper.state / 'keeper.log'}"

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """True once the keeper has said hello; False when it was just about to end."""
        hello = {
            "id": 0,
            "verb": "hello",
            "version": protocol.OLDEST_VERSION,
            "newest": protocol.VERSION,
            "state": self._real_state,
        }
        writer.write(protocol.encode(hello))
        try:
            line = await asyncio.wait_for(reader.readline(), _ANSWER_WITHIN_S)
            if not line.endswith(b"\n"):
                return False
            answer = protocol.split_lines(bytearray(line))[0]
        except (TimeoutError, ValueError) as error:
            raise BackendError(self._why_mute(writer)) from error
        if "error" in answer:
            raise BackendError(str(answer["error"]))
        reach("link.greeted")
        ok = answer["ok"]
        self.freezer, self.detail, self.pid = ok["freezer"], ok["detail"], ok["pid"]
        self.controls = tuple(ok.get("controls", ()))
        self.version = int(ok.get("version", protocol.OLDEST_VERSION))
        return True

    def _why_mute(self, writer: asyncio.StreamWriter) -> str:
        """As ``why_silent``, of a keeper that took the connection and said nothing yet."""
        line = writer.get_extra_info("socket")
        peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self.pid = _PEER.unpack(peer)[0]
        return self.why_silent()

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
            with _open_messages(self._keeper.state / "keeper.log") as messages:
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


def _open_messages(path: Path) -> BinaryIO:
    """The keeper's log, or nowhere: a keeper that cannot be heard is better than none."""
    try:
        return open(path, "ab")
    except OSError as error:
        log.warning("event=no_keeper_log path=%s problem=%s", path, error.strerror)
        return open(os.devnull, "ab")
