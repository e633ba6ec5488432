"""For a job's own program: tell iodaemon of an I/O phase, and wait for the turn to do it.

    from iodaemon import phase

    phase.io(expect="2G")       # waits until it is this job's turn
    write_results()
    phase.done()                # somebody else's turn

    with phase.turn():          # the same
        read_input()

Nothing here stops a program for good. Outside a job nothing is waited for; where no daemon answers
for ``patience_s`` the program goes on without a turn and says so on standard error. A client that
is killed waits no longer. A daemon that is restarted meanwhile is asked again.

Standard library alone, and this file alone: it may be copied to wherever a job finds it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping

PATIENCE_S = 30.0
"""How long a daemon that does not answer is looked for: a restart with a long journal fits."""
GIVE_BACK_S = 5.0
"""The same for giving a turn back: nobody has to wait for that."""
_SILENCE_S = 20.0
"""A daemon that is alive says something every 5 s."""
_RETRY_S = 0.25


class NoTurn(Exception):
    """There is no turn to be had.

    Attributes:
        why: ``outside`` (no job), ``daemon`` (none answers), ``refused``, or ``timeout``.
    """

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why


def io(
    expect: float | str | None = None,
    *,
    timeout_s: float | None = None,
    patience_s: float = PATIENCE_S,
) -> bool:
    """Wait for the turn to do I/O; True when it is this job's.

    Args:
        expect: how much will be read and written, in bytes or as ``"2G"``. None: not known.
        timeout_s: go on without a turn after so long. None: wait for it.
        patience_s: go on without one when no daemon has answered for so long.

    Returns:
        False outside a job, and where there was none to be had, with a line on standard error.

    Raises:
        ValueError: ``expect`` is no size.
    """
    return _without_fail(lambda: ask_turn(expect, timeout_s=timeout_s, patience_s=patience_s))


def done(*, patience_s: float = GIVE_BACK_S) -> bool:
    """Give the turn back; True when the daemon knows. Without a turn it does nothing.

    What cannot be given back, because no daemon answers for ``patience_s``, is taken back when the
    job does no I/O any more.
    """
    return _without_fail(lambda: give_back(patience_s=patience_s))


@contextlib.contextmanager
def turn(expect: float | str | None = None, *, timeout_s: float | None = None) -> Iterator[bool]:
    """The turn for as long as the block lasts: ``io`` before it, ``done`` after it."""
    had = io(expect, timeout_s=timeout_s)
    try:
        yield had
    finally:
        if had:
            done()


def ask_turn(
    expect: float | str | None = None,
    *,
    timeout_s: float | None = None,
    patience_s: float = PATIENCE_S,
    api: str | None = None,
) -> None:
    """Like ``io``; tells a failure by raising.

    Args:
        expect: as for ``io``.
        timeout_s: likewise.
        patience_s: likewise.
        api: the daemon's socket. None: the one that started this job.

    Raises:
        NoTurn: there is none to be had.
        ValueError: ``expect`` is no size.
    """
    body = {"phase": "io", "expect_bytes": _bytes(expect)}
    _ask(body, timeout_s=timeout_s, patience_s=patience_s, api=api)


def give_back(*, patience_s: float = GIVE_BACK_S, api: str | None = None) -> None:
    """Like ``done``; tells a failure by raising.

    Raises:
        NoTurn: no daemon answers, it refuses, or this is no job.
    """
    _ask({"phase": "done"}, timeout_s=None, patience_s=patience_s, api=api)


def _without_fail(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except NoTurn as error:
        if error.why != "outside":
            print(f"iodaemon: {error}; going on without a turn", file=sys.stderr)
        return False
    return True


def _bytes(expect: float | str | None) -> int | None:
    if expect is None or not isinstance(expect, str):
        if expect is not None and not 0 <= expect < 2**63:
            raise ValueError(f"expect is {expect}; write a number of bytes from 0 on")
        return None if expect is None else int(expect)
    from iodaemon.units import parse_bytes

    try:
        return parse_bytes(expect)
    except Exception as error:
        raise ValueError(f"expect: {error}") from error


def _ask(
    body: Mapping[str, object],
    *,
    timeout_s: float | None,
    patience_s: float,
    api: str | None,
    job: str | None = None,
) -> None:
    """Ask until there is an answer; a daemon that went away is asked again."""
    job, path = job or os.environ.get("IOD_JOB_ID"), api or os.environ.get("IOD_API_SOCKET")
    if not job or not path:
        raise NoTurn("outside", "not in a job of iodaemon: nothing to wait for")
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    heard_s = time.monotonic()
    while True:
        try:
            if _ask_once(path, f"/v1/jobs/{job}/phase", body, until_s):
                return
            heard_s = time.monotonic()  # it answered, but is about to stop
        except (OSError, ValueError) as error:
            if until_s is not None and time.monotonic() >= until_s:
                raise NoTurn("timeout", f"no turn within {timeout_s:g} s") from error
            if isinstance(error, _Silence):
                heard_s = max(heard_s, error.heard_s)
            if time.monotonic() - heard_s >= patience_s:
                text = f"no daemon has answered on {path} for {patience_s:g} s"
                raise NoTurn("daemon", text) from error
        time.sleep(_RETRY_S)


class _Silence(OSError):
    """The daemon said nothing, or went away, after it was heard last."""

    def __init__(self, heard_s: float) -> None:
        super().__init__("the daemon keeps silent")
        self.heard_s = heard_s


def _ask_once(path: str, target: str, body: Mapping[str, object], until_s: float | None) -> bool:
    """One request; True when it was answered for good, False when it is to be asked again."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        connection = http.client.HTTPConnection("localhost")
        heard = [-float("inf")]
        try:
            unix.settimeout(_left_s(until_s))
            unix.connect(path)
            connection.sock = unix
            headers = {"Content-Type": "application/json"}
            connection.request("POST", target, json.dumps(body), headers)
            response = connection.getresponse()
            data = b"".join(_pieces(response, unix, until_s, heard))
        except PermissionError as error:
            raise NoTurn("refused", f"not permitted to open {path}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _Silence(heard[0]) from error
    return _read_answer(response.status, data, body)


def _pieces(
    response: http.client.HTTPResponse,
    unix: socket.socket,
    until_s: float | None,
    heard: list[float],
) -> Iterator[bytes]:
    """The body as it comes; ``heard`` is told when."""
    while True:
        heard[0] = time.monotonic()
        unix.settimeout(_left_s(until_s))
        piece = response.read1()
        if not piece:
            return
        yield piece


def _left_s(until_s: float | None) -> float:
    return _SILENCE_S if until_s is None else max(1e-3, min(_SILENCE_S, until_s - time.monotonic()))


def _read_answer(status: int, data: bytes, body: Mapping[str, object]) -> bool:
    answer = json.loads(data)
    try:
        if status >= http.client.BAD_REQUEST:
            raise NoTurn("refused", str(answer["error"]["message"]))
        return body["phase"] == "done" or bool(answer["granted"])
    except (KeyError, TypeError) as error:
        raise ValueError("no answer of iodaemon") from error
