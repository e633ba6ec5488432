"""HTTP over a unix socket with the standard library, its failures told as this project's errors."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from io import BufferedReader
from types import MappingProxyType
from typing import Final, NoReturn, TypeAlias, cast

from iodaemon.api.model import JsonValue
from iodaemon.api.shape import no_text
from iodaemon.errors import (
    ConfigError,
    Conflict,
    Gone,
    NoDaemon,
    NotFound,
    NotPermitted,
    RequestError,
    Unanswered,
)
from iodaemon.socket_path import why_too_long

Body: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]] | None
"""One JSON object, or one a line."""
_READ_BYTES: Final = 64 * 1024
_LONGEST_LINE: Final = 64 * 1024
_MOST_HEADERS: Final = 100
_SHOWN: Final = 40
_BAD_REQUEST: Final = 400
_INSTALLED: Final = "/etc/systemd/system/iodaemon.socket"
"""There where ``iod install`` has set up the service for all users."""


_QUEUE: Final = "'iod queue -a' shows the jobs"
_TOLD_BY: Final = {
    "/v1/drain": "'iod drain' shows whether the node is drained",
    "/v1/mode": "'iod mode' shows the mode",
    "/v1/config": "'iod config show --running' shows what is in force",
    "/v1/hints": "'iod hint show' shows what is known",
}
"""What shows whether a request to one of these was done."""


class Response:
    """One answer (RFC 9112): its head, and its body as it comes.

    Attributes:
        headers: by name, as sent.

    Raises:
        ConnectionError: the other end went away before the head was complete.
        ValueError: it does not speak HTTP.
    """

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        version, _, rest = self._line().partition(" ")
        code, _, self.reason = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"it begins with {version[:_SHOWN]!r}")
        self.status = int(code)
        self.headers: dict[str, str] = {}
        for _ in range(_MOST_HEADERS):
            if not (line := self._line()):
                break
            name, _, value = line.partition(":")
            self.headers[name] = value.strip()

    def read(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The body, each piece as soon as it is there.

        Raises:
            ConnectionError: the other end went away before the body was complete.
            ValueError: the lengths of its pieces make no sense.
        """
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while length := int(self._line().partition(";")[0], 16):
                yield from self._exactly(length)
                self._line()
            while self._line():  # trailers
                pass
        elif "content-length" in headers:
            yield from self._exactly(int(headers["content-length"]))
        else:
            while piece := self._file.read1(_READ_BYTES):
                yield piece

    def _exactly(self, left: int) -> Iterator[bytes]:
        while left > 0:
            piece = self._file.read1(min(left, _READ_BYTES))
            if not piece:
                raise ConnectionResetError
            left -= len(piece)
            yield piece

    def _line(self) -> str:
        line = self._file.readline(_LONGEST_LINE)
        if not line:
            raise ConnectionResetError
        if not line.endswith(b"\n"):
            raise ValueError(f"it begins with {line[:_SHOWN]!r}")
        return line.rstrip(b"\r\n").decode("latin-1")


class UnixConnection:
    """One HTTP connection to the daemon's socket.

    Not ``http.client``: it loads 25 ms of modules for mail and TLS, of the 60 that a command may
    take (docs/design.md).

    Args:
        timeout_s: longest silence of the daemon. None: any.

    Attributes:
        is_change: what was sent on it may change something.
        told_by: the command that shows whether it did.
    """

    def __init__(self, socket_path: str, timeout_s: float | None) -> None:
        self.socket_path = socket_path
        self.timeout_s = timeout_s
        self.is_change = False
        self.told_by = _QUEUE
        self.sock: socket.socket | None = None
        self._file: BufferedReader | None = None

    def connect(self) -> None:
        """Connect, waiting while the daemon has too many others to accept.

        Raises:
            NoDaemon: there is no socket, or nobody listens.
            NotPermitted: the socket may not be opened.
            ConfigError: the path is too long for a socket.
        """
        check_socket_path(self.socket_path)
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A socket with a timeout answers EAGAIN at once when the backlog is full; a blocking
            # one waits, as long as SO_SNDTIMEO allows.
            wait_s = 0 if self.timeout_s is None else max(1, int(self.timeout_s))
            unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", wait_s, 0))
            unix.settimeout(None)
            unix.connect(self.socket_path)
            unix.settimeout(self.timeout_s)
        except OSError as error:
            unix.close()
            _fail_to_connect(error, self.socket_path)
        self.sock, self._file = unix, unix.makefile("rb")

    def request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Send one request; connects where that is not done yet."""
        if self.sock is None:
            self.connect()
        assert self.sock is not None
        data = b"" if body is None else body
        sent = {"Host": "localhost", "Content-Length": str(len(data)), **headers}
        lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.items()), "", ""]
        self.sock.sendall("\r\n".join(lines).encode("latin-1") + data)

    def getresponse(self) -> Response:
        """The answer to what was sent last."""
        assert self._file is not None
        return Response(self._file)

    def close(self) -> None:
        """Hang up."""
        if self._file is not None and self.sock is not None:
            self._file.close()
            self.sock.close()
            self.sock = self._file = None


def check_socket_path(socket_path: str) -> None:
    """Refuse a path that no unix socket can have.

    Raises:
        ConfigError: it is too long, or holds a zero byte.
    """
    if problem := why_too_long(socket_path):
        raise ConfigError(f"{problem}; choose a shorter one")
    if "\0" in socket_path:
        raise ConfigError("socket path with a zero byte: give the path of the daemon's socket")


def _fail_to_connect(error: OSError, path: str) -> NoReturn:
    match error:
        case FileNotFoundError() | ConnectionRefusedError() | NotADirectoryError():
            raise NoDaemon(f"no daemon answers on {path}: {_start_one()}") from error
        case BlockingIOError():
            raise NoDaemon(f"the daemon on {path} accepts nobody: look at its log") from error
        case PermissionError():
            raise NotPermitted(
                f"not permitted to open {path}: ask its owner for access, or {_start_one()}"
            ) from error
        case _:
            raise NoDaemon(f"no daemon answers on {path} ({error}): {_start_one()}") from error


@contextmanager
def told_as_ours(connection: UnixConnection) -> Iterator[None]:
    """Turn what can go wrong on an open connection into this project's errors.

    Raises:
        NoDaemon: the daemon went away or keeps silent; ``Unanswered`` where it may have done it.
        RequestError: what answers does not speak this protocol.
    """
    try:
        yield
    except ConnectionError as error:
        cure = f"ask again, or {_start_one()}"
        raise _unanswered(connection, "went away before its answer was complete", cure) from error
    except TimeoutError as error:
        raise _unanswered(connection, "keeps silent", "look at its log, or ask again") from error
    except ValueError as error:
        raise not_ours(connection.socket_path, str(error) or type(error).__name__) from error


def _unanswered(connection: UnixConnection, what: str, cure: str) -> NoDaemon:
    text = f"the daemon on {connection.socket_path} {what}"
    if connection.is_change:
        return Unanswered(f"{text}: not known whether that was done; {connection.told_by}")
    return NoDaemon(f"{text}: {cure}")


def not_ours(path: str, why: str) -> RequestError:
    """The error for an answer that our daemon would not give."""
    return RequestError(
        f"what answers on {path} is not an iodaemon ({_one_line(why)}): check --api"
    )


def send(
    connection: UnixConnection,
    method: str,
    target: str,
    body: Body,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Send one request; the answer is read by ``receive`` or ``stream``."""
    data, more = None, {}
    if isinstance(body, Mapping):
        data, more = _encode(body), {"Content-Type": "application/json"}
    elif body is not None:
        data = b"\n".join(map(_encode, body))
        more = {"Content-Type": "application/x-ndjson"}
    is_question = target.startswith("/v1/wait") or target.endswith("dry_run=1")
    connection.is_change = method != "GET" and not is_question
    connection.told_by = next(
        (told for path, told in _TOLD_BY.items() if target.startswith(path)), _QUEUE
    )
    with told_as_ours(connection):
        connection.request(method, target, data, {**headers, **more})


def _encode(value: Mapping[str, object]) -> bytes:
    """As JSON. Raises RequestError: a text in it came from bytes that are no UTF-8."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise no_text(error) from error


def receive(connection: UnixConnection) -> JsonValue:
    """The JSON answer to the request sent on this connection, which is closed then.

    Raises:
        NotFound, NotPermitted, RequestError: as the daemon says.
        NoDaemon: it went away.
    """
    with closing(connection), told_as_ours(connection):
        response = connection.getresponse()
        data = response.read()
        if response.status >= _BAD_REQUEST:
            raise _refusal(response, data)
        return cast("JsonValue", json.loads(data))


def stream(
    connection: UnixConnection, on_head: Callable[[Mapping[str, str]], None] | None = None
) -> Iterator[bytes]:
    """The answer's bytes as they come; the connection is closed at the end.

    Args:
        connection: a request was sent on it.
        on_head: called with the answer's headers before its first bytes.

    Raises:
        NotFound, NotPermitted, RequestError: as the daemon says.
        NoDaemon: it went away in the middle.
    """
    with closing(connection), told_as_ours(connection):
        response = connection.getresponse()
        if response.status >= _BAD_REQUEST:
            raise _refusal(response, response.read())
        if on_head is not None:
            on_head(response.headers)
        yield from response.pieces()


def refusal(code: str, message: str) -> RequestError:
    """The error for a refusal with this code."""
    text = _one_line(message)
    match code:
        case "not_found":
            return NotFound(text)
        case "not_permitted":
            return NotPermitted(text)
        case "conflict":
            return Conflict(text)
        case "gone":
            return Gone(text)
        case _:
            return RequestError(text)


def _refusal(response: Response, data: bytes) -> RequestError:
    """The daemon's refusal as an error; anything without its usual body is quoted as it is."""
    code = _CODES.get(response.status, "")
    message = f"the daemon answers {response.status} {response.reason}: look at its log"
    error: dict[str, JsonValue] = {}
    try:
        error = json.loads(data)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        pass  # not the daemon's own words; the status says enough
    refused = refusal(code, message)
    if isinstance(error, dict) and isinstance(at := error.get("at"), list):
        refused.at = tuple(step if isinstance(step, int) else str(step) for step in at)
        refused.problem = _one_line(str(error.get("problem", "")))
    return refused


_CODES: Final = {
    403: "not_permitted",
    404: "not_found",
    409: "conflict",
    410: "gone",
}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _start_one() -> str:
    """What to do without a daemon."""
    if os.path.exists(_INSTALLED):
        # Not 'start': that makes no socket again whose directory was removed.
        return (
            "ask root for 'systemctl restart iodaemon.socket iodaemon' (jobs run on), or start "
            "your own with 'iod daemon'"
        )
    return "start one with 'iod daemon'"
