"""Processes of a job that are not in its cgroup, where neither its freeze nor its kill reaches.

A user's systemd has any process of that user moved into a unit of theirs (``systemd-run --user
--scope``, AttachProcessesToUnit of org.freedesktop.systemd1). They are below the shim all the
same, which is a subreaper. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from typing import Final

from iodaemon.backend.linux.process import children_of, descendants_of, find_living_state
from iodaemon.backend.linux.stopping import ENDED, tell

_GONE: Final = (errno.ENOENT, errno.ENODEV)
_CHUNK_BYTES: Final = 4096
"""The kernel's own buffer for these files; a read that leaves half of it empty was the last."""


def read_members(cgroup: str) -> list[int]:
    """``cgroup.procs``, in the order of entry; empty where the cgroup is gone."""
    return _read_numbers(f"{cgroup}/cgroup.procs")


def has_left(cgroup: str, shim_pid: int) -> bool:
    """Whether a process below the shim is not in this cgroup, which is frozen.

    One look, without a walk down the tree: at the children of each thread that is inside, none of
    which forks or waits for a child now, and of the shim at last, which gets those whose parent
    ended meanwhile. 6 us a thread. True also of one that has ended and is not waited for.
    """
    inside = set(read_members(cgroup))
    threads = _read_numbers(f"{cgroup}/cgroup.threads")
    return any(not inside.issuperset(_children_of_thread(tid)) for tid in [*threads, shim_pid])


def find_outside(cgroup: str, shim_pid: int) -> list[int]:
    """The living ones below the shim that are not in this cgroup, parents before children.

    One that is forked inside just now may be among them.
    """
    inside = set(read_members(cgroup))
    below = [pid for pid in descendants_of(shim_pid) if pid not in inside]
    return [pid for pid in below if find_living_state(pid) not in ENDED]


def let_go(cgroup: str, shim_pid: int) -> None:
    """SIGCONT to them, leaf first."""
    pids = list(descendants_of(shim_pid))
    inside = set(read_members(cgroup))
    outside = [pid for pid in reversed(pids) if pid not in inside]
    tell(outside, signal.SIGCONT, {shim_pid, *pids})


def _children_of_thread(tid: int) -> list[int]:
    """As ``children_of``, of this thread alone; the way there by its own number is as good."""
    try:
        return _read_numbers(f"/proc/{tid}/task/{tid}/children")
    except OSError:
        return children_of(tid)


def _read_numbers(path: str) -> list[int]:
    """The numbers in a file of the kernel's; none where it is gone."""
    data = b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise
    try:
        with contextlib.suppress(ProcessLookupError):
            while chunk := os.read(fd, _CHUNK_BYTES):
                data += chunk
                if len(chunk) < _CHUNK_BYTES // 2:
                    break
    except OSError as error:
        if error.errno not in _GONE:
            raise
    finally:
        os.close(fd)
    return [int(word) for word in data.split()]
