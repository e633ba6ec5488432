"""The system calls that Python has no name for, by ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC_LOCKED: Final = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter's lock during a call, so that a cloned child has it as well."""
_SYSCALL: Final = _LIBC.syscall
_PRCTL: Final = _LIBC.prctl
"""Looked up before any fork: a child that looks them up first copies pages for 0.3 ms."""

_SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
_SYS_CLONE3: Final = 435  # the same on every architecture, Linux 5.3
_CLONE_PARENT: Final = 0x8000  # include/uapi/linux/sched.h
_CLONE_INTO_CGROUP: Final = 0x2_0000_0000  # Linux 5.7
_CLONE_ARGUMENTS: Final = struct.Struct("11Q")  # struct clone_args; the last one is the cgroup
# An older kernel, or a filter (seccomp) that does not know the call.
_NO_CLONE3: Final = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.E2BIG)
_SYS_OPENAT2: Final = 437  # the same on every architecture, Linux 5.6
_OPEN_HOW: Final = struct.Struct("QQQ")  # flags, mode, resolve
# RESOLVE_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS and _BENEATH of include/uapi/linux/openat2.h
_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08
_NO_MAGICLINKS: Final = 0x02
_AT_FDCWD: Final = -100
_SYS_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
_MPOL_PREFERRED: Final = 1  # include/uapi/linux/mempolicy.h
_MPOL_PREFERRED_MANY: Final = 5  # Linux 5.15
_MASK_BITS: Final = 1024
_MASK: Final = ctypes.c_ulong * (_MASK_BITS // (8 * ctypes.sizeof(ctypes.c_ulong)))
_SYS_KEYCTL: Final = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
_JOIN_SESSION_KEYRING: Final = 1  # include/uapi/linux/keyctl.h
_SETPERM: Final = 5
# KEY_POS_VIEW, KEY_POS_READ and KEY_POS_SEARCH: nobody writes to it, links it or changes this.
_LOOK_ONLY: Final = 0x0B000000
_PR_SET_DUMPABLE: Final = 4  # include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_KEEPCAPS: Final = 8
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_HEAD: Final = struct.pack("=Ii", 0x20080522, 0)  # include/uapi/linux/capability.h, 3
_CAPABILITIES: Final = struct.Struct("=6I")  # effective, permitted, inheritable; 32 more of each
_OF_READERS: Final = 1 << 2 | 1 << 19  # CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE
_PR_SET_CHILD_SUBREAPER: Final = 36  # Linux 3.4
HEARD: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that anchor and supervisor take in when they look, and that wait while one begins."""
IN_MODIFY: Final = 0x02
IN_Q_OVERFLOW: Final = 0x4000
IN_IGNORED: Final = 0x8000
_IN_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_SIGNAL: Final = struct.Struct("I124x")  # struct signalfd_siginfo
_DETACH: Final = 0x2 | 0x8  # MNT_DETACH and UMOUNT_NOFOLLOW of umount(2)
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred
_HIGHEST_FD: Final = 1 << 18
FALLOC_KEEP_SIZE: Final = 0x01
FALLOC_PUNCH_HOLE: Final = 0x02


def _check(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return answer


def clone_sibling(cgroup: int) -> int:
    """As ``os.fork``, but the child's parent is the caller's parent, and it is in the cgroup of
    this open directory.

    For processes with one thread. Where clone3 is missing, as in many containers, clone(2) does
    it, and the child moves itself into the cgroup (up to 15 ms).
    """
    flags = _CLONE_PARENT | _CLONE_INTO_CGROUP
    arguments = _CLONE_ARGUMENTS.pack(flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, cgroup)
    pid = int(_LIBC_LOCKED.syscall(_SYS_CLONE3, arguments, len(arguments)))
    if pid >= 0:
        return pid
    number = _SYS_CLONE.get(os.uname().machine)
    if number is None or ctypes.get_errno() not in _NO_CLONE3:
        return _check(pid, "clone3")
    flags = _CLONE_PARENT | signal.SIGCHLD
    pid = _check(int(_LIBC_LOCKED.syscall(number, flags, 0, 0, 0, 0)), "clone")
    if pid == 0:
        try:
            procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
            os.write(procs, b"0")
            os.close(procs)
        except OSError:
            os._exit(1)
    return pid


def close_others(*kept: int) -> None:
    """Close all but 0, 1, 2 and these."""
    for below, above in itertools.pairwise((2, *sorted(kept), _HIGHEST_FD)):
        os.closerange(below + 1, above)


def fork(work: Callable[[], object], *kept: int) -> int:
    """Have a child do this, with these descriptors and no others, and end; its number."""
    pid = os.fork()
    if pid == 0:
        try:
            close_others(*kept)
            work()
        finally:
            os._exit(1)
    return pid


def become_subreaper() -> None:
    """Orphans below this process become its children. Kept over ``execve``."""
    _check(_PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def hide_memory() -> None:
    """Only root may trace or dump this process, until ``execve``."""
    _check(_PRCTL(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def become_reader(uid: int, gid: int) -> None:
    """Be this user for good, who may still read what others have in /proc and in directories.

    Where the kernel refuses it (OSError) nothing may be done.
    """
    _check(_PRCTL(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    head, sets = _CAPABILITY_HEAD, ctypes.create_string_buffer(_CAPABILITIES.size)
    _check(_LIBC.capget(head, sets), "capget")
    kept = _CAPABILITIES.unpack(sets.raw)[1] & _OF_READERS
    _check(_LIBC.capset(head, _CAPABILITIES.pack(kept, kept, 0, 0, 0, 0)), "capset")
    _check(_PRCTL(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends; until ``execve``."""
    _check(_PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def new_keyring(*, look_only: bool) -> None:
    """A session keyring that is new and empty, not shared with the supervisor or another job.

    One that is for looks only can be neither written to nor linked. Where there are no keys, or a
    filter hides them from all, there is none; a user who has as many as one may (EDQUOT) keeps the
    one from before. Else OSError: the process would keep the supervisor's.
    """
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is None:
        return
    serial = int(_SYSCALL(number, _JOIN_SESSION_KEYRING, None))
    harmless = (errno.ENOSYS, errno.EPERM, *(() if look_only else (errno.EDQUOT,)))
    if serial < 0 and ctypes.get_errno() in harmless:
        return
    _check(serial, "keyctl")
    if look_only:
        _check(int(_SYSCALL(number, _SETPERM, serial, _LOOK_ONLY)), "keyctl")


def prefer_memory_nodes(nodes: Iterable[int]) -> bool:
    """Take memory from these NUMA nodes while they have some; False: there is no such call."""
    number, wanted = _SYS_SET_MEMPOLICY.get(os.uname().machine), sorted(nodes)
    if number is None or not wanted:
        return False
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    for policy, chosen in ((_MPOL_PREFERRED_MANY, wanted), (_MPOL_PREFERRED, wanted[:1])):
        mask = _MASK()
        for node in chosen:
            mask[node // bits] |= 1 << (node % bits)
        if _SYSCALL(number, policy, mask, _MASK_BITS + 1) == 0:
            return True
    return False


def open_beneath(parent: int, name: str, flags: int) -> int:
    """Open the one entry of this name in a directory: no link, and nothing that is mounted there.

    EXDEV: something is mounted there; ELOOP, ENOTDIR: it is no directory.
    """
    how = _OPEN_HOW.pack(flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE)
    fd = int(_SYSCALL(_SYS_OPENAT2, parent, os.fsencode(name), how, len(how)))
    if fd < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        if os.fstat(fd).st_dev != os.fstat(parent).st_dev:
            os.close(fd)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return _check(fd, name)


def open_without_magic(path: str, flags: int, mode: int) -> int:
    """As ``os.open``; ELOOP for a path that leads through a link of /proc to an open file."""
    how = _OPEN_HOW.pack(flags, mode, _NO_MAGICLINKS)
    fd = int(_SYSCALL(_SYS_OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how)))
    if fd < 0 and ctypes.get_errno() == errno.ENOSYS:
        return os.open(path, flags, mode)
    return _check(fd, path)


def detach_mount(parent: int, name: str) -> bool:
    """Unmount what is mounted on this entry of a directory, without asking its server; whether it
    is. Processes that use it go on.
    """
    path = f"/proc/self/fd/{parent}/".encode() + os.fsencode(name)
    return _LIBC.umount2(path, _DETACH) == 0  # type: ignore[no-any-return]  # ctypes has no types


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Allocate with a mode: keep the size, punch a hole."""
    call = _LIBC.fallocate64 if hasattr(_LIBC, "fallocate64") else _LIBC.fallocate
    size = ctypes.c_int64
    _check(call(fd, mode, size(offset), size(length)), "fallocate")


def watch_files() -> int:
    """A new inotify descriptor, without blocking."""
    return _check(_LIBC.inotify_init1(_IN_NONBLOCK_CLOEXEC), "inotify_init1")


def add_watch(inotify: int, path: str) -> int:
    """Watch a file for changes; its number in the events."""
    return _check(_LIBC.inotify_add_watch(inotify, os.fsencode(path), IN_MODIFY), path)


def name_process(name: str) -> None:
    """Set the name that ps(1) and pgrep(1) show, at most 15 bytes."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, name.encode()[:15])
        finally:
            os.close(fd)


def ignore_no_signal(*survived: signal.Signals) -> None:
    """Have handlers that do nothing for these and for what was ignored: ``execve`` hands on to the
    jobs what is ignored, and not what has a handler.
    """
    ignored = (n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN)
    for number in {*ignored, *survived}:
        signal.signal(number, lambda *_: None)


def open_signals(*numbers: int) -> int:
    """A descriptor (signalfd(2)) that is readable while such a signal waits for this process.

    They are blocked from now on, and so none is lost over ``execve`` in place. Other programs that
    are executed must set their mask.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    mask = struct.pack("=Q", sum(1 << (number - 1) for number in numbers))
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    return _check(_LIBC.signalfd(-1, mask.ljust(128, b"\0"), flags), "signalfd")


def read_signals(fd: int) -> set[int]:
    """The numbers of the signals that wait; they wait no longer."""
    found: set[int] = set()
    with contextlib.suppress(BlockingIOError):
        is_all = False
        while not is_all:
            data = os.read(fd, 32 * _SIGNAL.size)
            found.update(number for (number,) in _SIGNAL.iter_unpack(data))
            is_all = len(data) < 32 * _SIGNAL.size
    return found


def has_ended(pidfd: int, within_s: float = 0.0) -> bool:
    """Whether a process has ended, to its last thread; also where it is not taken in."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def peer_of(line: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end when it connected."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def receive(line: socket.socket, size: int) -> bytes | None:
    """The next word of a line that keeps words apart; empty: its end. None: there is none now.

    Where the other side closed its end with words unread, the error that tells so comes before what
    it had said itself (net/unix/af_unix.c: unix_release_sock; net/core/datagram.c).
    """
    for _ in range(2):
        try:
            return line.recv(size)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            continue
        except OSError:
            break
    return b""


def say(text: str) -> None:
    """One line on standard error, at once or not at all: nobody who reads it is waited for."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        fd = sys.stderr.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if poll.poll(0):
            line = text.encode(errors="backslashreplace")[: select.PIPE_BUF - 1]
            if os.isatty(fd):  # one with room for a byte takes a line in its own time
                again = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                with open(os.open(os.ttyname(fd), again), "wb", buffering=0) as terminal:
                    terminal.write(line + b"\n")
            else:
                os.write(fd, line + b"\n")
