"""What is wrong with a request, in words and as a path: the answer of every refusal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from aiohttp import web

from iodaemon.errors import (
    Conflict,
    Gone,
    IodaemonError,
    JournalError,
    NotFound,
    NotPermitted,
    RequestError,
)
from iodaemon.misfit import explain
from iodaemon.text import printable

Path = tuple[str | int, ...]
_LONGEST_MESSAGE: Final = 490
"""Characters; a longer message quotes what somebody sent."""
STATUSES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "refused: the message says what to do",
        403: "not_permitted",
        404: "not_found",
        405: "refused: the path has other methods, which the header Allow names",
        409: "conflict: the job's state does not allow it, or a key has been used before",
        410: "gone: not all events after that one are in the journal",
        413: "refused: the body is too large",
        503: "unavailable: for example, the journal's disk is full",
    }
)
"""What a refusal with this status is, for people."""
_KINDS: Final[tuple[tuple[type[IodaemonError], int, str], ...]] = (
    (NotPermitted, 403, "not_permitted"),
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (Gone, 410, "gone"),
    (JournalError, 503, "unavailable"),
    (RequestError, 400, "refused"),
)


class Misstated(RequestError):
    """Something in a body is wrong."""

    def __init__(self, message: str, problem: str, at: Path) -> None:
        super().__init__(message)
        self.problem = problem
        self.at = at


def misstated(problem: str, *at: str) -> Misstated:
    return Misstated(f"{at[-1]} {problem}", problem, at)


def of_job(error: RequestError, place: int, count: int) -> Misstated:
    """The error, as that of one of so many jobs; the first is 0."""
    which = "" if count == 1 else f"job {place + 1} of {count}: "
    at, problem = (error.at, error.problem) if isinstance(error, Misstated) else ((), str(error))
    return Misstated(f"{which}{error}", problem, ("jobs", place, *at))


def find_status(error: IodaemonError) -> int:
    return next(status for kind, status, _ in _KINDS if isinstance(error, kind))


def error_text(error: IodaemonError) -> dict[str, Any]:
    """The error as the API has it, its message in one line that gives no orders to a terminal."""
    code = next(code for kind, _, code in _KINDS if isinstance(error, kind))
    told: dict[str, Any] = refused(str(error), code)
    if isinstance(error, Misstated):
        told |= {"at": error.at, "problem": _one_line(error.problem)}
    return told


def error_answer(
    status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> web.Response:
    body = json.dumps({"error": error})
    return web.Response(text=body, status=status, content_type="application/json", headers=headers)


def refused(message: str, code: str = "refused") -> dict[str, str]:
    """An error that no exception of ours stands for."""
    return {"code": code, "message": _one_line(message)}


def _one_line(message: str) -> str:
    text = printable(" ".join(message.split()))
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..."


@contextlib.contextmanager
def refuse_malformed(what: str, which: str = "", at: Path = ()) -> Iterator[None]:
    """Turn what msgspec says of a document into what its sender can do.

    Args:
        what: it is, such as ``request``.
        which: goes before what is said of a value.
        at: where the document stands in the whole body.

    Raises:
        RequestError: instead of any error in decoding.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        raise _say(str(error), f"the {what}", which, at) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"the {what} is no JSON: {error}"
        raise Misstated(which + problem, problem, at) from error


def _say(text: str, document: str, which: str, at: Path) -> Misstated:
    found = explain(text, document)
    return Misstated(which + found.message, found.problem, (*at, *found.at))
