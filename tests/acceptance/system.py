"""A private daemon as a user sees it: the command line, HTTP on its socket, and processes.

These tests know what a user knows: they say the same of any way to build the daemon.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from harness import PATIENCE_S, Server, until

_T = TypeVar("_T")


class Ended:
    """A command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class System(Server):
    """One daemon, stopped and started again on its directories; a context manager."""

    def __init__(self, means: str, **settings: Any) -> None:
        super().__init__(means, **{"cancel_grace": "20 s", **settings})
        self._threads = ThreadPoolExecutor(4)

    def configure(self, before: str, after: str) -> None:
        """Change a line of the configuration file."""
        text = self.config.read_text()
        assert before in text
        self.config.write_text(text.replace(before, after))

    def later(self, call: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Make a call that waits, in a thread."""
        return self._threads.submit(call, *arguments)

    # -- the command line ------------------------------------------------------------------------

    def words(self, *words: str) -> list[str]:
        """What ``iod`` with these words is."""
        return [sys.executable, "-m", "iodaemon.cli", "--api", self.client.socket_path, *words]

    def iod(self, *words: str) -> Ended:
        """Call the command line, in the jobs' directory."""
        return self._call(self.words(*words))

    def iod_alone(self, *words: str) -> Ended:
        """Likewise, and have it find the daemon itself."""
        return self._call([sys.executable, "-m", "iodaemon.cli", *words])

    def _call(self, command: list[str]) -> Ended:
        told = subprocess.run(
            command,
            env=self.environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        return Ended(told.returncode, told.stdout, told.stderr)

    def says(self, *words: str) -> str:
        """What the command line printed, of a call that succeeded."""
        ended = self.iod(*words)
        assert ended.code == 0, ended.err
        return ended.out

    def await_waiting(self) -> None:
        """Wait until a command line is connected to the daemon, and so has begun to wait."""
        end = f" {self.client.socket_path}\n"

        def look() -> bool:
            return Path("/proc/net/unix").read_text().count(end) > 1  # one of them listens

        until(look, "a command that waits")

    # -- requests --------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """One request on the socket, made once: status and answer.

        Raises:
            OSError: no daemon answers.
        """
        with contextlib.closing(http.client.HTTPConnection("localhost")) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(2 * PATIENCE_S)
            connection.sock.connect(self.client.socket_path)
            data = None if body is None else json.dumps(body).encode()
            try:
                connection.request(method, path, data, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                return answer.status, answer.read()
            except http.client.HTTPException as error:
                raise ConnectionResetError(str(error)) from error

    def get(self, path: str) -> Any:
        """The answer to a GET that succeeds."""
        status, answer = self.ask("GET", path)
        assert status < 300, answer
        return json.loads(answer)

    def events(self) -> list[dict[str, Any]]:
        """All that has happened: what is told is durable."""
        _, answer = self.ask("GET", "/v1/events?since=0&follow=0")
        return [json.loads(line) for line in answer.splitlines()]

    # -- jobs ------------------------------------------------------------------------------------

    def scripts(self, *texts: str) -> list[int]:
        """Jobs that run these texts in a shell, in one request that is made once."""
        commands = [["/bin/sh", "-c", text] for text in texts]
        body = {
            "jobs": [{"command": command, "cwd": str(self.place)} for command in commands],
            "environment": self.environment,
        }
        status, answer = self.ask("POST", "/v1/jobs", body)
        assert status < 300, answer
        ids: list[int] = json.loads(answer)["ids"]
        return ids

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        self._threads.shutdown(wait=False)
