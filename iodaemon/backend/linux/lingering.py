"""Who may still be in a job's directories, though nobody counts them among its processes.

Without cgroups a process that made itself a session of its own is out of sight once the job's shim
is dead; and others of its user may open what lies there. Children look, which are killed where a
process does not answer (``process``). Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from iodaemon.backend.linux.process import in_time, is_executing, read_status

_BLOCK_BYTES: Final = 512
"""Of ``st_blocks``, whatever the file system's are (stat(2))."""
_AT_ONCE: Final = 200
"""Processes that one child looks at."""
_WITHIN_S: Final = 2.0
"""For those: 0.1 ms each, measured. A process that does not answer takes up all of it."""
_MOST_SILENT: Final = 4
"""Of those; then the others count as such as well."""
_EXECUTES_WITHIN_S: Final = 1.0
"""An execve(2) that does not hang takes milliseconds, more where it waits for a busy disk."""
_LOOK_S: Final = 0.01
_DELETED: Final = " (deleted)"
"""Ends the link to an open file that has no name any more (man proc(5))."""


class Held(NamedTuple):
    """Deleted files that are still open.

    Attributes:
        pid: who has some of them.
        size_bytes: what all of them take.
    """

    pid: int
    size_bytes: int


def find_held(paths: Sequence[str], uids: Container[int], proc: str = "/proc") -> Held | None:
    """What lay in these directories, has no name left, and is still open; None: nothing.

    A process that was never the job's may have opened it, as its user: ``tail -f`` in a login. What
    is mapped and not open is not seen. 50 us a process of these users.

    Args:
        paths: of the directories.
        uids: processes of others are not looked at; nor is one that does not answer.
        proc: the file system.
    """

    def look(pid: int) -> list[Any]:
        if os.stat(f"{proc}/{pid}").st_uid not in uids:
            return []
        return list(_deleted(f"{proc}/{pid}/fd", paths))

    sizes: dict[tuple[int, int], int] = {}
    holder = 0
    for pid, found in _look_at_all(look, proc):
        for (device, inode), size_bytes in found or ():
            sizes[device, inode] = size_bytes
            holder = holder or pid
    return Held(holder, sum(sizes.values())) if sizes else None


def _deleted(files: str, paths: Sequence[str]) -> Iterator[tuple[tuple[int, int], int]]:
    """Those of one process: device and inode, and what it takes."""
    for name in os.listdir(files):
        with contextlib.suppress(OSError):
            target = os.readlink(f"{files}/{name}")
            if target.endswith(_DELETED) and any(target.startswith(f"{p}/") for p in paths):
                found = os.stat(f"{files}/{name}")
                if found.st_nlink == 0:
                    yield (found.st_dev, found.st_ino), found.st_blocks * _BLOCK_BYTES


class Lingering(NamedTuple):
    """A process that is in a directory, or may be.

    Attributes:
        pid: its number.
        is_silent: it does not answer, so that nobody knows.
    """

    pid: int
    is_silent: bool


def find_lingering(
    paths: Sequence[str], proc: str = "/proc", *, uid: int | None = None
) -> Lingering | None:
    """A process that works in one of these directories, or was told of them; None: there is none.

    Seen is who has it in its environment as it began (``/proc/PID/environ``), as its working
    directory or among its open files (man proc(5)), where those may be read.

    Args:
        paths: of the directories.
        proc: the file system.
        uid: whose they are. One of this user's or of root's that does not answer may be there,
            unless a stranger made it.
    """
    silent, strangers = list[int](), set[int]()
    for pid, knows in _look_at_all(lambda pid: _knows(f"{proc}/{pid}", paths), proc):
        if knows:
            return Lingering(pid, is_silent=False)
        if knows is None:
            silent.append(pid)
        else:
            strangers.add(pid)
    strangers -= {1, os.getpid(), *_ancestors(os.getpid())}  # a dead shim's orphans are theirs
    for pid in silent:
        if _is_of(pid, uid) and not any(each in strangers for each in _ancestors(pid)):
            return Lingering(pid, is_silent=True)
    return None


def _is_of(pid: int, uid: int | None) -> bool:
    status = read_status(pid)
    return status is not None and status.uid in (uid, 0)


def _ancestors(pid: int) -> Iterator[int]:
    """Its parent, the parent of that, and so on, without the first process of all."""
    while (status := read_status(pid)) is not None and status.parent > 1:
        pid = status.parent
        yield pid


def _look_at_all(look: Callable[[int], Any], proc: str) -> Iterator[tuple[int, Any]]:
    """What is seen of each process; None of one that does not answer."""
    pids = _processes(proc)
    silent = _hanging(pids) if proc == "/proc" else []
    left = [pid for pid in pids if pid not in silent]
    count = 0
    while left and count < _MOST_SILENT:
        now = left[:_AT_ONCE]
        seen, is_done = _look_in_time(look, now)
        yield from seen
        left = left[len(seen) :]
        if not is_done and left:
            count += 1
            silent.append(left.pop(0))
    yield from ((pid, None) for pid in [*silent, *left])


def _hanging(pids: Iterable[int]) -> list[int]:
    """Those that stay inside execve(2): on a busy machine some process is always there."""
    until_s = time.monotonic() + _EXECUTES_WITHIN_S
    executing = [pid for pid in pids if is_executing(pid)]
    while executing and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
        executing = [pid for pid in executing if is_executing(pid)]
    return executing


def _look_in_time(
    look: Callable[[int], Any], pids: list[int]
) -> tuple[list[tuple[int, Any]], bool]:
    """What is seen of them, in their order, until one does not answer; whether all did."""

    def work(write: int) -> None:
        for pid in pids:
            found = []
            with contextlib.suppress(OSError):
                found = look(pid)
            _write(write, json.dumps(found).encode() + b"\n")

    data, is_done = in_time(work, _WITHIN_S)
    lines = [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
    return [(pid, json.loads(line)) for pid, line in zip(pids, lines, strict=False)], is_done


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _processes(proc: str) -> list[int]:
    """All but our own, by number."""
    pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    return [pid for pid in pids if pid != os.getpid()]


def _knows(process: str, paths: Sequence[str]) -> bool:
    with contextlib.suppress(OSError):
        with open(f"{process}/environ", "rb") as file:
            environment = file.read()
        if any(os.fsencode(path) in environment for path in paths):
            return True
    links = [f"{process}/cwd"]
    with contextlib.suppress(OSError):
        links += [f"{process}/fd/{name}" for name in os.listdir(f"{process}/fd")]
    for link in links:
        with contextlib.suppress(OSError):
            target = f"{os.readlink(link)}/"
            if any(target.startswith(f"{path}/") for path in paths):
                return True
    return False
