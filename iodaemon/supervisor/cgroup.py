"""Jobs held by cgroup v2: one directory a job, ``BASE/jobs/<job>.<attempt>``.

freeze, kill and events need no controller (Documentation/admin-guide/cgroup-v2.rst; Linux 5.2 and
5.14) and hold for the whole subtree: a job may make cgroups below its own. Limits are set where a
controller is delegated. Only ``cgroup.events`` says what a job is; nothing is remembered here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from iodaemon.supervisor import syscalls, systemd
from iodaemon.supervisor.ledger import Key, parse_key
from iodaemon.supervisor.protocol import Limits
from iodaemon.supervisor.reap import is_stopped, read_small, send, send_to_all

CONTROLLERS: Final = ("cpuset", "io", "pids", "memory")
PRESSURE: Final = "pressure"
"""Stands beside the controllers where the kernel counts the stall times of cgroups (Linux 4.20)."""
CAP: Final = "cap"
"""Likewise where jobs have ``io.max`` (CONFIG_BLK_DEV_THROTTLING)."""
_NO_CAP: Final = "rbps=max wbps=max riops=max wiops=max"
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV})
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EVENT: Final = struct.Struct("iIII")  # struct inotify_event, without a name
_LEAST_MEMORY: Final = 16 << 20
_MOST_PIDS: Final = 1 << 22  # PID_MAX_LIMIT of include/linux/threads.h
_SHARE: Final = 4
"""One job has at most one in so many of all tasks: three that fork without end leave a fourth."""
_LEAVE_WITHIN_S: Final = 0.5


class Look(NamedTuple):
    """What is there of a job now."""

    is_populated: bool
    is_frozen: bool


class PlaceGoneError(Exception):
    """The place of all jobs was removed, so that none runs; the next supervisor has it again."""


class Cgroups:
    """The jobs' cgroups below one base.

    Args:
        base: a cgroup directory that exists or can be made, without processes at its top; or that
            of the jobs' own scope, which is made with systemd's help.

    Attributes:
        unit: name of the systemd unit that it is in; None: in none.
        lack: "undelegated": systemd may remove or change what is made in it; else empty.
        detail: a sentence about the place.
    """

    name: Final = "cgroup"
    are_children: Final = True
    """Each job's first process is a child of the supervisor, or was one of an earlier one."""

    def __init__(self, base: str) -> None:
        self.base: str | None = base
        unit = systemd.find_unit(base)
        self.unit = None if unit is None else os.path.basename(unit)
        self.lack, self.detail = "", f"cgroup v2 at {base}"
        if unit is not None and systemd.is_booted() and not systemd.is_delegated(unit):
            self.lack = "undelegated"
            self.detail += ", which systemd has not delegated"
        self.controls: tuple[str, ...] = ()
        self._base = base
        self._most_tasks = _MOST_PIDS
        is_scope = base.endswith(f"/{systemd.SLICE}/{systemd.SCOPE}")
        self._scope = systemd.Scope(base) if is_scope else None
        self._jobs = os.path.join(base, "jobs")
        mount, subtree = find_mount()
        within = os.path.relpath(self._jobs, mount)
        self._marker = f"\n0::{os.path.normpath(os.path.join(subtree, within))}/".encode()
        self.fd = syscalls.watch_files()
        self._watched: dict[int, Key] = {}

    def open(self) -> None:
        """Make the tree, or what is missing of it, and check that it freezes (else OSError).

        The calling process moves to ``supervisor``, unless the jobs have a scope, which must be
        free to be stopped.
        """
        if self._scope is not None:
            self._scope.make()
            self._scope.settle()
        for name in ("jobs",) if self._scope is not None else ("", "supervisor", "jobs"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(self._base, name))
        for name in ("cgroup.freeze", "cgroup.kill", "cgroup.events"):
            os.stat(os.path.join(self._jobs, name))
        if self._scope is None:
            _write(os.path.join(self._base, "supervisor", "cgroup.procs"), "0")

    def hand_down(self) -> None:
        """Give the jobs every controller that the base has; ``controls`` says what they have."""
        for controller in CONTROLLERS:
            with contextlib.suppress(OSError):
                for directory in (self._base, self._jobs):
                    _write(os.path.join(directory, "cgroup.subtree_control"), f"+{controller}")
        given = self._read("cgroup.subtree_control").split()
        controls = [name for name in CONTROLLERS if name.encode() in given]
        if self._read("io.pressure") and self._read("memory.pressure"):
            controls.append(PRESSURE)
        if "io" in controls and os.path.exists(os.path.join(self._jobs, "io.max")):
            controls.append(CAP)
        self.controls = tuple(controls)
        self._most_tasks = (systemd.count_tasks() or _MOST_PIDS) // _SHARE
        if self._scope is not None:
            self._scope.watch()

    def is_being_stopped(self) -> bool | None:
        """Whether somebody stops the scope of all jobs; None: there is none."""
        return None if self._scope is None else self._scope.is_being_stopped()

    def _read(self, *names: str) -> bytes:
        """A small file below ``jobs``; empty where there is none, or the kernel does not answer."""
        try:
            return read_small("/".join((self._jobs, *names)))
        except OSError:
            return b""

    def path(self, key: Key) -> str:
        return f"{self._jobs}/{key}"

    def find_jobs(self) -> list[Key]:
        """The jobs that have a cgroup."""
        found: list[Key] = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._jobs):
                with contextlib.suppress(ValueError):
                    found.append(parse_key(name))
        return sorted(found)

    def key_of(self, text: bytes) -> Key | None:
        """The job of a /proc/PID/cgroup, also of one that was removed since (" (deleted)")."""
        _, _, place = (b"\n" + text).partition(self._marker)
        name = place.split(b"\n")[0].split(b"/")[0]
        try:
            return parse_key(name.removesuffix(b" (deleted)").decode())
        except (ValueError, UnicodeDecodeError):
            return None

    def prepare(self, key: Key, limits: Limits) -> tuple[int, list[str]]:
        """Make a job's cgroup; an open directory to clone into, and the limits that failed.

        Raises PlaceGoneError: what was above it is gone; OSError: it cannot be made.
        """
        try:
            os.mkdir(self.path(key))
        except FileExistsError:
            pass
        except FileNotFoundError as error:
            raise PlaceGoneError from error
        except BlockingIOError as error:  # which elsewhere means that a socket is full
            full = "the cgroup tree is full; raise cgroup.max.descendants above it"
            raise OSError(errno.ENOSPC, full, self.path(key)) from error
        problems = []
        for name, value in _settings(self.controls, limits, self._most_tasks):
            try:
                _write(os.path.join(self.path(key), name), value)
            except OSError as error:
                if name != "memory.swap.max" or error.errno != errno.ENOENT:  # no swap at all
                    problems.append(f"{name} is not set to {value}: {error.strerror}")
        return os.open(self.path(key), _FLAGS), problems

    def adopt(self, key: Key) -> None:
        """Watch a job: one that is to stand still, or whose first process is not its last. One that
        cannot be watched is looked at now and then.
        """
        with contextlib.suppress(OSError):
            watch = syscalls.add_watch(self.fd, os.path.join(self.path(key), "cgroup.events"))
            self._watched[watch] = key

    def changed(self, most: int) -> list[Key] | None:
        """Jobs whose state may have changed, a bounded number; None: look at all."""
        try:
            data = os.read(self.fd, most * _EVENT.size)
        except BlockingIOError:
            return []
        keys: list[Key] = []
        for watch, mask, _, _ in _EVENT.iter_unpack(data):
            if mask & syscalls.IN_Q_OVERFLOW:
                return None
            if watch in self._watched:
                keys.append(self._watched[watch])
            if mask & syscalls.IN_IGNORED:
                self._watched.pop(watch, None)
        return keys

    def look(self, key: Key) -> Look:
        """A cgroup that is gone has nothing in it."""
        try:
            text = read_small(f"{self.path(key)}/cgroup.events")
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return Look(is_populated=False, is_frozen=False)
        return Look(is_populated=b"populated 1" in text, is_frozen=b"frozen 1" in text)

    def freeze(self, key: Key) -> None:
        """Ask for a standstill; ``frozen 1`` follows, later for a process in state D."""
        self.adopt(key)
        self._set(key, "cgroup.freeze", "1")

    def thaw(self, key: Key) -> None:
        """Ends its caps as well: whoever counts on one says so again."""
        self._set(key, "cgroup.freeze", "0")
        self._uncap(key)

    def _set(self, key: Key, name: str, value: str) -> None:
        """Of a cgroup that is gone there is nothing to be set."""
        try:
            _write(os.path.join(self.path(key), name), value)
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def is_held(self, key: Key) -> bool:
        """Whether a standstill was asked for."""
        return self._read(str(key), "cgroup.freeze").strip() == b"1"

    def cap(self, key: Key, caps: Mapping[str, str]) -> None:
        """Put these caps, and no others, on a job: words of ``io.max`` by disk.

        Raises OSError: the kernel does not take one of them; then none is left.
        """
        if caps and CAP not in self.controls:
            raise OSError(errno.ENOTSUP, "jobs cannot be slowed down here: no io controller")
        self._uncap(key)
        try:
            for disk, words in sorted(caps.items()):  # the kernel reads one line a write(2)
                _write(os.path.join(self.path(key), "io.max"), f"{disk} {words}")
        except OSError:
            self._uncap(key)
            raise

    def _uncap(self, key: Key) -> bool:
        """Whether there were caps."""
        disks = [line.split()[0].decode() for line in self._read(str(key), "io.max").splitlines()]
        for disk in disks:
            with contextlib.suppress(OSError):  # it was taken away, and so is its cap
                _write(os.path.join(self.path(key), "io.max"), f"{disk} {_NO_CAP}")
        return bool(disks)

    def let_go(self, key: Key) -> bool:
        """Let a job run on, and move what it can; whether it was held, or about to be."""
        is_held = self.is_held(key)
        if is_held:
            self.thaw(key)
        return self._uncap(key) or is_held

    def thaw_all(self) -> int:
        """Let every job go; how many were held."""
        return sum(self.let_go(key) for key in self.find_jobs())

    def find_holder(self, key: Key) -> None:
        """No process holds a job."""

    def kill(self, key: Key) -> None:
        """SIGKILL to all, also to frozen ones and to those being forked."""
        self._set(key, "cgroup.kill", "1")

    def signal(self, key: Key, number: int) -> None:
        send_to_all(lambda: self.pids(key), number, lambda pid: self._has(key, pid))

    def continue_stopped(self, key: Key) -> bool:
        """SIGCONT to what stopped itself or was stopped by hand; whether there was any."""
        stopped = [pid for pid in self.pids(key) if is_stopped(pid)]
        send(stopped, signal.SIGCONT, lambda pid: self._has(key, pid))
        return bool(stopped)

    def _has(self, key: Key, pid: int) -> bool:
        return self.key_of(read_small(f"/proc/{pid}/cgroup")) == key

    def pids(self, key: Key) -> list[int]:
        """The processes of the job's whole subtree."""
        found: list[int] = []
        for directory, _, _ in os.walk(self.path(key)):
            path = os.path.join(directory, "cgroup.procs")
            with contextlib.suppress(OSError), open(path, "rb") as file:  # none in a threaded one
                found += map(int, file)
        return found

    def cpu_us(self, key: Key) -> int | None:
        """CPU time of all that ever were in the job's cgroup; None: unknown."""
        words = self._read(str(key), "cpu.stat").split(None, 2)
        return int(words[1]) if words[:1] == [b"usage_usec"] else None

    def find_memory_end(self, key: Key) -> dict[str, int | str | None] | None:
        """How the kernel ended processes of the job for want of memory; None: it did not.

        ``killed``: how many; ``at_limit``: how often the job could get no more below its own
        limit; ``limit_bytes``: that limit, or None; ``nodes``: the NUMA nodes that it was confined
        to, empty: all.
        """
        if "memory" not in self.controls:
            return None
        lines = (line.split() for line in self._read(str(key), "memory.events").splitlines())
        counts = {words[0]: int(words[1]) for words in lines if len(words) == 2}
        if not counts.get(b"oom_kill"):
            return None
        limit = self._read(str(key), "memory.max").strip()
        return {
            "killed": counts[b"oom_kill"],
            "at_limit": counts.get(b"oom", 0),
            "limit_bytes": int(limit) if limit.isdigit() else None,
            "nodes": self._read(str(key), "cpuset.mems").decode().strip(),
        }

    def remove(self, key: Key) -> bool:
        """Remove the cgroup and those that the job made below it; whether it is gone."""
        try:
            os.rmdir(self.path(key))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            with contextlib.suppress(OSError):  # somebody is in one, or makes others meanwhile
                for directory, _, _ in os.walk(self.path(key), topdown=False):
                    os.rmdir(directory)
            return not os.path.exists(self.path(key))
        return True

    def leave(self) -> None:
        """Move the calling process out again, and remove the tree where it is empty.

        The scope stays; systemd removes it once it is stopped.
        """
        if self._scope is not None:
            return
        with contextlib.suppress(OSError):
            _write(os.path.join(os.path.dirname(self._base), "cgroup.procs"), "0")
        until_s = time.monotonic() + _LEAVE_WITHIN_S
        for name in ("jobs", "supervisor", ""):
            while time.monotonic() < until_s:
                try:
                    os.rmdir(os.path.join(self._base, name))
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        break
                    time.sleep(0.001)  # who has just ended is in it a moment longer
                else:
                    break


def find_own_cgroup() -> str:
    """The directory of the calling process's cgroup v2.

    Raises OSError: it is not mounted, or cannot be seen from here.
    """
    mount, subtree = find_mount()
    with open("/proc/self/cgroup") as file:
        own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
    within = None if own is None else os.path.relpath(own, subtree)
    if within is None or within.startswith(".."):
        raise OSError(errno.ENOENT, "this process is in no cgroup that can be seen from here")
    return os.path.normpath(os.path.join(mount, within))


def find_mount() -> tuple[str, str]:
    """Where cgroup v2 is mounted, and which directory of it that is; OSError: nowhere."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            words = line.split()
            if words[words.index("-") + 1] == "cgroup2":
                return words[4], words[3]
    raise OSError(errno.ENOENT, "cgroup v2 is not mounted")


def _settings(
    controls: Iterable[str], limits: Limits, most_tasks: int
) -> Iterator[tuple[str, str]]:
    if "cpuset" in controls:
        for name, numbers in (("cpus", limits.cpus), ("mems", limits.memory_nodes)):
            if numbers:
                yield f"cpuset.{name}", ",".join(map(str, sorted(numbers)))
    if "memory" in controls and limits.memory_bytes is not None:
        yield "memory.oom.group", "1"
        yield "memory.swap.max", "0"
        yield "memory.max", str(max(_LEAST_MEMORY, limits.memory_bytes))
    if "pids" in controls and limits.processes is not None:
        yield "pids.max", str(max(1, min(limits.processes, most_tasks)))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
