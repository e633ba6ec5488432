"""Calls that may wait for a disk for ever, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def in_thread(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
    """Call the function in a new thread.

    Nobody waits for that thread: this program ends while a disk does not answer as well.

    Returns:
        Its result to come, or what it raises, whatever that is. It cannot be cancelled.
    """
    result: Future[_T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - it is the caller's, whatever it is
            result.set_exception(error)

    try:
        threading.Thread(target=run, name="disk", daemon=True).start()
    except RuntimeError as error:  # no thread can be had
        result.set_exception(error)
    return result
