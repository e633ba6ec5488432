"""Who may still be in a job's directories, though nobody counts them among its processes.

Without cgroups a process that made itself a session of its own is out of sight once the job's shim
is dead. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence


def find_lingering(paths: Sequence[str], proc: str = "/proc") -> int | None:
    """A process that works in one of these directories, or was told of them; None: there is none.

    Seen is who has it in its environment as it began (``/proc/PID/environ``), as its working
    directory or among its open files (man proc(5)), where those may be read.

    Args:
        paths: of the directories.
        proc: the file system.
    """
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        if pid != os.getpid() and _knows(f"{proc}/{pid}", paths):
            return pid
    return None


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
