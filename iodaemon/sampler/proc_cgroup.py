"""/proc/PID/cgroup: the cgroup of a process in each hierarchy.

Linux 2.6.24 and newer; the line of cgroup v2 (``0::PATH``) since Linux 4.5. man cgroups(7),
Documentation/admin-guide/cgroup-v2.rst. Paths are as seen from the reader's cgroup namespace: one
outside of it begins with ``/..``.
"""

from __future__ import annotations

import os
from pathlib import Path

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines


def parse_proc_cgroup(text: bytes | str) -> dict[str, str]:
    """The path by controller (``memory``), by name (``name=systemd``), or of v2 under ``""``.

    Raises:
        NoData: no whole line in it.
    """
    paths: dict[str, str] = {}
    for line in whole_lines(as_bytes(text)):
        words = os.fsdecode(line).split(":", 2)
        if len(words) == 3 and words[2].startswith("/"):
            for controller in words[1].split(","):
                paths[controller] = words[2]
    if not paths:
        raise NoData("proc_cgroup: no line ID:CONTROLLERS:PATH")
    return paths


class Sampler:
    """Reads one process's /proc/PID/cgroup.

    Args:
        root: ``/``, or a directory that looks like it.
        pid: the process; None: this one.
    """

    def __init__(self, root: Path, *, pid: int | None = None) -> None:
        self._file = KeptFile(root / "proc" / ("self" if pid is None else str(pid)) / "cgroup")

    def read(self) -> dict[str, str]:
        """The paths now.

        Raises:
            NoData: the process is gone.
        """
        return parse_proc_cgroup(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
