"""Scratch directories of jobs, made and removed by a forked helper with a deadline.

``DISK/.iodaemon`` is the caller's own, mode 0711; below it each directory is its user's, 0700. All
in it is hostile: links, mounts, names, depth, and whoever is at work there meanwhile. So removal
is one name below an open directory at a time (openat2), what is mounted is kept, and files are not
looked at. Whoever is in a directory makes nothing there any more once it is entered: it is then
the caller's. A helper that a dead disk keeps is killed and not waited for; two at most wait for
one disk.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from iodaemon.supervisor import protocol, syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.protocol import BadInputError, Message

STORE: Final = ".iodaemon"
DEADLINE_S: Final = 20.0
"""Of one helper. A removal that is not done then goes on when it is asked for again."""
_WORK_S: Final = 15.0
_MOST_ON_A_DISK: Final = 2
_MOST_WAITING: Final = 4096
_DEEPEST: Final = 32
"""Directories open at one time; what lies deeper is moved up to the top first."""
_COPY_S: Final = 2.0
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_CHANGED_MEANWHILE: Final = (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
_MOUNTED: Final = (errno.EBUSY, errno.EXDEV)
_HIGHEST_FD: Final = 1 << 18


class ScratchError(Exception):
    """It cannot be done; one line that says why."""


class _Helper:
    """One forked helper, and what it has said so far."""

    def __init__(self, pid: int, pidfd: int, pipe: int, wish: Message) -> None:
        self.pid, self.pidfd, self.pipe, self.wish = pid, pidfd, pipe, wish
        self.said = b""
        self.until_s = time.monotonic() + DEADLINE_S
        self.is_told = False


class Desk:
    """Takes wishes, runs helpers, answers.

    Args:
        add: watches a descriptor.
        remove: stops that.
        send: to the daemon.
        uids: the least and the highest whose directories are made.
    """

    def __init__(
        self,
        add: Callable[[int, Callable[[], None]], None],
        remove: Callable[[int], None],
        send: Callable[[Message], None],
        uids: tuple[int, int],
    ) -> None:
        self._add, self._remove, self._send, self._uids = add, remove, send, uids
        self._waiting: collections.deque[Message] = collections.deque()
        self._helpers: list[_Helper] = []

    @property
    def is_busy(self) -> bool:
        return any(not helper.is_told for helper in self._helpers) or bool(self._waiting)

    def ask(self, wish: Message) -> None:
        """One answer follows: ``{"scratch": id, "done": bool}``, perhaps with ``problem``.

        That of what was made has ``filesystem``, the number of the disk's device until the next
        boot. With it, what is not there is not taken for removed while another disk is mounted.

        Raises:
            BadInputError: it names no such thing.
        """
        disk = protocol.field(wish, "disk", str, "")
        name = protocol.field(wish, "name", str, "")
        is_plain = name.isascii() and name.replace("-", "").replace(".", "").isalnum()
        if wish.get("do") not in ("make", "remove") or disk[:1] != "/":
            raise BadInputError("scratch is neither made nor removed on a disk")
        if not protocol.is_word(disk):
            raise BadInputError("disk is no path")
        if not is_plain or name.startswith(".") or len(name) > 64:
            raise BadInputError("name is not plain")
        protocol.number(wish, "filesystem", 0, (1 << 64) - 1)
        for field, least, most in (("uid", *self._uids), ("gid", 0, (1 << 32) - 2)):
            if protocol.number(wish, field, least, most) is None and wish["do"] == "make":
                raise BadInputError(f"{field} is missing")
        if len(self._waiting) >= _MOST_WAITING:
            raise BadInputError("too many wait")
        self._waiting.append(wish)

    def due_s(self) -> float:
        """When there is something to do."""
        untold = [helper.until_s for helper in self._helpers if not helper.is_told]
        return 0.0 if self._next() is not None else min(untold, default=float("inf"))

    def keep_time(self) -> None:
        """Start what can be started, and give up what takes too long."""
        for helper in self._helpers:
            if not helper.is_told and time.monotonic() >= helper.until_s:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(helper.pid, signal.SIGKILL)
                problem = f"the disk at {helper.wish['disk']} does not answer"
                self._answer(helper, {"done": False, "problem": problem})
        wish = self._next()
        if wish is not None:
            self._waiting.remove(wish)
            try:
                self._start(wish)
            except OSError as error:
                problem = f"no helper ({error.strerror})"
                self._send({"scratch": wish.get("id"), "done": False, "problem": problem})

    def _next(self) -> Message | None:
        """The first whose disk does not keep two helpers already."""
        busy = collections.Counter(helper.wish["disk"] for helper in self._helpers)
        return next((w for w in self._waiting if busy[w["disk"]] < _MOST_ON_A_DISK), None)

    def _start(self, wish: Message) -> None:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            raise
        if pid == 0:
            _work(wish, write)
        os.close(write)
        helper = _Helper(pid, os.pidfd_open(pid), read, wish)
        self._helpers.append(helper)
        self._add(helper.pipe, lambda: self._hear(helper))

    def _hear(self, helper: _Helper) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(helper.pipe, 4096)
        helper.said += data
        if data:
            return
        self._remove(helper.pipe)
        os.close(helper.pipe)
        os.close(helper.pidfd)
        self._helpers.remove(helper)
        if not helper.is_told:
            try:
                self._answer(helper, protocol.decode(helper.said))
            except BadInputError:
                self._answer(helper, {"done": False, "problem": "its helper died"})

    def _answer(self, helper: _Helper, answer: Message) -> None:
        helper.is_told = True
        self._send({"scratch": helper.wish.get("id"), **answer})


def _work(wish: Message, pipe: int) -> NoReturn:
    """The helper: do it, say so, end."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, pipe)
        os.closerange(pipe + 1, _HIGHEST_FD)
        syscalls.name_process("iod-scratch")
        answer: dict[str, Any] = {"done": True}
        disk, name, filesystem = wish["disk"], wish["name"], wish.get("filesystem")
        try:
            if wish["do"] == "make":
                answer["filesystem"] = make(disk, name, wish["uid"], wish["gid"], filesystem)
            else:
                answer["done"] = remove(disk, name, filesystem, time.monotonic() + _WORK_S)
        except ScratchError as error:
            answer = {"done": False, "problem": str(error)}
        except OSError as error:
            problem = f"{wish['disk']}: {error.strerror or error}"
            answer = {"done": False, "problem": problem}
        os.write(pipe, protocol.encode(answer))
    finally:
        os._exit(0)


def make(disk: str, name: str, uid: int, gid: int, filesystem: int | None) -> int:
    """Make the directory; harmless where it is there already. The device's number.

    Raises:
        ScratchError: the store is not the caller's alone, or another file system is there.
        OSError: the disk refuses.
    """
    store = _open_store(disk, filesystem, is_made=True)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=store)
        reach("scratch.made")
        fd = syscalls.open_beneath(store, name, _DIRECTORY)
        try:
            os.fchown(fd, uid, gid)
            os.fchmod(fd, 0o700)
            return os.fstat(fd).st_dev
        finally:
            os.close(fd)
    finally:
        os.close(store)


def _open_store(disk: str, filesystem: int | None, *, is_made: bool) -> int:
    top = os.open(disk, _DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(top)
        others = stat.S_IWGRP | stat.S_IWOTH
        is_open = found.st_mode & others and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or is_open:
            raise ScratchError(f"{disk} can be written to by others; make it root's alone")
        if is_made:
            _check_file_system(disk, found, filesystem)
            with contextlib.suppress(FileExistsError):
                os.mkdir(STORE, 0o711, dir_fd=top)
        store = os.open(STORE, _DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except FileNotFoundError as error:
        raise ScratchError(f"{disk} has no {STORE}; mount what belongs there") from error
    finally:
        os.close(top)
    found = os.fstat(store)
    if found.st_uid != os.geteuid() or found.st_mode & others:
        os.close(store)
        raise ScratchError(f"{disk}/{STORE} is another's; move it away")
    return store


def _check_file_system(disk: str, found: os.stat_result, filesystem: int | None) -> None:
    if filesystem not in (None, found.st_dev):
        raise ScratchError(f"another file system is at {disk} now; mount the one that was there")


def remove(disk: str, name: str, filesystem: int | None, until_s: float) -> bool:
    """Remove the directory and all below it; False: the time is up, and there is more.

    Raises:
        ScratchError: something in it cannot be removed, or its disk is not mounted.
        OSError: the disk refuses.
    """
    store = _open_store(disk, filesystem, is_made=False)
    try:
        if name not in os.listdir(store):  # a disk that is mounted again may have another number
            _check_file_system(disk, os.fstat(store), filesystem)
        return _remove_tree(store, name, until_s)
    finally:
        os.close(store)


def _remove_tree(parent: int, name: str, until_s: float) -> bool:
    try:
        top = syscalls.open_beneath(parent, name, _DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        _take_over(top)
        while time.monotonic() < until_s:
            removed, problem = _empty(top, until_s)
            try:
                os.rmdir(name, dir_fd=parent)
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno in _MOUNTED:
                    raise ScratchError(f"something is mounted on {name}; unmount that") from error
            else:
                return True
            if not removed:
                raise ScratchError(problem or "somebody makes files in it; end that process")
    finally:
        os.close(top)
    return False


def _take_over(fd: int) -> None:
    """Nobody else makes anything in this directory from now on, also not who is in it."""
    os.fchmod(fd, 0o700)
    with contextlib.suppress(PermissionError):
        os.fchown(fd, os.geteuid(), os.getegid())


def _empty(top: int, until_s: float) -> tuple[int, str]:
    """One round over the tree: how much was removed or moved, and what could not be."""
    removed, problem = 0, ""
    stack = [(os.dup(top), "", os.scandir(top))]
    try:
        while stack and time.monotonic() < until_s:
            fd, name, entries = stack[-1]
            entry = next(entries, None)
            try:
                if entry is None:
                    stack.pop()
                    entries.close()
                    os.close(fd)
                    if stack:
                        os.rmdir(name, dir_fd=stack[-1][0])
                        removed += 1
                elif not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=fd)
                    removed += 1
                    reach("scratch.unlinked")
                elif len(stack) >= _DEEPEST:
                    deep = f"deep-{os.urandom(8).hex()}"
                    os.rename(entry.name, deep, src_dir_fd=fd, dst_dir_fd=top)
                    removed += 1
                else:
                    below = syscalls.open_beneath(fd, entry.name, _DIRECTORY)
                    stack.append((below, entry.name, os.scandir(below)))
                    _take_over(below)
            except OSError as error:
                if error.errno not in _CHANGED_MEANWHILE and not problem:
                    what = entry.name if entry else name
                    problem = f"{what!a} in it cannot be removed ({error.strerror})"
                    if error.errno in _MOUNTED:
                        problem = f"something is mounted at {what!a} in it; unmount that"
    finally:
        for fd, _, entries in stack:
            entries.close()
            os.close(fd)
    return removed, problem


def _find_data(fd: int) -> Iterator[tuple[int, int]]:
    """Beginning and end of what is no hole."""
    end = 0
    while True:
        try:
            offset = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        end = os.lseek(fd, offset, os.SEEK_HOLE)
        yield offset, end


def copy_ledger(ledger: int, path: str) -> None:
    """Copy it to a disk before the machine is shut down, or give up after ``_COPY_S``."""
    pid = os.fork()
    if pid == 0:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            copy = os.open(f"{path}.new", flags, 0o600)
            os.ftruncate(copy, os.fstat(ledger).st_size)
            for at, end in _find_data(ledger):
                while data := os.pread(ledger, min(1 << 20, end - at), at):
                    at += os.pwrite(copy, data, at)  # noqa: PLW2901
            os.fsync(copy)
            os.rename(f"{path}.new", path)
        finally:
            os._exit(0)
    poll = select.poll()
    pidfd = os.pidfd_open(pid)
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(_COPY_S * 1000):
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)
