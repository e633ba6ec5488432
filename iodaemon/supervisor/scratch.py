"""Scratch directories and own output files of jobs, and disks that are looked at, by forked helpers
with a deadline.

``DISK/.iodaemon`` is the caller's own, mode 0711; below it each directory is its user's, 0700. All
in it is hostile: links, mounts, names, depth, and whoever is at work there meanwhile. So removal
is one name below an open directory at a time (openat2), files are not looked at, and what is
mounted is kept, unless its user mounted it by FUSE: that is unmounted. Whoever is in a directory
makes nothing there any more once it is entered: it is then the caller's. A helper closes
what it opened by its end. One that a dead disk keeps is killed and not waited for; two at most wait
for one disk, and a look is answered without one then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import time
from collections.abc import Callable
from typing import Final

from iodaemon.supervisor import disk_trouble, protocol, syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.launch import REPORT
from iodaemon.supervisor.ledger import let_read, parse_key
from iodaemon.supervisor.line import Loop
from iodaemon.supervisor.protocol import BadInputError, Message

STORE: Final = ".iodaemon"
DEADLINE_S: Final = 20.0
"""Of one helper. A removal that is not done then goes on when it is asked for again."""
_LOOK_S: Final = 5.0
"""Likewise, of one that only looks at a disk."""
_WORK_S: Final = 15.0
"""For one turn of measuring or removing."""
_MOST_ON_A_DISK: Final = 2
_MOST_WAITING: Final = 4096
_DEEPEST: Final = 32
"""Directories open at one time; what lies deeper is moved up to the top before it is removed."""
_DEEPEST_MEASURED: Final = 512
_BLOCK_BYTES: Final = 512  # of st_blocks, inode(7)
_WRITE_S: Final = 2.0
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_CHANGED_MEANWHILE: Final = (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
_MOUNTED: Final = (errno.EBUSY, errno.EXDEV)


class ScratchError(Exception):
    """It cannot be done; one line that says why.

    ``is_disk``: the disk is of no use to anybody now, and the line says what it has or is, without
    its path (``disk_trouble``).
    """

    def __init__(self, problem: str, *, is_disk: bool = False) -> None:
        super().__init__(problem)
        self.is_disk = is_disk


class _Helper:
    def __init__(self, pidfd: int, pipe: int, wish: Message) -> None:
        self.pidfd, self.pipe, self.wish = pidfd, pipe, wish
        self.said = b""
        self.is_told = False
        """Whether it was answered for; it is kept until it ends."""


class Desk:
    """Takes wishes, runs helpers, answers.

    Args:
        uids: the least and the highest whose directories are made.
        outputs: directory of the files of jobs that name none; None: there are none.
    """

    def __init__(
        self,
        loop: Loop,
        send: Callable[[Message], None],
        uids: tuple[int, int],
        outputs: str | None,
    ) -> None:
        self._loop, self._send, self._uids = loop, send, uids
        self._outputs = outputs
        self._waiting: list[Message] = []
        self._helpers: list[_Helper] = []

    @property
    def is_busy(self) -> bool:
        return any(not helper.is_told for helper in self._helpers) or bool(self._waiting)

    def ask(self, wish: Message) -> None:
        """One answer follows: ``{"scratch": id, "done": bool}``, and what ``do`` gives.

        look: ``found`` (``disk_trouble.look``) and, where there is a disk, ``mounts``, a mountinfo
        of which each byte is a character. make: ``filesystem``, the number of the disk's device
        until the next boot. With it, what is not there is not taken for removed while another disk
        is mounted. measure: ``used_bytes``, and ``is_all``, False if it is at least so much. One
        that is not done has ``problem`` and ``is_disk`` (``ScratchError``); an empty problem: there
        was no time, or no process; it is asked again.

        Raises:
            BadInputError, ValueError: it names no such thing.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise BadInputError("too many wait")
        do = wish.get("do")
        if do == "discard":
            if self._outputs is None:
                raise BadInputError("jobs have no output files here")
            wish = {**wish, "disk": self._outputs, "name": str(parse_key(wish.get("key")))}
        elif do in ("look", "make", "measure", "remove"):
            self._check(wish)
            wish = {**wish, "is_shared": self._uids[0] != self._uids[1]}
        else:
            raise BadInputError("scratch is neither looked at, made, measured nor removed")
        self._waiting.append(wish)
        self._loop.call_in(0.0, self, self._work_off)

    def _check(self, wish: Message) -> None:
        disk = protocol.field(wish, "disk", str, "")
        if disk[:1] != "/" or not protocol.are_words([disk]):
            raise BadInputError("disk is no path")
        if wish["do"] == "look":
            return
        name = protocol.field(wish, "name", str, "")
        is_plain = name.isascii() and name.replace("-", "").replace(".", "").isalnum()
        if not is_plain or name.startswith(".") or len(name) > 64:
            raise BadInputError("name is not plain")
        protocol.number(wish, "filesystem", 0, (1 << 64) - 1)
        protocol.number(wish, "gid", 0, (1 << 32) - 2)
        if protocol.number(wish, "uid", *self._uids) is None and wish["do"] == "make":
            raise BadInputError("uid is missing")

    def _work_off(self) -> None:
        """Start what waits for no helper on its disk, and answer looks at what keeps two."""
        for wish in list(self._waiting):
            on_disk = [each for each in self._helpers if each.wish["disk"] == wish["disk"]]
            is_dead = sum(helper.is_told for helper in on_disk) >= _MOST_ON_A_DISK
            if len(on_disk) < _MOST_ON_A_DISK:
                try:
                    self._start(wish)
                except OSError:
                    self._answer(wish, _problem(wish, ""))
            elif is_dead and wish["do"] == "look":
                self._answer(wish, _silence(wish))
            else:
                continue
            self._waiting.remove(wish)

    def _start(self, wish: Message) -> None:
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pidfd = os.pidfd_open(syscalls.fork(lambda: _work(wish, write), write))
        except OSError:
            os.close(read)
            raise
        finally:
            os.close(write)
        helper = _Helper(pidfd, read, wish)
        self._helpers.append(helper)
        self._loop.add(helper.pipe, lambda: self._hear(helper))
        within_s = _LOOK_S if wish["do"] == "look" else DEADLINE_S
        self._loop.call_in(within_s, helper, lambda: self._give_up(helper))

    def _give_up(self, helper: _Helper) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(helper.pidfd, signal.SIGKILL)
        helper.is_told = True
        self._answer(helper.wish, _silence(helper.wish))
        self._work_off()

    def _hear(self, helper: _Helper) -> None:
        try:
            data = os.read(helper.pipe, 4096)
        except BlockingIOError:  # of one before, which had this number
            return
        helper.said += data
        if data:
            return
        self._loop.drop(helper)
        self._loop.remove(helper.pipe)
        os.close(helper.pipe)
        os.close(helper.pidfd)
        self._helpers.remove(helper)
        if not helper.is_told:
            try:
                answer = protocol.decode(helper.said)
            except BadInputError:
                answer = _problem(helper.wish, "")
            self._answer(helper.wish, answer)
        self._work_off()

    def _answer(self, wish: Message, answer: Message) -> None:
        self._send({"scratch": wish.get("id"), **answer})


def _problem(wish: Message, problem: str, *, is_disk: bool = False) -> Message:
    """An answer. No job's disk is the one on which output files are."""
    if is_disk and wish["do"] == "discard":
        problem, is_disk = disk_trouble.sentence(wish["disk"], problem), False
    return {"done": False, "problem": problem, "is_disk": is_disk}


def _silence(wish: Message) -> Message:
    return _problem(wish, disk_trouble.SILENT, is_disk=True)


def _work(wish: Message, pipe: int) -> None:
    """The helper: do it, and say so."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    syscalls.name_process("iod-scratch")
    try:
        answer = _do(wish)
    except ScratchError as error:
        answer = _problem(wish, str(error), is_disk=error.is_disk)
    except OSError as error:
        answer = _problem_of(wish, error)
    os.set_blocking(pipe, True)
    told = protocol.encode(answer)
    while told:
        told = told[os.write(pipe, told) :]


def _do(wish: Message) -> Message:
    disk, name, filesystem = wish["disk"], wish.get("name", ""), wish.get("filesystem")
    until_s = time.monotonic() + _WORK_S
    match wish["do"]:
        case "look":
            return _look(disk, is_shared=wish["is_shared"])
        case "make":
            device = make(disk, name, wish["uid"], wish.get("gid"), filesystem)
            return {"done": True, "filesystem": device}
        case "measure":
            used, is_all = measure(disk, name, until_s)
            return {"done": True, "used_bytes": used, "is_all": is_all}
        case "remove":
            is_done = remove(disk, name, filesystem, until_s)
            return {"done": True} if is_done else _problem(wish, "")
    for path in (os.path.join(disk, name), os.path.join(disk, name + REPORT)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return {"done": True}


def _look(disk: str, *, is_shared: bool) -> Message:
    found = disk_trouble.look(disk, is_shared=is_shared)
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = "" if found["problem"] else file.read().decode("latin-1")
    return {"done": True, "found": found, "mounts": mounts}


def _problem_of(wish: Message, error: OSError) -> Message:
    """The disk's fault, or that of one name on it."""
    disk = wish["disk"]
    if trouble := disk_trouble.of_error(error):
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(OSError):
                trouble = disk_trouble.of_room(os.statvfs(disk)) or trouble
        return _problem(wish, trouble, is_disk=True)
    reason = error.strerror or str(error)
    if error.errno in _MOUNTED:
        reason = "something else is mounted there; unmount it"
    elif error.errno in (errno.ELOOP, errno.ENOTDIR):
        reason = "it is no directory; move it away"
    return _problem(wish, f"{os.path.join(disk, STORE, wish.get('name', ''))}: {reason}")


def make(disk: str, name: str, uid: int, gid: int | None, filesystem: int | None) -> int:
    """Make the directory; harmless where it is there already. The device's number."""
    store = _open_store(disk, filesystem, is_made=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=store)
    reach("scratch.made")
    fd = syscalls.open_beneath(store, name, _DIRECTORY)
    os.fchown(fd, uid, -1 if gid is None else gid)
    os.fchmod(fd, 0o700)
    return os.fstat(fd).st_dev


def _open_store(disk: str, filesystem: int | None = None, *, is_made: bool = False) -> int:
    """The store of a disk, which nobody but the caller can change. Raises ScratchError."""
    owner = os.geteuid()
    try:
        top = os.open(disk, _DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ScratchError(disk_trouble.of_way(error), is_disk=True) from error
    found, sizes = os.fstat(top), os.fstatvfs(top)
    if not is_made:
        trouble = disk_trouble.of_owner(disk, found, owner)
    elif sizes.f_flag & os.ST_RDONLY:
        trouble = disk_trouble.READ_ONLY
    elif filesystem not in (None, found.st_dev):
        trouble = disk_trouble.REPLACED
    else:
        trouble = disk_trouble.of_owner(disk, found, owner)
        trouble = trouble or disk_trouble.of_right(disk, owner) or disk_trouble.of_room(sizes)
    if trouble:
        raise ScratchError(trouble, is_disk=True)
    if is_made:
        with contextlib.suppress(FileExistsError):
            os.mkdir(STORE, 0o711, dir_fd=top)
    try:
        store = syscalls.open_beneath(top, STORE, _DIRECTORY)
    except FileNotFoundError as error:
        trouble = f"has no {STORE}; mount what belongs there"
        raise ScratchError(trouble, is_disk=True) from error
    found, path = os.fstat(store), os.path.join(disk, STORE)
    if found.st_uid != owner:  # it may contain anything: to give it away is not enough
        raise ScratchError(f"{path} was made by another user; move it away")
    if found.st_mode & disk_trouble.OPEN:
        raise ScratchError(f"{path} {disk_trouble.not_ours(path, found, owner)}")
    if is_made:
        os.fchmod(store, 0o711)
    return store


def measure(disk: str, name: str, until_s: float) -> tuple[int, bool]:
    """Bytes of the disk that are in the directory, each file once; and whether that is all."""
    top = syscalls.open_beneath(_open_store(disk), name, _DIRECTORY)
    used, is_all, linked = 0, True, set[int]()
    stack = [(top, os.scandir(top))]
    while stack:
        if time.monotonic() > until_s:
            return used, False
        fd, entries = stack[-1]
        try:
            entry = next(entries, None)
            if entry is None:
                entries.close()
                os.close(fd)
                stack.pop()
                continue
            found = entry.stat(follow_symlinks=False)
            is_directory = stat.S_ISDIR(found.st_mode)
            is_new = is_directory or found.st_nlink == 1 or found.st_ino not in linked
            if is_directory and len(stack) < _DEEPEST_MEASURED:
                below = syscalls.open_beneath(fd, entry.name, _DIRECTORY)
                stack.append((below, os.scandir(below)))
            elif is_directory:
                is_all = False
            elif found.st_nlink > 1:
                linked.add(found.st_ino)
            used += found.st_blocks * _BLOCK_BYTES if is_new else 0
        except OSError as error:
            is_all &= error.errno == errno.ENOENT
    return used, is_all


def remove(disk: str, name: str, filesystem: int | None, until_s: float) -> bool:
    """Remove the directory and all below it; False: the time is up, and there is more.

    Raises ScratchError: something in it cannot be removed, or its disk is not mounted.
    """
    store = _open_store(disk)
    # A disk that is mounted again may have another number: that alone says nothing.
    # By its name only: what is mounted on it may never answer.
    if name not in os.listdir(store) and filesystem not in (None, os.fstat(store).st_dev):
        text = "another file system is there now; mount the one that it is on"
        raise ScratchError(f"{os.path.join(disk, STORE, name)}: {text}")
    _unmount_fuse(store, name)
    try:
        top = syscalls.open_beneath(store, name, _DIRECTORY)
    except FileNotFoundError:
        return True
    _take_over(top)
    while time.monotonic() < until_s:
        removed, problem = _empty(top, until_s)
        try:
            os.rmdir(name, dir_fd=store)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _MOUNTED:
                raise ScratchError(f"something is mounted on {name}; unmount that") from error
        else:
            return True
        if not removed:
            raise ScratchError(problem or "somebody makes files in it; end that process")
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
            if entry and error.errno in _MOUNTED and _unmount_fuse(fd, entry.name):
                removed += 1  # the next round removes what it was mounted on
            elif error.errno not in _CHANGED_MEANWHILE and not problem:
                what = entry.name if entry else name
                problem = f"{what!a} in it cannot be removed ({error.strerror})"
                if error.errno in _MOUNTED:
                    problem = f"something is mounted at {what!a} in it; unmount that"
    return removed, problem


def _unmount_fuse(parent: int, name: str) -> bool:
    """Unmount what a user mounted there by FUSE; nobody else may change names in ``parent``."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            with open(f"/proc/self/fdinfo/{fd}") as file:
                number = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
        finally:
            os.close(fd)
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            mount = next(line for line in file if line.split(None, 1)[0] == number)
    except (OSError, StopIteration):
        return False
    kind, _, options = mount.split(" - ")[1].split()[:3]
    is_users = kind.split(".")[0] == "fuse" and "user_id=0," not in f"{options},"
    return is_users and syscalls.detach_mount(parent, name)


def write_in_time(path: str, text: bytes, gid: int | None = None) -> None:
    """Write a file before the machine is shut down, or give up after ``_WRITE_S``."""

    def write() -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{path}.new", flags, 0o600), "wb") as file:
            let_read(file.fileno(), gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{path}.new", path)

    pid = syscalls.fork(write)
    pidfd = os.pidfd_open(pid)
    if not syscalls.has_ended(pidfd, _WRITE_S):
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)
