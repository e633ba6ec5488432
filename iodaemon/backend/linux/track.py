"""What the backend holds of one running job: who it is, and descriptors that cannot be mistaken."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

from iodaemon.backend.linux.outside import read_members
from iodaemon.backend.linux.pidfd import find_exit
from iodaemon.backend.linux.process import (
    Identity,
    descendants_of,
    find_state,
    identify,
    is_alive,
    open_pidfd,
    survivors_of,
)
from iodaemon.backend.linux.protocol import Message
from iodaemon.core.job import Exit, JobId

_LOOK_S: Final = 0.1
"""Between looks at a job whose shim is gone and who cannot be waited for."""
_MOST_LOOKS: Final = 50
"""At a process that has ended and that its new parent does not wait for."""


class Track:
    """One attempt of one job, alive when this was made."""

    def __init__(self, job_id: JobId, attempt: int, shim: Message) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.shim = Identity(shim["pid"], shim["start_ticks"], shim["boot_id"])
        self.cgroup: str | None = shim["cgroup"]
        read, written, operations = shim["baseline"]
        self.baseline: tuple[int, int, int] = (read, written, operations)
        self.is_bereaved = False
        self.shim_fd = open_pidfd(self.shim)
        self.main = self._find_main(shim)
        self.main_fd = None if self.main is None else open_pidfd(self.main)

    def _find_main(self, shim: Message) -> Identity | None:
        if shim["main_pid"] is None or shim["main_start_ticks"] is None:
            return None
        return Identity(shim["main_pid"], shim["main_start_ticks"], shim["boot_id"])

    def pids(self) -> list[int]:
        """The job's processes, parents before children.

        Those that left its cgroup are among them only where nobody is left in it.
        """
        if self.cgroup is not None:
            with contextlib.suppress(OSError):
                if inside := read_members(self.cgroup):
                    return inside
        if not self.is_bereaved:
            return list(descendants_of(self.shim.pid))
        return [] if self.main is None else survivors_of(self.main)

    async def gone(self) -> Exit:
        """Return once no process of the job is left: how its first one ended, if anybody knows."""
        while self.pids() or (self.main is not None and is_alive(self.main)):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if self.main is None or self.main_fd is None:
            return Exit()
        # The kernel tells once the process is reaped, which whoever inherited it does soon.
        for _ in range(_MOST_LOOKS):
            if identify(self.main.pid) != self.main:
                break
            await asyncio.sleep(_LOOK_S)
        return find_exit(self.main_fd)

    def describe_left(self) -> str:
        """Which processes are left after a kill, and in what state."""
        pids = self.pids()
        stuck = [pid for pid in pids if find_state(pid) == "D"]
        if stuck:
            return (
                f"process {stuck[0]} is in an uninterruptible I/O and ends when that returns; "
                "a hung NFS server or disk does this"
            )
        if not pids:
            return "its processes are gone, but its end cannot be written down: is the disk full?"
        return f"{len(pids)} processes are still ending"

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (self.shim_fd, self.main_fd):
            if fd is not None:
                os.close(fd)
        self.shim_fd = self.main_fd = None
