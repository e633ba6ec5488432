"""Who holds the lock of a file, without touching it. Standard library only."""

from __future__ import annotations

import os


def find_holder(path: str) -> int | None:
    """The process that holds an exclusive lock on the file (/proc/locks); None: nobody is known.

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
