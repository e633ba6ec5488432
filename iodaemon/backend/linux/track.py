"""What the backend holds of one running job: who it is, and descriptors that cannot be mistaken."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from iodaemon.backend.linux.allowance import is_exhausted
from iodaemon.backend.linux.outside import read_members
from iodaemon.backend.linux.pidfd import find_exit
from iodaemon.backend.linux.process import (
    Identity,
    OwnIo,
    SilentError,
    descendants_of,
    find_state,
    has_ended,
    is_executing,
    is_reaped,
    leads_session,
    open_pidfd,
    read_boot_id,
    read_status,
    survivors_of,
)
from iodaemon.backend.linux.protocol import Message
from iodaemon.backend.linux.reader_thread import (
    find_start_ticks_in_thread,
    find_starts_in_thread,
)
from iodaemon.core.job import Exit, JobId

_LOOK_S: Final = 0.1
"""Between looks at a job whose shim is gone and who cannot be waited for."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
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
        # Shims of older packages do not note their logical bytes: these few count as the job's.
        logical: int = shim.get("baseline_logical_bytes", 0)
        self.baseline = OwnIo(read, written, operations, logical)
        self.is_bereaved = False
        self.is_frozen = False
        """As it was last posted."""
        self.watch: int | None = None
        """Of its cgroup's events, in the owner's hands."""
        self._seen: tuple[float, list[int]] = (0.0, [])
        self._left: dict[int, int] = {}
        self.shim_fd = open_pidfd(self.shim, find_start_ticks_in_thread)
        self.main = self._find_main(shim)
        self._uid: int | None = shim.get("uid")
        self.main_fd = None if self.main is None else self._open_main(self.main)

    def _find_main(self, shim: Message) -> Identity | None:
        if shim["main_pid"] is None or shim["main_start_ticks"] is None:
            return None
        return Identity(shim["main_pid"], shim["main_start_ticks"], shim["boot_id"])

    def _open_main(self, main: Identity) -> int | None:
        """Its pidfd; None: it is gone, or not known to be this one.

        A child of the shim under its number is the one. It may hang in execve(2): then nothing
        else would tell.
        """
        try:
            fd = os.pidfd_open(main.pid)
        except ProcessLookupError:
            return None
        if self._is_main(main):
            return fd
        os.close(fd)
        return None

    def _is_main(self, main: Identity) -> bool:
        status = read_status(main.pid)
        if self.shim_fd is not None and status is not None and status.parent == self.shim.pid:
            return True
        try:
            return find_start_ticks_in_thread(main.pid) == main.start_ticks
        except SilentError:
            return leads_session(main.pid, self._uid)

    def pids(self) -> list[int]:
        """The job's processes, parents before children.

        Those that left its cgroup are among them only where nobody is left in it.

        Raises:
            OSError: no descriptor is left; who they are is not known.
        """
        if self.cgroup is not None:
            with _unless_exhausted():
                if inside := read_members(self.cgroup):
                    return inside
        if not self.is_bereaved:
            self._seen = (_boot_s(), list(descendants_of(self.shim.pid)))
            return self._seen[1]
        is_empty = self.main is None or self._has_successor(self.main)
        survivors = [] if self.main is None or is_empty else survivors_of(self.main.pid)
        left = [pid for pid, pidfd in self._left.items() if not has_ended(pidfd)]
        return list(dict.fromkeys([*survivors, *left]))

    def _has_successor(self, main: Identity) -> bool:
        """Whether another process has the number of the first one: its session is empty then."""
        if main.boot_id != read_boot_id():
            return True
        is_gone = self.main_fd is None or is_reaped(self.main_fd)
        return is_gone and find_state(main.pid) is not None

    def lose_shim(self, noted: Iterable[Identity]) -> None:
        """The shim is dead: from now on only these, those seen last and the session are known.

        Args:
            noted: what the keeper noted of the job's processes.

        Raises:
            OSError: no descriptor is left; call it again.
        """
        self.is_bereaved = True
        seen_s, pids = self._seen
        # One that began later than this has the number of one that is gone.
        latest = dict.fromkeys(pids, seen_s * _TICKS_PER_S)
        latest |= {each.pid: each.start_ticks for each in noted if each.boot_id == read_boot_id()}
        try:
            self._open_left(latest)
        except OSError:
            self._close_left()
            raise

    def _open_left(self, latest: Mapping[int, float]) -> None:
        for pid in latest:
            with _unless_exhausted():
                self._left[pid] = os.pidfd_open(pid)
        starts = find_starts_in_thread(self._left)
        for pid in list(self._left):
            is_it = starts.ticks.get(pid, math.inf) <= latest[pid]
            if not is_it and not (pid in starts.silent and self._is_owned(pid)):
                os.close(self._left.pop(pid))

    def _is_owned(self, pid: int) -> bool:
        """Whether the process is the submitter's: all that is known of one that is silent."""
        status = read_status(pid)
        return status is not None and status.uid == self._uid

    def find_frozen(self) -> bool | None:
        """Whether its cgroup is frozen, complete; None: it is on its way, or nobody is in it."""
        try:
            with open(f"{self.cgroup}/cgroup.events") as file:
                words = file.read().split()
            with open(f"{self.cgroup}/cgroup.freeze") as file:
                is_wanted = file.read().strip() == "1"
        except OSError:
            return None
        found = dict(zip(words[::2], words[1::2], strict=False))
        if found.get("populated") != "1" or (is_wanted and found.get("frozen") != "1"):
            return None
        return is_wanted

    async def gone(self) -> Exit:
        """Return once no process of the job is left: how its first one ended, if anybody knows."""
        while not self._is_known_gone():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        if self.main_fd is None:
            return Exit()
        # The kernel tells once the process is reaped, which whoever inherited it does soon.
        for _ in range(_MOST_LOOKS):
            if self._is_known_reaped(self.main_fd):
                break
            await asyncio.sleep(_LOOK_S)
        return find_exit(self.main_fd)

    def _is_known_reaped(self, pidfd: int) -> bool:
        try:
            return is_reaped(pidfd)
        except OSError as error:
            if not is_exhausted(error):
                raise
            return False

    def _is_known_gone(self) -> bool:
        """False also while no descriptor is left: who cannot look does not know."""
        try:
            return not self.pids() and (self.main_fd is None or has_ended(self.main_fd))
        except OSError as error:
            if not is_exhausted(error):
                raise
            return False

    def describe_left(self) -> str:
        """Which processes are left after a kill, and in what state."""
        try:
            return self._describe_left()
        except OSError as error:
            if not is_exhausted(error):
                raise
            return "which of its processes are left is not known: no file descriptor is free"

    def _describe_left(self) -> str:
        pids = self.pids()
        if self.is_bereaved and pids:
            named = " ".join(map(str, pids))
            return f"its shim was killed; of its processes these are left: 'kill {named}'"
        stuck = [pid for pid in pids if find_state(pid) == "D"]
        if stuck and is_executing(stuck[0]):
            return (
                f"process {stuck[0]} hangs in execve, where it closes a file, and ends when that "
                "returns; a hung NFS or FUSE server does this"
            )
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
        self._close_left()
        self.shim_fd = self.main_fd = None

    def _close_left(self) -> None:
        for fd in self._left.values():
            os.close(fd)
        self._left.clear()


@contextlib.contextmanager
def _unless_exhausted() -> Iterator[None]:
    """Suppress errors of what is gone; raises where no descriptor is left."""
    try:
        yield
    except OSError as error:
        if is_exhausted(error):
            raise


def _boot_s() -> float:
    """Seconds since boot, suspended ones included, as processes' starts are counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
