"""Standing still, running on, dying: for all processes of one job at once.

``CgroupFreezer`` uses cgroup v2 ``cgroup.freeze`` and ``cgroup.kill``, which need no controller
(Documentation/admin-guide/cgroup-v2.rst; Linux 5.2 and 5.14). ``SignalFreezer`` is for machines
without a writable cgroup: SIGSTOP root first, SIGCONT leaf first over the shim's tree; the other
orders make a job-control shell believe that its child ended. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable
from typing import Final, Protocol

from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.fence import hand_down
from iodaemon.backend.linux.process import (
    children_of,
    descendants_of,
    find_state,
    fork_into,
    is_stop_pending,
    survivors_of,
)

States = dict[int, str | None]
"""The one-letter state of each process, parents first; None: gone."""

_STILL: Final = frozenset({"T", "t", "Z", "X"})
_MOST_SCANS: Final = 20
"""Rescans of a tree that keeps forking while it is being killed."""
_STOP_WITHIN_S: Final = 0.02
"""What a tree may take to stop before the answer is 'not yet'; the keeper waits meanwhile."""
_LOOK_S: Final = 0.0005
_LEAVE_WITHIN_S: Final = 0.5
"""A process that has just ended is in its cgroup a moment longer than its parent waits for it."""


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

    def is_still(self, key: str, shim_pid: int) -> bool:
        """True when a standstill was asked for and is complete."""
        ...

    def thaw(self, key: str, shim_pid: int) -> None:
        """Let all processes run on."""
        ...

    def pids(self, key: str, shim_pid: int) -> list[int]:
        """The job's processes, parents before children; the shim is not one of them."""
        ...

    def kill(self, key: str, shim_pid: int) -> None:
        """SIGKILL to all processes, also to those being forked."""
        ...

    def remove(self, key: str) -> None:
        """Forget an ended job; harmless when there is nothing, refused when it still lives."""
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

    def open(self) -> None:
        """Make the tree, prove that it freezes, and move the keeper (the caller) into it.

        Raises:
            OSError: the place is not writable, or this kernel's cgroups cannot do it.
        """
        base = self.base
        for name in ("", "keeper", "shims", "jobs"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(base, name))
        try:
            self._prove()
        except OSError:
            self.leave()
            raise
        if self._hosts_keeper:
            _write(os.path.join(base, "keeper", "cgroup.procs"), "0")
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
        """A directory a job."""
        with contextlib.suppress(FileExistsError):
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
        return self.is_still(key, shim_pid)

    def is_still(self, key: str, shim_pid: int) -> bool:  # noqa: ARG002 - Freezer's signature
        """What ``cgroup.events`` says (``frozen 1``)."""
        return self._event(key, "frozen")

    def thaw(self, key: str, shim_pid: int) -> None:  # noqa: ARG002 - Freezer's signature
        """As Freezer says; harmless for a cgroup that is gone."""
        with contextlib.suppress(FileNotFoundError, OSError):
            _write(os.path.join(self.path(key), "cgroup.freeze"), "0")

    def pids(self, key: str, shim_pid: int) -> list[int]:  # noqa: ARG002 - Freezer's signature
        """``cgroup.procs``, in the order of entry."""
        try:
            with open(os.path.join(self.path(key), "cgroup.procs"), "rb") as file:
                return [int(word) for word in file.read().split()]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return []
            raise

    def kill(self, key: str, shim_pid: int) -> None:  # noqa: ARG002 - Freezer's signature
        """``cgroup.kill``; reaches frozen processes as well."""
        try:
            _write(os.path.join(self.path(key), "cgroup.kill"), "1")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def remove(self, key: str) -> None:
        """Remove the directory unless processes are left in it."""
        with contextlib.suppress(FileNotFoundError):
            try:
                os.rmdir(self.path(key))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise

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
        """SIGSTOP root first, again for what was forked meanwhile, until nothing is new.

        A child is stopped only once its parent stands still: a parent that is just on its way
        there still sees in wait4(2) that its child was stopped.
        """
        until_s = time.monotonic() + _STOP_WITHIN_S
        before: States = {}
        while not _are_still(states := _scan(shim_pid, stop=True)) or states != before:
            if time.monotonic() > until_s:
                return False
            before = states
            time.sleep(_LOOK_S)
        return True

    def is_still(self, key: str, shim_pid: int) -> bool:  # noqa: ARG002 - Freezer's signature
        """True when there are processes and each of them is stopped.

        One look may miss what was handed on to the shim meanwhile.
        """
        states = _scan(shim_pid, stop=False)
        return bool(states) and _are_still(states) and states == _scan(shim_pid, stop=False)

    def thaw(self, key: str, shim_pid: int) -> None:
        """SIGCONT leaf first."""
        _signal_all(reversed(self.pids(key, shim_pid)), signal.SIGCONT)

    def pids(self, key: str, shim_pid: int) -> list[int]:
        """The tree below the shim; of a dead one (0) what it left."""
        if shim_pid:
            return list(descendants_of(shim_pid))
        main = self._directories.find_main(key)
        return [] if main is None else survivors_of(main)

    def kill(self, key: str, shim_pid: int) -> None:
        """SIGKILL, again for what was forked meanwhile; what stands still cannot fork."""
        for _ in range(_MOST_SCANS):
            self.freeze(key, shim_pid)
            alive = [
                pid for pid in self.pids(key, shim_pid) if find_state(pid) not in ("Z", "X", None)
            ]
            if not alive:
                return
            _signal_all(alive, signal.SIGKILL)

    def remove(self, key: str) -> None:
        """Nothing to remove."""

    def leave(self) -> None:
        """Nothing to remove."""


def _scan(shim_pid: int, *, stop: bool) -> States:
    """The states of all below the shim; with ``stop``, SIGSTOP to all whose parents stand still.

    A process in uninterruptible sleep (D) is in no wait4, and stops before it returns from there.
    """
    found: States = {}
    level = children_of(shim_pid)
    while level:
        states = {pid: _state_of(pid) for pid in level}
        found.update(states)
        if stop:
            moving = [pid for pid, state in states.items() if state not in (None, *_STILL)]
            _signal_all(moving, signal.SIGSTOP)
        passed = [pid for pid in level if not stop or states[pid] in ("D", *_STILL)]
        level = [child for pid in passed for child in children_of(pid)]
    return found


def _state_of(pid: int) -> str | None:
    """Its state; one that has been told to stop and waits in vfork(2) for a stopped child: T."""
    state = find_state(pid)
    if state == "D" and is_stop_pending(pid):
        return "T" if any(find_state(child) == "T" for child in children_of(pid)) else "D"
    return state


def _are_still(states: States) -> bool:
    return all(state in _STILL for state in states.values())


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


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
