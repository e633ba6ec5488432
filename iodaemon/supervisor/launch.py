"""The launcher, and what a job's first process does until it executes the command.

The launcher is a small process beside the supervisor: it clones (CLONE_PARENT), so that the child
is the supervisor's own and the supervisor's memory is never copied. It may die at any moment; the
supervisor starts another. An order is one datagram, the key and where its holder is to listen, if
any, with one or two descriptors: the child's end of a socketpair, and the job's cgroup, if any. All
else the child reads from the socketpair: the daemon's own line, which the supervisor hands on as
it is.

The child says on the socketpair, a JSON line each: ``{"pid"}`` first, then ``{"ready"}`` or
``{"code", "problem", "is_lasting"}``. Before it does what may never end it says what it means if
it ends there, and ``{}`` afterwards. It waits for ``go``. The end of the socketpair without it
ends the child. With it, it appends ``EXEC`` to the ledger and executes; the socketpair, which is
close-on-exec, ends then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
from typing import Final, NamedTuple, NoReturn

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
from iodaemon.supervisor.ledger import Key, Ledger, Record, parse_key
from iodaemon.supervisor.process_tree import Holder
from iodaemon.supervisor.protocol import BadInputError, Message, field, number, numbers
from iodaemon.supervisor.reap import parse_start_ticks, read_small, read_state

LAUNCHER: Final = "iod-launcher"
HOLDER: Final = "iod-holder"
NOT_FOUND: Final = 127
NOT_RUNNABLE: Final = 126
LENGTH: Final = struct.Struct("<I")
"""Before the daemon's line on the socketpair."""
GO: Final = b"go"
_ORDER_BYTES: Final = 128
_OPEN_FILES: Final = 1024
_HIGHEST_FD: Final = 1 << 20
REPORT: Final = ".report"
"""Behind the key, the name of a file beside the output file."""
OUTPUTS_MODE: Final = 0o711
_REPORT_FD: Final = 3
_ACCOUNT_WITHIN_S: Final = 10
"""For the databases to say who a user is. sssd gives up on its servers within about 10 s."""
_NO_ANSWER: Final = protocol.encode({
    "code": "no_answer",
    "problem": "the account databases (nsswitch.conf) do not answer "
    f"within {_ACCOUNT_WITHIN_S} s",
    "is_lasting": False,
})  # fmt: skip
_ANSWERED: Final = protocol.encode({})
_OUTPUT: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_OWN: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERYBODYS: Final = stat.S_ISVTX | stat.S_IWOTH
_MOST_LINKS: Final = 40
_LIMITS: Final = {
    name.removeprefix("RLIMIT_").lower(): getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_")
}


class NotOursError(PermissionError):
    """Others could change what is in a directory."""


class LaunchError(Exception):
    """The command cannot be run. ``is_lasting``: another try is pointless."""

    def __init__(self, code: str, problem: str, *, is_lasting: bool = True) -> None:
        super().__init__(problem)
        self.code = code
        self.is_lasting = is_lasting


class Settings(NamedTuple):
    """What every launch of one supervisor has in common.

    Attributes:
        min_uid: as ``identity.find_account`` has it.
        outputs: directory of the files that jobs have which name none; None: /dev/null.
        grace_s: of holders.
    """

    min_uid: int | None
    outputs: str | None
    grace_s: float


class Launch(NamedTuple):
    """What to run, as the daemon sends it; ``docs`` beside each field in ``parse_launch``."""

    command: list[str]
    directory: str
    environment: dict[str, str]
    uid: int | None
    umask: int
    nice: int
    cpus: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    open_files: int
    rlimits: dict[int, tuple[int, int]]
    stdout: str | None
    stderr: str | None
    report: bool


def parse_launch(message: Message) -> Launch:
    """Check every field.

    Raises:
        BadInputError: one is missing or is not what it should be.
    """
    launch = field(message, "launch", dict, {})
    command, environment = (
        field(launch, "command", list, []),
        field(launch, "environment", dict, {}),
    )
    texts = [*command, *environment, *environment.values()]
    if not command or not all(map(protocol.is_word, texts)):
        raise BadInputError("command and environment are no words")
    if not all(name and "=" not in name for name in environment):
        raise BadInputError("environment has a name that is none")
    paths = [field(launch, name, str) for name in ("directory", "stdout", "stderr")]
    if any(path is not None and not (path and protocol.is_word(path)) for path in paths):
        raise BadInputError("directory, stdout and stderr are no paths")
    rlimits: dict[int, tuple[int, int]] = {}
    for name, pair in field(launch, "rlimits", dict, {}).items():
        if name not in _LIMITS or not isinstance(pair, list) or len(pair) != 2:
            raise BadInputError(f"no limit: {str(name)[:40]!r}")
        if not all(type(value) is int and -1 <= value < 1 << 63 for value in pair):
            raise BadInputError(f"{name} are no numbers")
        if _unsigned(pair[0]) > _unsigned(pair[1]):
            raise BadInputError(f"{name}: the soft limit is above the hard one")
        rlimits[_LIMITS[name]] = (pair[0], pair[1])
    umask, nice = number(launch, "umask", 0, 0o777), number(launch, "nice", -20, 19)
    return Launch(
        command=command,
        directory=paths[0] or "/",
        environment=environment,
        uid=number(launch, "uid", 0, (1 << 32) - 2),
        umask=0o022 if umask is None else umask,
        nice=nice or 0,
        cpus=numbers(launch, "affinity"),
        memory_nodes=numbers(launch, "memory_nodes"),
        open_files=number(launch, "open_files", 3, 1 << 30) or _OPEN_FILES,
        rlimits=rlimits,
        stdout=paths[1],
        stderr=paths[2],
        report=field(launch, "report", bool, default=False),
    )


def _unsigned(limit: int) -> int:
    """As the kernel compares them: -1 is infinity."""
    return limit % (1 << 64)


def has_executed(pid: int) -> bool:
    """Whether a job's process is its command, or of it: ``execve`` gave it another name.

    A job that names itself so deceives nobody but its user.
    """
    state = read_state(pid)
    return state is not None and state.name not in (LAUNCHER, HOLDER)


# -- the launcher --------------------------------------------------------------------------------


def main() -> None:
    """Arguments: descriptors of line and ledger, the settings. Ends with the line."""
    syscalls.name_process(LAUNCHER)
    syscalls.wake_on_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    signal.set_wakeup_fd(-1)
    *given, text = sys.argv[1:]
    settings = Settings(*json.loads(text))
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
            _say(job_line, {"code": "no_process", "problem": f"no process ({error.strerror})"})
            pid = -1
        if pid == 0:
            line.close()
            key, _, address = order.decode().partition(" ")
            _be_the_child(parse_key(key), job_line, ledger_fd, settings, address)
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
    key: Key, job_line: int, ledger: int, settings: Settings, address: str
) -> NoReturn:
    """Be the job's first process; without a cgroup, be its holder and fork that."""
    try:
        if address:
            _hold(key, job_line, ledger, settings, address)
        become_job(key, job_line, ledger, settings)
    finally:
        os._exit(1)


def _hold(key: Key, job_line: int, ledger_fd: int, settings: Settings, address: str) -> None:
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
        _say(job_line, {"code": "no_process", "problem": f"no holder ({error.strerror})"})
        os._exit(1)
    if pid == 0:
        listener.close()
        return
    os.close(job_line)
    with contextlib.suppress(OSError):
        os.chdir("/")
    Holder(ledger, key, listener, settings.grace_s).run()


def become_job(key: Key, line: int, ledger: int, settings: Settings) -> NoReturn:
    """One straight path from clone to ``execve``; every step that may wait is before ``ready``."""
    pid = os.getpid()
    try:
        _say(line, {"pid": pid})
        reach("child.begun")
        launch = parse_launch(protocol.decode(_read_record(line)))
        os.setsid()
        _set_oom_and_nice(launch.nice)
        _confine(launch)
        account = _find_account_in_time(line, launch.uid, settings.min_uid)
        output = _open_own_files(key, launch, settings.outputs, account and account.uid)
        environment = launch.environment
        if account is not None:
            syscalls.new_keyring(look_only=True)
            _sign_in(account.uid)
            take_on(account)
            syscalls.hide_memory()
            syscalls.new_keyring(look_only=False)
            environment = complete_environment(environment, account)
        _enter(launch.directory)
        _open_files(launch, output, ledger)
        ticks = parse_start_ticks(read_small("/proc/self/stat"))
        reach("child.prepared")
        _say(line, {"ready": True})
        if os.read(line, len(GO)) != GO:
            os._exit(0)
        reach("child.let_go")
        record = Record(records.EXEC, key, pid, values=(ticks, 0, 0, 0, records.now_us()))
        if os.write(ledger, record.pack()) != records.RECORD_BYTES:
            _fail(line, "ledger_full", "the ledger has no room", is_lasting=False)
        reach("child.recorded")
        for limit, pair in launch.rlimits.items():  # last: none of them is to hurt what is above
            resource.setrlimit(limit, pair)
    except LaunchError as error:
        _fail(line, error.code, str(error), is_lasting=error.is_lasting)
    except BadInputError as error:
        _fail(line, "bad_launch", f"the launch is not well-formed: {error}", is_lasting=True)
    except AccountError as error:
        _fail(line, "no_account", str(error), is_lasting=error.is_lasting)
    except OSError as error:
        _fail(line, "system", f"it cannot be started ({error.strerror})", is_lasting=False)
    try:
        os.execvpe(launch.command[0], launch.command, environment)  # noqa: S606
    except (OSError, ValueError, MemoryError) as error:
        problem, exit_code = exec_problem(launch.command[0], environment, error)
        _say(line, {"code": "exec", "problem": problem})
        os._exit(exit_code)


def _find_account_in_time(line: int, uid: int | None, min_uid: int | None) -> Account | None:
    """A lookup cannot be interrupted: at the deadline the kernel ends this process."""
    if min_uid is None:
        return find_account(uid, None)
    os.write(line, _NO_ANSWER)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_ACCOUNT_WITHIN_S)
    account = find_account(uid, min_uid)
    signal.alarm(0)
    os.write(line, _ANSWERED)
    return account


def _say(line: int, message: Message) -> None:
    with contextlib.suppress(OSError):
        os.write(line, protocol.encode(message))


def _fail(line: int, code: str, problem: str, *, is_lasting: bool) -> NoReturn:
    _say(line, {"code": code, "problem": problem, "is_lasting": is_lasting})
    os._exit(1)


def _read_record(line: int) -> bytes:
    """The daemon's line. The end of the socketpair ends the process."""
    data = bytearray()
    while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
        part = os.read(line, 1 << 16)
        if not part:
            os._exit(0)
        data += part
    return bytes(data[LENGTH.size :])


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
    except (OSError, ValueError) as error:
        problem = f"CPUs {list(launch.cpus)} cannot be used ({error}); are they online?"
        raise LaunchError("cpus", problem) from error
    syscalls.prefer_memory_nodes(launch.memory_nodes)
    os.umask(launch.umask)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = launch.open_files if hard == resource.RLIM_INFINITY else min(launch.open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for limit, pair in launch.rlimits.items():  # may be raised by root only
        soft, hard = resource.getrlimit(limit)
        try:
            resource.setrlimit(limit, (soft, max(hard, pair[1], key=_unsigned)))
        except (OSError, ValueError) as error:
            raise LaunchError("limit", f"a limit cannot be set to {pair} ({error})") from error


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
        problem = f"the working directory {directory} cannot be entered ({error.strerror})"
        raise LaunchError("directory", problem) from error


def _open_own_files(key: Key, launch: Launch, outputs: str | None, uid: int | None) -> int:
    """For standard output that has no path, and for the report: files of the user's in a directory
    of root's. Their names begin with the key.
    """
    if launch.report:
        if outputs is None:
            raise LaunchError("output", "there is no directory for its report")
        os.dup2(_make_file(os.path.join(outputs, str(key) + REPORT), uid), _REPORT_FD)
    if launch.stdout is not None or outputs is None:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return _make_file(os.path.join(outputs, str(key)), uid)


def make_own(directory: str, mode: int) -> None:
    """Make it if it is missing.

    Raises:
        NotOursError: others could change what is in it.
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(directory)
        os.chmod(directory, mode)
    found = os.lstat(directory)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or not stat.S_ISDIR(found.st_mode):
        text = "it is not a directory that nobody else may write to"
        raise NotOursError(errno.EPERM, text, directory)


def _make_file(path: str, uid: int | None) -> int:
    """Nothing is taken over that lies there from another attempt."""
    try:
        try:
            fd = os.open(path, _OWN, 0o600)
        except FileExistsError:  # of an earlier try that never ran
            os.unlink(path)
            fd = os.open(path, _OWN, 0o600)
        except FileNotFoundError:  # its disk was full as the anchor began
            make_own(os.path.dirname(path), OUTPUTS_MODE)
            fd = os.open(path, _OWN, 0o600)
        if uid is not None:
            os.fchown(fd, uid, -1)
    except OSError as error:
        problem = f"the output file {path} cannot be made ({error.strerror})"
        raise LaunchError("output", problem, is_lasting=False) from error
    return fd


def _open_files(launch: Launch, output: int, ledger: int) -> None:
    """Standard input is empty. Until all is open nothing of the supervisor's is 0, 1 or 2."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in range(3):
        os.dup2(null, fd)
    out = output if launch.stdout is None else _open_output(launch.stdout, ledger)
    if launch.stderr is None or launch.stderr == launch.stdout:
        err = out
    else:
        err = _open_output(launch.stderr, ledger)
    os.dup2(out, 1)
    os.dup2(err, 2)


def _open_output(path: str, ledger: int) -> int:
    """As a shell of this user would open it, empty, with differences.

    A descriptor's path is refused: it would be the launcher's. So is a pipe that nobody reads: the
    open would wait. In a directory where everybody may put files (/tmp), what somebody else put
    there is refused, as where fs.protected_symlinks and its siblings are set.
    """
    if _is_descriptor(path):
        problem = f"{path} is a descriptor of the process that starts jobs, not a file; name a file"
        raise LaunchError("output", problem)
    try:
        _refuse_others(path, None)
        fd = os.open(path, _OUTPUT, 0o666)
        found = os.fstat(fd)
        _refuse_others(path, found)
        if os.path.samestat(found, os.fstat(ledger)):
            raise PermissionError(errno.EACCES, "it is the ledger")
        if stat.S_ISREG(found.st_mode):
            os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENXIO:
            reason = "it is a pipe that nobody reads, or a device that is not there"
        problem = f"the output file {path} cannot be written ({reason})"
        raise LaunchError("output", problem) from error
    return fd


def _is_descriptor(path: str) -> bool:
    """Whether a path leads, link by link, to /proc/PID/fd/N, as /dev/stdout does."""
    for _ in range(_MOST_LINKS):
        directory, name = os.path.split(path)
        words = os.path.realpath(directory or ".").split("/")
        if words[1:2] == ["proc"] and words[-1] in ("fd", "fdinfo"):
            return True
        path = os.path.join("/".join(words) or "/", name)
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return False
    return False


def _refuse_others(path: str, opened: os.stat_result | None) -> None:
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
        raise PermissionError(errno.EACCES, "somebody else put it there")
    if stat.S_ISREG(named.st_mode) and named.st_nlink > 1:
        raise PermissionError(errno.EACCES, "it is a file with other names as well")


def exec_problem(name: str, environment: dict[str, str], error: Exception) -> tuple[str, int]:
    """In words, and the exit code that a shell gives."""
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        if "/" in name and os.path.exists(name):
            return f"{name}: the interpreter its first line names does not exist", NOT_FOUND
        where = "" if "/" in name else f" in PATH ({environment.get('PATH', 'not set')})"
        return f"{name}: no such command{where}", NOT_FOUND
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        text = "not a program and without an interpreter line; add '#!/bin/sh'"
        return f"{name}: {text}", NOT_RUNNABLE
    reason = error.strerror if isinstance(error, OSError) else error
    return f"{name}: cannot be run ({reason or error})", NOT_RUNNABLE
