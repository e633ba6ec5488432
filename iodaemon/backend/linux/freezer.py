"""Standing still, running on, dying: for all processes of one job at once.

``CgroupFreezer`` uses cgroup v2 ``cgroup.freeze`` and ``cgroup.kill``, which need no controller
(Documentation/admin-guide/cgroup-v2.rst; Linux 5.2 and 5.14), and signals for what has left the
cgroup (``outside``). ``SignalFreezer`` is for machines without a writable cgroup: signals for all
(``stopping``). Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import time
from typing import Final, Protocol

from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.fence import hand_down
from iodaemon.backend.linux.io_cap import clear_caps, set_caps
from iodaemon.backend.linux.outside import find_outside, has_left, let_go, read_members
from iodaemon.backend.linux.process import descendants_of, fork_into, survivors_of
from iodaemon.backend.linux.stopping import ENDED, kill_below, look_below, stop_below, tell

_LEAVE_WITHIN_S: Final = 0.5
"""A process that has just ended is in its cgroup a moment longer than its parent waits for it."""
_LOOK_S: Final = 0.0005


class Freezer(Protocol):
    """How one keeper holds the processes of its jobs."""

    name: str
    detail: str
    controls: tuple[str, ...]
    """What a job's cgroup has besides (``fence``); empty without one."""

    def make(self, key: str) -> None:
        """Prepare for a job, before its shim is forked."""
        ...

    def fork(self, key: str) -> tuple[int, bool]:
        """As ``os.fork``, and whether the child belongs to the job; else it has to ``enter``."""
        ...

    def fork_shim(self) -> tuple[int, bool]:
        """As ``os.fork``, and whether the child is where shims belong."""
        ...

    def enter(self, key: str) -> None:
        """Called in the job's child, before it execs: from now on it belongs to the job."""
        ...

    def freeze(self, key: str, shim_pid: int) -> bool:
        """Ask for a standstill; True when all processes stand still by now."""
        ...

    def insist(self, key: str, shim_pid: int) -> bool:
        """After ``freeze``: hold also what it did not reach; True when all stand still by now."""
        ...

    def is_still(self, key: str, shim_pid: int) -> bool:
        """True when a standstill was asked for and is complete."""
        ...

    def count_outside(self, key: str) -> int:
        """How many processes had left the job's cgroup when it was last brought to a standstill."""
        ...

    def held_by_signals(self, key: str, shim_pid: int) -> list[int]:
        """The processes that a standstill stopped, or may have stopped, by signals."""
        ...

    def thaw(self, key: str, shim_pid: int) -> None:
        """Let all processes run on, and move what they can."""
        ...

    def cap(self, key: str, lines: list[str]) -> None:
        """Let them move no more than these lines of ``io.max`` say; none: what they can.

        Raises:
            OSError: the kernel does not take it, and no cap is left.
        """
        ...

    def pids(self, key: str, shim_pid: int) -> list[int]:
        """The job's processes, parents before children; the shim is not one of them."""
        ...

    def kill(self, key: str, shim_pid: int) -> None:
        """SIGKILL to all processes, also to those being forked."""
        ...

    def remove(self, key: str) -> bool:
        """Forget an ended job, unless it still lives; True: nothing of it is left."""
        ...

    def leave(self) -> None:
        """The keeper goes: take away what it made for itself, if no job needs it."""
        ...


class CgroupFreezer:
    """One cgroup a job below ``base``: ``base/{keeper,shims,jobs/<key>}``.

    Args:
        base: the tree's top.
        hosts_keeper: the keeper lives in the tree as well; else it stays where it is.
    """

    name = "cgroup"

    def __init__(self, base: str, *, hosts_keeper: bool = True) -> None:
        self.base = base
        self.detail = f"cgroup v2 at {base}"
        self.controls: tuple[str, ...] = ()
        self._home = os.path.dirname(base)
        self._hosts_keeper = hosts_keeper
        self._outside: dict[str, int] = {}

    def open(self) -> None:
        """Make the tree, prove that it freezes, and move the keeper (the caller) into it.

        Raises:
            OSError: the place is not writable, or this kernel's cgroups cannot do it.
        """
        self._make_tree()
        try:
            self._prove()
        except OSError:
            self.leave()
            raise
        if self._hosts_keeper:
            self._move_in()

    def _make_tree(self) -> None:
        for name in ("", "keeper", "shims", "jobs"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(self.base, name))

    def _move_in(self) -> None:
        _write(os.path.join(self.base, "keeper", "cgroup.procs"), "0")
        self.take_controls()

    def take_controls(self) -> None:
        """Hand down to the jobs what the tree has, now that no process is at its top."""
        self.controls = hand_down(self.base)

    def _prove(self) -> None:
        probe = os.path.join(self.base, "jobs", f"probe.{os.getpid()}")
        os.mkdir(probe)
        try:
            _write(os.path.join(probe, "cgroup.freeze"), "1")
            os.stat(os.path.join(probe, "cgroup.kill"))
        finally:
            os.rmdir(probe)

    def path(self, key: str) -> str:
        """The job's cgroup directory."""
        return os.path.join(self.base, "jobs", key)

    def make(self, key: str) -> None:
        """A directory a job; of its own tree also what somebody removed above it.

        Raises:
            FileNotFoundError: the tree is gone, and whoever made it has to make it again.
        """
        with contextlib.suppress(FileExistsError):
            try:
                os.mkdir(self.path(key))
            except FileNotFoundError:
                if not self._hosts_keeper:
                    raise
                self._make_tree()
                self._move_in()
                os.mkdir(self.path(key))

    def fork(self, key: str) -> tuple[int, bool]:
        """Into the job's cgroup."""
        return fork_into(self.path(key))

    def enter(self, key: str) -> None:
        """Move the calling process into the job's cgroup."""
        _write(os.path.join(self.path(key), "cgroup.procs"), "0")

    def fork_shim(self) -> tuple[int, bool]:
        """As ``fork``, among the shims."""
        return fork_into(os.path.join(self.base, "shims"))

    def enter_shims(self) -> None:
        """Move the calling process to the shims, where nothing is ever frozen."""
        _write(os.path.join(self.base, "shims", "cgroup.procs"), "0")

    def freeze(self, key: str, shim_pid: int) -> bool:
        """As Freezer says; asynchronous in the kernel, a task in D state freezes on return."""
        _write(os.path.join(self.path(key), "cgroup.freeze"), "1")
        return self.insist(key, shim_pid)

    def insist(self, key: str, shim_pid: int) -> bool:
        """As Freezer says; what is outside is stopped when all inside stand still."""
        if not self._event(key, "frozen"):
            return False
        if not has_left(self.path(key), shim_pid):
            self._outside[key] = 0
            return True
        self._outside.pop(key, None)  # some may be stopped, and not yet all
        stopped = stop_below(shim_pid, lambda: self._inside(key))
        if stopped is None:
            return False
        self._outside[key] = sum(state not in ENDED for state in stopped.values())
        return True

    def is_still(self, key: str, shim_pid: int) -> bool:
        """What ``cgroup.events`` says (``frozen 1``), and the states of what is outside."""
        if not self._event(key, "frozen"):
            return False
        if not has_left(self.path(key), shim_pid):
            return True
        return look_below(shim_pid, lambda: self._inside(key)) is not None

    def count_outside(self, key: str) -> int:
        """As Freezer says."""
        return self._outside.get(key, 0)

    def held_by_signals(self, key: str, shim_pid: int) -> list[int]:
        """Those outside."""
        if self._outside.get(key) == 0 or not self._event(key, "frozen"):
            return []  # they are stopped once all inside stand still
        return find_outside(self.path(key), shim_pid)

    def thaw(self, key: str, shim_pid: int) -> None:
        """As Freezer says; harmless for a cgroup that is gone.

        What is outside goes first: a parent inside does not notice then that it was stopped.
        Where nothing was, when all stood still, nothing was stopped.
        """
        if self._outside.pop(key, None) != 0 and shim_pid:
            let_go(self.path(key), shim_pid)
        with contextlib.suppress(FileNotFoundError, OSError):
            _write(os.path.join(self.path(key), "cgroup.freeze"), "0")
        with contextlib.suppress(OSError):
            clear_caps(self.path(key))

    def cap(self, key: str, lines: list[str]) -> None:
        """As Freezer says."""
        set_caps(self.path(key), lines)

    def pids(self, key: str, shim_pid: int) -> list[int]:
        """``cgroup.procs``, in the order of entry, then those outside; of a dead shim (0) none."""
        outside = find_outside(self.path(key), shim_pid) if shim_pid else []
        return list(dict.fromkeys([*read_members(self.path(key)), *outside]))

    def kill(self, key: str, shim_pid: int) -> None:
        """``cgroup.kill``; reaches frozen processes as well. Then those outside."""
        try:
            _write(os.path.join(self.path(key), "cgroup.kill"), "1")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
        if shim_pid:
            members = functools.partial(find_outside, self.path(key), shim_pid)
            kill_below(shim_pid, members, lambda: self._inside(key))

    def _inside(self, key: str) -> set[int]:
        return set(read_members(self.path(key)))

    def remove(self, key: str) -> bool:
        """Remove the directory unless processes are left in it; True: it is gone."""
        self._outside.pop(key, None)
        try:
            os.rmdir(self.path(key))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def jobs(self) -> list[str]:
        """The jobs that have a cgroup."""
        try:
            entries = os.scandir(os.path.join(self.base, "jobs"))
            return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []

    def leave(self) -> None:
        """Go back to where the keeper came from and remove the tree where it is empty."""
        with contextlib.suppress(OSError):
            if self._hosts_keeper:
                _write(os.path.join(self._home, "cgroup.procs"), "0")
        until_s = time.monotonic() + _LEAVE_WITHIN_S
        for name in ("keeper", "shims", "jobs", ""):
            with contextlib.suppress(OSError):
                _remove_directory(os.path.join(self.base, name), until_s)

    def _event(self, key: str, name: str) -> bool:
        try:
            with open(os.path.join(self.path(key), "cgroup.events")) as file:
                return f"{name} 1" in file.read().split("\n")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return False
            raise


class SignalFreezer:
    """Signals over the tree below each shim; the shim is a subreaper, so nothing escapes it.

    Where the shim is dead, over what is left of the session of the job's first process.
    """

    name = "signals"
    controls: tuple[str, ...] = ()

    def __init__(self, directories: JobDirectories, detail: str) -> None:
        self._directories = directories
        self.detail = detail

    def make(self, key: str) -> None:
        """Nothing to prepare."""

    def fork(self, key: str) -> tuple[int, bool]:  # noqa: ARG002 - Freezer's signature
        """A child of the shim belongs to the job as it is."""
        return os.fork(), True

    def fork_shim(self) -> tuple[int, bool]:
        """Shims are nowhere in particular."""
        return os.fork(), True

    def enter(self, key: str) -> None:
        """Nowhere to go."""

    def freeze(self, key: str, shim_pid: int) -> bool:  # noqa: ARG002 - Freezer's signature
        """SIGSTOP to all that there is; more may be forked meanwhile."""
        return stop_below(shim_pid) is not None

    def insist(self, key: str, shim_pid: int) -> bool:
        """The same again."""
        return self.freeze(key, shim_pid)

    def is_still(self, key: str, shim_pid: int) -> bool:  # noqa: ARG002 - Freezer's signature
        """True when there are processes and each of them is stopped."""
        return bool(look_below(shim_pid))

    def count_outside(self, key: str) -> int:  # noqa: ARG002 - Freezer's signature
        """There is no cgroup to leave."""
        return 0

    def held_by_signals(self, key: str, shim_pid: int) -> list[int]:  # noqa: ARG002
        """All of them."""
        return list(descendants_of(shim_pid))

    def thaw(self, key: str, shim_pid: int) -> None:
        """SIGCONT leaf first."""
        pids = self.pids(key, shim_pid)
        session = None if shim_pid else self._directories.find_session(key)
        tell(pids[::-1], signal.SIGCONT, {shim_pid, *pids}, session)

    def cap(self, key: str, lines: list[str]) -> None:  # noqa: ARG002 - Freezer's signature
        """Nothing slows a process down but its cgroup."""
        if lines:
            raise OSError(errno.ENOTSUP, "a job without a cgroup cannot be slowed down")

    def pids(self, key: str, shim_pid: int) -> list[int]:
        """The tree below the shim; of a dead one (0) what it left."""
        if shim_pid:
            return list(descendants_of(shim_pid))
        session = self._directories.find_session(key)
        return [] if session is None else survivors_of(session)

    def kill(self, key: str, shim_pid: int) -> None:
        """SIGKILL, again for what was forked meanwhile."""
        session = None if shim_pid else self._directories.find_session(key)
        kill_below(shim_pid, lambda: self.pids(key, shim_pid), session=session)

    def remove(self, key: str) -> bool:  # noqa: ARG002
        """Nothing to remove."""
        return True

    def leave(self) -> None:
        """Nothing to remove."""


def _remove_directory(path: str, until_s: float) -> None:
    """Remove a cgroup, once who has just ended in it is gone.

    Raises:
        OSError: it is not empty, then either.
    """
    while True:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until_s:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
