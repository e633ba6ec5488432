"""The launcher in Python: what ``launcher.c`` does, where that could not be compiled.

Arguments, orders, the record and what is said are the same, at five times the cost. It differs in
two places. A holder does not execute it, but forks (``become_first``): no interpreter begins for
each job, and none reads the modules of a release that was installed meanwhile. And Python hears of
no signal in a lookup: before one the child says what it means if it ends there, and ``{}`` after.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NoReturn

from iodaemon.supervisor import protocol, syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.launch import (
    ACCOUNT_WITHIN_S,
    IS_LEDGER,
    LAUNCHER,
    LINKS,
    NOT_FOUND,
    NOT_RUNNABLE,
    REPORT,
    STRANGER,
    Launch,
    unpack,
    unsigned,
)  # fmt: skip
from iodaemon.supervisor.ledger import RECORD_BYTES
from iodaemon.supervisor.protocol import Message
from iodaemon.supervisor.reap import parse_start_ticks, read_small

if TYPE_CHECKING:
    import pwd

_FD_BYTES: Final = socket.CMSG_SPACE(2 * 4)
_REPORT_FD: Final = 3
_OUTPUT: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_OWN: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERYBODYS: Final = stat.S_ISVTX | stat.S_IWOTH
_EXPIRY: Final = 7
"""Place in /etc/shadow of the day, since 1970, from which an account is not used (shadow(5))."""
_SIZE: Final = struct.Struct("<I")


class LaunchError(Exception):
    """The command cannot be run; arguments as for ``launch.explain``."""

    def __init__(self, code: str, error: int = 0, of: str = "") -> None:
        super().__init__(code)
        self.said: Message = {"code": code, "error": error, "of": of}


@contextlib.contextmanager
def _told_as(code: str, of: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # of setrlimit, which may not be raised
        raise LaunchError(code, getattr(error, "errno", None) or errno.EPERM, of) from error


def main() -> None:
    """Arguments: descriptors of line and ledger, group that reads own files (-1: none)."""
    line_fd, ledger = _begin(int(sys.argv[1]), int(sys.argv[2]))
    line, readers = socket.socket(fileno=line_fd), int(sys.argv[3])
    while True:
        order, parts, _, _ = line.recvmsg(1, _FD_BYTES, socket.MSG_CMSG_CLOEXEC)
        if not order:
            return
        reach("launcher.received")
        job_line, cgroup = fds = struct.unpack("2i", parts[0][2])
        try:
            pid = syscalls.clone_sibling(cgroup)
        except OSError as error:
            _say(job_line, {"code": "no_process", "error": error.errno})
            pid = -1
        if pid == 0:
            try:
                line.close()
                _become_job(job_line, ledger, readers)
            finally:
                os._exit(1)
        reach("launcher.cloned")
        for fd in fds:
            os.close(fd)


def become_first(job_line: int, ledger: int, readers: int) -> NoReturn:
    """Be the first process of a job, as the fork of its holder."""
    job_line, ledger = _begin(job_line, ledger)
    _become_job(job_line, ledger, readers)


def _begin(*given: int) -> list[int]:
    """Keep nothing of the parent but these descriptors; returns their new numbers."""
    syscalls.name_process(LAUNCHER)
    syscalls.ignore_no_signal(*syscalls.HEARD)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _REPORT_FD + 1) for fd in given]
    syscalls.close_others(*kept)  # no job inherits any other
    os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # keeps _REPORT_FD free for a job's report
    return kept


def _become_job(line: int, ledger: int, readers: int) -> NoReturn:
    """One straight path to ``execve``; every step that may wait is before it is ready."""
    try:
        reach("child.begun")
        launch = unpack(_read_record(line))
        os.setsid()
        _confine(launch)
        account = None if launch.uid is None else _find_account_in_time(line, launch.uid)
        output = _open_own_files(launch, readers)
        environment = launch.environment
        if account is not None:
            _take_on(*account)
            environment = {**_describe(account[0]), **environment}
        os.umask(launch.umask)
        with _told_as("directory"):
            os.chdir(launch.directory)
        _open_files(launch, output, ledger)
        ticks = parse_start_ticks(read_small("/proc/self/stat"))
        reach("child.prepared")
        _say(line, {"pid": os.getpid(), "ticks": ticks})
        exec_record = os.read(line, RECORD_BYTES)
        if len(exec_record) != RECORD_BYTES:
            os._exit(0)
        reach("child.let_go")
        if os.write(ledger, exec_record) != RECORD_BYTES:
            _say(line, {"code": "ledger_full"})
            os._exit(1)
        reach("child.recorded")
        for limit, pair in launch.rlimits.items():  # last: none of them is to hurt what is above
            resource.setrlimit(limit, pair)
    except LaunchError as error:
        _say(line, error.said)
        os._exit(1)
    except OSError as error:
        _say(line, {"code": "system", "error": error.errno})
        os._exit(1)
    try:
        os.execvpe(launch.command[0], launch.command, environment)  # noqa: S606
    except OSError as error:
        is_there = "/" in launch.command[0] and os.path.exists(launch.command[0])
        of = "interpreter" if error.errno == errno.ENOENT and is_there else ""
        _say(line, {"code": "exec", "error": error.errno, "of": of})
        os._exit(NOT_FOUND if error.errno == errno.ENOENT else NOT_RUNNABLE)


def _find_account_in_time(line: int, uid: int) -> tuple[pwd.struct_passwd, list[int]]:
    """Whom it is to become, and the groups. At the deadline the kernel ends this process."""
    import pwd  # only the job's own process needs it

    _say(line, {"code": "no_answer"})
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ACCOUNT_WITHIN_S)
    try:
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError) as error:
        raise LaunchError("no_account") from error
    if _has_expired(user.pw_name):
        raise LaunchError("expired")
    signal.alarm(0)
    _say(line, {})
    return user, groups


def _has_expired(name: str) -> bool:
    """By the expiry date alone: a locked password (``!``, ``*``) is no locked account."""
    with contextlib.suppress(OSError), open("/etc/shadow", "rb") as file:
        for line in file:
            fields = line.split(b":")
            if fields[0] == os.fsencode(name) and len(fields) > _EXPIRY:
                return fields[_EXPIRY].isdigit() and time.time() // 86400 >= int(fields[_EXPIRY])
    return False


def _take_on(user: pwd.struct_passwd, groups: list[int]) -> None:
    """Be this user and nobody else, for good: groups first, only root may set them."""
    syscalls.new_keyring(look_only=True)
    _write_file("/proc/self/loginuid", user.pw_uid)
    os.setgroups(groups)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    syscalls.hide_memory()
    syscalls.new_keyring(look_only=False)


def _describe(user: pwd.struct_passwd) -> dict[str, str]:
    """What every program expects in its environment."""
    return {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell or "/bin/sh",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }


def _say(line: int, message: Message) -> None:
    with contextlib.suppress(OSError):
        os.write(line, protocol.encode(message))


def _read_record(line: int) -> bytes:
    """The end of the socketpair ends the process."""
    data = bytearray()
    while len(data) < _SIZE.size or len(data) < _SIZE.unpack_from(data)[0]:
        part = os.read(line, 1 << 16)
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def _write_file(path: str, value: int) -> None:
    """Where there is one, and it may be."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)


def _confine(launch: Launch) -> None:
    _write_file("/proc/self/oom_score_adj", 0)  # the supervisor may be spared
    with contextlib.suppress(OSError):  # a user may not go below its niceness
        os.setpriority(os.PRIO_PROCESS, 0, launch.nice)
    if launch.cpus:
        with _told_as("cpus"):
            os.sched_setaffinity(0, launch.cpus)
    syscalls.prefer_memory_nodes(launch.memory_nodes)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = launch.open_files if hard == resource.RLIM_INFINITY else min(launch.open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for limit, pair in launch.rlimits.items():  # may be raised by root only
        soft, hard = resource.getrlimit(limit)
        with _told_as("limit"):
            resource.setrlimit(limit, (soft, max(hard, pair[1], key=unsigned)))


def _open_own_files(launch: Launch, readers: int) -> int:
    """For standard output that has no path, and for the report: files of the user's, which the
    daemon's group may read, in a directory of root's.
    """
    if launch.report:
        os.dup2(_make_file(launch.own + REPORT, launch.uid, readers), _REPORT_FD)
    if launch.stdout is not None or not launch.own:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return _make_file(launch.own, launch.uid, readers)


def _make_file(path: str, uid: int | None, readers: int) -> int:
    """Nothing is taken over that lies there from another attempt."""
    mode = 0o600 if readers < 0 else 0o640
    os.umask(0)
    with _told_as("output", "own"):
        try:
            fd = os.open(path, _OWN, mode)
        except FileExistsError:  # of an earlier try that never ran
            os.unlink(path)
            fd = os.open(path, _OWN, mode)
        except FileNotFoundError:  # its disk was full as the anchor began
            os.mkdir(directory := os.path.dirname(path), 0o750)
            os.chown(directory, -1, readers)
            fd = os.open(path, _OWN, mode)
        if uid is not None:
            os.fchown(fd, uid, readers)
    return fd


def _open_files(launch: Launch, output: int, ledger: int) -> None:
    """Standard input is empty. Until all is open nothing of the supervisor's is 0, 1 or 2."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in range(3):
        os.dup2(null, fd)
    out = output if launch.stdout is None else _open_output(launch.stdout, "stdout", ledger)
    if launch.stderr is None or launch.stderr == launch.stdout:
        err = out
    else:
        err = _open_output(launch.stderr, "stderr", ledger)
    os.dup2(out, 1)
    os.dup2(err, 2)


def _open_output(path: str, of: str, ledger: int) -> int:
    """As a shell of this user would open it, empty, with differences.

    A descriptor's path (/dev/stdout) is refused, with ELOOP: it would be the launcher's. So is a
    pipe that nobody reads: the open would wait. In a directory where everybody may put files
    (/tmp), what somebody else put there is refused, as where fs.protected_symlinks and its siblings
    are set.
    """
    with _told_as("output", of):
        _refuse_strangers(path, of, None)
        fd = syscalls.open_without_magic(path, _OUTPUT, 0o666)
        found = os.fstat(fd)
        _refuse_strangers(path, of, found)
        if os.path.samestat(found, os.fstat(ledger)):
            raise LaunchError("output", IS_LEDGER, of)
        if stat.S_ISREG(found.st_mode):
            os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
    return fd


def _refuse_strangers(path: str, of: str, opened: os.stat_result | None) -> None:
    directory = os.stat(os.path.dirname(path) or ".")
    if directory.st_mode & _EVERYBODYS != _EVERYBODYS:
        return
    try:
        named = os.lstat(path)
    except FileNotFoundError:
        if opened is None:
            return
        raise
    is_link = stat.S_ISLNK(named.st_mode)
    is_swapped = not is_link and opened is not None and not os.path.samestat(named, opened)
    if named.st_uid not in (os.geteuid(), directory.st_uid) or is_swapped:
        raise LaunchError("output", STRANGER, of)
    if stat.S_ISREG(named.st_mode) and named.st_nlink > 1:
        raise LaunchError("output", LINKS, of)
