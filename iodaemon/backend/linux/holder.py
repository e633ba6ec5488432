"""Locks on files, and which process holds one. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi")
"""struct flock of fcntl(2), with 64-bit offsets: type, whence, start, length, pid."""
_OPEN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def hold(path: str) -> int | None:
    """A descriptor that keeps the file locked for this process until it is closed.

    A forked child has the descriptor and not the lock. The process must not open the file again.

    Returns:
        None where there is no room for the file, or another process holds it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
    except OSError:
        return None
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def find_locker(path: str) -> int | None:
    """The other process that ``hold`` locks the file for; None: none does.

    Raises:
        OSError: this process has no descriptor left.
    """
    try:
        fd = os.open(path, os.O_RDONLY | _OPEN)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    try:
        return find_exclusive_holder(fd)
    except OSError:  # a filesystem without locks
        return None
    finally:
        os.close(fd)


def find_exclusive_holder(lock: int) -> int | None:
    """The process that holds an exclusive lock on this open file; None: no other process does.

    Do not call it in a process that holds a lock on the same file: closing any descriptor of the
    file gives that lock up (fcntl(2)).
    """
    asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    return pid if kind == fcntl.F_WRLCK and pid > 0 else None


def find_holder(path: str) -> int | None:
    """As ``find_exclusive_holder``, for who may not open the file (/proc/locks).

    Each line is ``1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`` (man proc_locks(5));
    who waits for a lock has ``->`` behind the number. A filesystem may give its device another
    number there than stat(2) does (btrfs), so that is not compared.

    Raises:
        OSError: the file cannot be looked at.
    """
    inode = os.stat(path).st_ino
    with open("/proc/locks") as file:
        for line in file:
            words = line.split()
            if len(words) < 6 or words[1] == "->" or words[3] != "WRITE":
                continue
            pid = int(words[4])
            if words[5].rpartition(":")[2] == str(inode) and pid > 0:
                return pid
    return None
