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

from iodaemon.backend.linux.process import (
    Identity,
    find_start_ticks,
    open_pidfd,
    read_boot_id,
)


def send(members: Callable[[], Iterable[int]], number: signal.Signals) -> int:
    """Send it to each process that is a member; to how many.

    A process counts that was there before the list is made once more, is in that list, and is the
    same when it is told. What was forked in between is not told: as with a signal to a group. 25 us
    a process.

    Args:
        members: lists the job's processes now.
        number: what to send.
    """
    before = {pid: find_start_ticks(pid) for pid in members()}
    count = 0
    for pid in dict.fromkeys(members()):
        ticks = before.get(pid)
        pidfd = None if ticks is None else open_pidfd(Identity(pid, ticks, read_boot_id()))
        if pidfd is None:
            continue
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
                count += 1
        finally:
            os.close(pidfd)
    return count
