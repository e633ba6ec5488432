"""Signals to the processes of a job, and to no later ones that got their numbers.

Between reading a list of numbers and kill(2) a process may end and its number be used again, by
whosoever's; root's signal would reach that one. A pidfd (Linux 5.3) stays with its process.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from typing import Final

_AT_ONCE: Final = 256
"""Descriptors that are open at one time; the list is made once more for so many processes."""


def send(members: Callable[[], Iterable[int]], number: signal.Signals) -> int:
    """Send it to each process that is a member; to how many.

    A process is told that is in a list made after a pidfd of that number was opened: should the
    pidfd be another's, that one has ended by then, and a dead process is told nothing. What was
    forked in between is not told: as with a signal to a group.

    Args:
        members: lists the job's processes now.
        number: what to send.
    """
    pids = list(dict.fromkeys(members()))
    return sum(
        _send_some(pids[first : first + _AT_ONCE], members, number)
        for first in range(0, len(pids), _AT_ONCE)
    )


def _send_some(
    pids: list[int], members: Callable[[], Iterable[int]], number: signal.Signals
) -> int:
    count = 0
    with contextlib.ExitStack() as stack:
        pidfds = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                pidfds[pid] = os.pidfd_open(pid)
                stack.callback(os.close, pidfds[pid])
        now = set(members())
        for pid, pidfd in pidfds.items():
            if pid in now:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, number)
                    count += 1
    return count
