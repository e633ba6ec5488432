"""How many processes and threads one job may have at once: pids.max of its cgroup.

cgroup v2 ``pids`` (Linux 4.5; Documentation/admin-guide/cgroup-v2.rst, "PID"). At the limit the
job's own fork or clone fails with EAGAIN, and nobody else's. Standard library only.
"""

from __future__ import annotations

import os
from typing import Final

_OF_THE_MACHINE: Final = ("kernel/pid_max", "kernel/threads-max")
"""/proc/sys: numbers that there are, and tasks that the memory is thought to suffice for."""
_SHARE: Final = 4
"""One job has at most one in so many: three that fork without end leave some to a fourth."""
_PERCENT_OF_ALL: Final = 80
"""For all jobs together: the rest is the system's, so that root can still log in."""


def limit_processes(wanted: int, root: str = "/") -> int:
    """So many as are wanted, and no more than a quarter of what the machine has; 1 at least.

    Args:
        wanted: by the configuration.
        root: ``/``, or a directory that looks like it.
    """
    there = _count(root)
    return max(1, wanted if there is None else min(wanted, there // _SHARE))


def most_of_all(root: str = "/") -> int | None:
    """So many for all jobs together; None: what the machine has cannot be read.

    Args:
        root: ``/``, or a directory that looks like it.
    """
    there = _count(root)
    return None if there is None else max(1, there * _PERCENT_OF_ALL // 100)


def _count(root: str) -> int | None:
    """What the machine has."""
    numbers = [_find_number(f"{root}/proc/sys/{name}") for name in _OF_THE_MACHINE]
    return min((number for number in numbers if number), default=None)


def _find_number(path: str) -> int:
    """The number in the file; 0 where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        text = os.read(fd, 32).strip()
    finally:
        os.close(fd)
    return int(text) if text.isdigit() else 0
