"""Paced readers, one process each, pinned: told what to read, they tell what they got."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, Any, Final, Literal

import msgspec

from iodaemon.errors import RequestError
from iodaemon.kernels.paced import Order, Told

_LOOK_S: Final = 0.1
"""Between two looks whether it is to stop."""
_PATIENCE_S: Final = 60.0
"""A step that takes so much longer than it was to is none any more: the device hangs."""
_PRECEDENCE: Final = -10
"""nice(1) of the readers, where it may be had."""
_AHEAD_S: Final = 0.02
"""All begin so much later than they are told to, so that they begin together."""


class Crew:
    """Readers of one open file.

    Args:
        sockets: the CPUs of each.
        stop_if_asked: called now and then; it raises where the whole is to end.
    """

    def __init__(
        self,
        descriptor: int,
        sockets: Sequence[Sequence[int]],
        per_socket: int,
        stop_if_asked: Callable[[], None],
    ) -> None:
        self._stop_if_asked = stop_if_asked
        self._per_socket = per_socket
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for cpus in sockets:
                for _ in range(per_socket):
                    self._processes.append(_start(descriptor))
                    _place(self._processes[-1].pid, cpus)
            answers = self._hear(range(len(self)), 0.0)
        except BaseException:
            self.close()
            raise
        self.cold: Literal["direct", "dropped"] = answers[0]["cold"]

    def __len__(self) -> int:
        return len(self._processes)

    def on(self, sockets: int) -> range:
        """The readers on the first so many sockets."""
        return range(sockets * self._per_socket)

    def do(self, orders: Mapping[int, Order]) -> dict[int, Told]:
        """One step: readers begin together, those that are paced spread over one block's time.

        Raises:
            OSError: the file cannot be read or written.
            RequestError: a reader has died, or does not come to an end.
        """
        begin_s = time.monotonic() + _AHEAD_S
        for place, (number, order) in enumerate(orders.items()):
            phase_s = order.block / order.rate * place / len(orders) if order.rate else 0.0
            told = order._replace(at_s=begin_s + phase_s)
            line = _pipe(self._processes[number].stdin)
            with contextlib.suppress(BrokenPipeError):  # its answer will be missing
                line.write(msgspec.json.encode(told._asdict()) + b"\n")
                line.flush()
        longest_s = max(order.seconds or 0.0 for order in orders.values())
        return {number: _told(said) for number, said in self._hear(orders, longest_s).items()}

    def close(self) -> None:
        """End all of them; whoever does not at once is killed."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                _pipe(process.stdin).close()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            _pipe(process.stdout).close()
        self._processes = []

    def _hear(self, numbers: Collection[int], last_s: float) -> dict[int, Any]:
        until_s = time.monotonic() + last_s + _PATIENCE_S
        said: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for number in numbers:
                pipe = _pipe(self._processes[number].stdout)
                selector.register(pipe, selectors.EVENT_READ, number)
            while len(said) < len(numbers):
                self._stop_if_asked()
                if time.monotonic() > until_s:
                    raise RequestError("the device does not answer; see the kernel's log (dmesg)")
                for key, _ in selector.select(_LOOK_S):
                    line = os.read(key.fd, select.PIPE_BUF)  # written at once, so whole (pipe(7))
                    if not line:
                        raise RequestError(
                            "a reader ended before it was told to (killed? out of memory?); try "
                            "again"
                        )
                    said[key.data] = msgspec.json.decode(line)
        return said


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    """In a session of its own: a key pressed on the terminal is for the one who gives orders."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "iodaemon.kernels.paced", str(descriptor)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(descriptor,),
        start_new_session=True,
    )


def _place(pid: int, cpus: Sequence[int]) -> None:
    """On its socket, and before others there: it needs next to no CPU, but needs it at once.

    A reader that is gone is noticed when it does not answer; precedence is for root to give.
    """
    with contextlib.suppress(OSError):
        os.sched_setaffinity(pid, cpus)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _PRECEDENCE)


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None, "both ends are pipes"
    return end


def _told(said: Mapping[str, Any]) -> Told:
    if "error" in said:
        raise OSError(said["error"], said["text"], "the test file")
    return Told(**said)
