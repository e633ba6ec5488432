"""The launcher in Python, and what a job's first process does until it executes the command.

The launcher is a small process beside the supervisor: it clones (CLONE_PARENT), so that the child
is the supervisor's own and the supervisor's memory is never copied. It may die at any moment; the
supervisor starts another. ``launcher.c`` does the same at a fifth of the cost, where it could be
compiled and jobs have cgroups (``orders``).

An order is one datagram, the key and where its holder is to listen, if any, with one or two
descriptors: the child's end of a socketpair, and the job's cgroup, if any. All else the child reads
from the socketpair: a record (``launch.pack``).

The child says on the socketpair, a JSON line each: ``{"pid", "ready"}``, or ``code``, ``of`` and
``error`` (``launch.explain``); with a holder ``{"pid"}`` before that. Before it does what may never
end it says what it means if it ends there, and ``{}`` afterwards. It waits for ``go``. The end of
the socketpair without it ends the child. With it, it appends ``EXEC`` to the ledger and executes;
the socketpair, which is close-on-exec, ends then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import resource
import signal
import socket
import stat
import struct
import sys
from typing import Final, NoReturn

from iodaemon.supervisor import ledger as records
from iodaemon.supervisor import protocol, syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.identity import (
    Account,
    AccountError,
    complete_environment,
    find_account,
    take_on,
)
from iodaemon.supervisor.launch import (
    ACCOUNT_WITHIN_S,
    GO,
    HOLDER,
    IS_LEDGER,
    LAUNCHER,
    LINKS,
    NOT_FOUND,
    NOT_RUNNABLE,
    REPORT,
    STRANGER,
    Launch,
    size_of,
    unpack,
    unsigned,
)
from iodaemon.supervisor.ledger import Key, Ledger, Record, parse_key
from iodaemon.supervisor.process_tree import Holder
from iodaemon.supervisor.protocol import Message
from iodaemon.supervisor.reap import parse_start_ticks, read_small

_ORDER_BYTES: Final = 128
_HIGHEST_FD: Final = 1 << 20
_REPORT_FD: Final = 3
_OUTPUT: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_OWN: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERYBODYS: Final = stat.S_ISVTX | stat.S_IWOTH


class LaunchError(Exception):
    """The command cannot be run; arguments as for ``launch.explain``."""

    def __init__(self, code: str, error: int | None = 0, of: str = "") -> None:
        super().__init__(code)
        self.said: Message = {"code": code, "error": error or 0, "of": of}


# -- the launcher --------------------------------------------------------------------------------


def main() -> None:
    """Arguments: descriptors of line and ledger, group that reads own files (-1: none), grace time
    of holders, s. Ends with the line.
    """
    syscalls.name_process(LAUNCHER)
    syscalls.ignore_no_signal(*syscalls.HEARD)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    *given, readers, grace_s = sys.argv[1:]
    line_fd, ledger_fd = kept = [
        fcntl.fcntl(int(word), fcntl.F_DUPFD_CLOEXEC, _REPORT_FD + 1) for word in given
    ]
    line = socket.socket(fileno=line_fd)
    for below, above in itertools.pairwise((2, *sorted(kept), _HIGHEST_FD)):
        os.closerange(below + 1, above)  # no job inherits any other
    os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # keeps _REPORT_FD free for a job's report
    while True:
        order, fds = _receive(line)
        if not order:
            return
        reach("launcher.received")
        job_line, *cgroup = fds
        try:
            pid = syscalls.clone_sibling(cgroup[0] if cgroup else None)
        except OSError as error:
            _say(job_line, {"code": "no_process", "error": error.errno})
            pid = -1
        if pid == 0:
            line.close()
            key, _, address = order.decode().partition(" ")
            _be_the_child(
                parse_key(key), job_line, ledger_fd, int(readers), float(grace_s), address
            )
        reach("launcher.cloned")
        for fd in fds:
            os.close(fd)


def _receive(line: socket.socket) -> tuple[bytes, list[int]]:
    size = socket.CMSG_SPACE(3 * 4)
    data, parts, _, _ = line.recvmsg(_ORDER_BYTES, size, socket.MSG_CMSG_CLOEXEC)
    fds = [fd for _, _, part in parts for (fd,) in struct.iter_unpack("i", part)]
    return data, fds


# -- the child -----------------------------------------------------------------------------------


def _be_the_child(
    key: Key, job_line: int, ledger: int, readers: int, grace_s: float, address: str
) -> NoReturn:
    """Be the job's first process; without a cgroup, be its holder and fork that."""
    try:
        if address:
            _hold(key, job_line, ledger, grace_s, address)
        become_job(key, job_line, ledger, readers)
    finally:
        os._exit(1)


def _hold(key: Key, job_line: int, ledger_fd: int, grace_s: float, address: str) -> None:
    """Returns in the job's first process only."""
    syscalls.name_process(HOLDER)
    os.setsid()
    syscalls.become_subreaper()
    ledger = Ledger(ledger_fd, from_end=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind("\0" + address)
        listener.listen(4)
        pid = os.fork()
    except OSError as error:
        _say(job_line, {"code": "no_process", "error": error.errno})
        os._exit(1)
    if pid == 0:
        listener.close()
        _say(job_line, {"pid": os.getpid()})
        return
    os.close(job_line)
    with contextlib.suppress(OSError):
        os.chdir("/")
    Holder(ledger, key, listener, grace_s).run()


def become_job(key: Key, line: int, ledger: int, readers: int) -> NoReturn:
    """One straight path from clone to ``execve``; every step that may wait is before ``ready``."""
    pid = os.getpid()
    try:
        reach("child.begun")
        launch = unpack(_read_record(line))
        os.setsid()
        _set_oom_and_nice(launch.nice)
        _confine(launch)
        account = None if launch.uid is None else _find_account_in_time(line, launch.uid)
        output = _open_own_files(launch, readers)
        environment = launch.environment
        if account is not None:
            syscalls.new_keyring(look_only=True)
            _sign_in(account.uid)
            take_on(account)
            syscalls.hide_memory()
            syscalls.new_keyring(look_only=False)
            environment = complete_environment(environment, account)
        os.umask(launch.umask)
        _enter(launch.directory)
        _open_files(launch, output, ledger)
        ticks = parse_start_ticks(read_small("/proc/self/stat"))
        reach("child.prepared")
        _say(line, {"pid": pid, "ready": True})
        if os.read(line, len(GO)) != GO:
            os._exit(0)
        reach("child.let_go")
        record = Record(records.EXEC, key, pid, values=(ticks, 0, 0, 0, records.now_us()))
        if os.write(ledger, record.pack()) != records.RECORD_BYTES:
            _fail(line, {"code": "ledger_full"})
        reach("child.recorded")
        for limit, pair in launch.rlimits.items():  # last: none of them is to hurt what is above
            resource.setrlimit(limit, pair)
    except LaunchError as error:
        _fail(line, error.said)
    except AccountError as error:
        _fail(line, {"code": error.code})
    except OSError as error:
        _fail(line, {"code": "system", "error": error.errno})
    try:
        os.execvpe(launch.command[0], launch.command, environment)  # noqa: S606
    except OSError as error:
        is_there = "/" in launch.command[0] and os.path.exists(launch.command[0])
        of = "interpreter" if error.errno == errno.ENOENT and is_there else ""
        _say(line, {"code": "exec", "error": error.errno, "of": of})
        os._exit(NOT_FOUND if error.errno == errno.ENOENT else NOT_RUNNABLE)


def _find_account_in_time(line: int, uid: int) -> Account:
    """A lookup cannot be interrupted: at the deadline the kernel ends this process."""
    _say(line, {"code": "no_answer"})
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(ACCOUNT_WITHIN_S)
    account = find_account(uid)
    signal.alarm(0)
    _say(line, {})
    return account


def _say(line: int, message: Message) -> None:
    with contextlib.suppress(OSError):
        os.write(line, protocol.encode(message))


def _fail(line: int, said: Message) -> NoReturn:
    _say(line, said)
    os._exit(1)


def _read_record(line: int) -> bytes:
    """The end of the socketpair ends the process."""
    data = bytearray()
    while len(data) < size_of(data):
        part = os.read(line, 1 << 16)
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def _set_oom_and_nice(nice: int) -> None:
    """The supervisor may be spared when memory runs out, and have another niceness."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)
    with contextlib.suppress(OSError):  # a user may not go below
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def _confine(launch: Launch) -> None:
    try:
        if launch.cpus:
            os.sched_setaffinity(0, launch.cpus)
    except OSError as error:
        raise LaunchError("cpus", error.errno) from error
    syscalls.prefer_memory_nodes(launch.memory_nodes)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = launch.open_files if hard == resource.RLIM_INFINITY else min(launch.open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for limit, pair in launch.rlimits.items():  # may be raised by root only
        soft, hard = resource.getrlimit(limit)
        try:
            resource.setrlimit(limit, (soft, max(hard, pair[1], key=unsigned)))
        except (OSError, ValueError) as error:
            raise LaunchError("limit", getattr(error, "errno", errno.EPERM)) from error


def _sign_in(uid: int) -> None:
    """The kernel's audit says whose all that the job does is; harmless where there is none."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/loginuid", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(uid).encode())
        finally:
            os.close(fd)


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise LaunchError("directory", error.errno) from error


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
    try:
        try:
            fd = os.open(path, _OWN, mode)
        except FileExistsError:  # of an earlier try that never ran
            os.unlink(path)
            fd = os.open(path, _OWN, mode)
        except FileNotFoundError:  # its disk was full as the anchor began
            os.umask(0o027)
            os.makedirs(directory := os.path.dirname(path))
            os.chown(directory, -1, readers)
            fd = os.open(path, _OWN, mode)
        if uid is not None:
            os.fchown(fd, uid, readers)
    except OSError as error:
        raise LaunchError("output", error.errno, "own") from error
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
    try:
        _refuse_strangers(path, of, None)
        fd = syscalls.open_without_magic(path, _OUTPUT, 0o666)
        found = os.fstat(fd)
        _refuse_strangers(path, of, found)
        if os.path.samestat(found, os.fstat(ledger)):
            raise LaunchError("output", IS_LEDGER, of)
        if stat.S_ISREG(found.st_mode):
            os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
    except OSError as error:
        raise LaunchError("output", error.errno, of) from error
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
