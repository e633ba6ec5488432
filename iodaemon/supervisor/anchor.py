"""The anchor: a subreaper that only waits, and starts the supervisor again.

What a killed supervisor leaves becomes the anchor's: it lets all jobs run on, takes in each child
with the supervisor's own code, and starts the next supervisor, to which it hands the listening
sockets, the lock and the ledger. A supervisor of which it hears nothing for the grace time counts
as gone: all jobs run on, and it is continued; after four grace times it is killed, which loses
nothing. Ends with the supervisor that has nothing left to do.

They say words to each other. ``beat``: the supervisor is there. ``clean``: the anchor has taken in
all its children that have ended; after each beat, and when there was one of a job. ``over``: the
supervisor ends, and so does the anchor. ``reexec``: it has become the installed program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from iodaemon.supervisor import syscalls, systemd
from iodaemon.supervisor.cgroup import Cgroups, find_mount, find_own_cgroup
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.holder import Holders
from iodaemon.supervisor.ledger import Key, Ledger, let_read, open_ledger
from iodaemon.supervisor.protocol import Silence
from iodaemon.supervisor.reap import Reaper
from iodaemon.supervisor.syscalls import peer_of, say

SOCKET: Final = "supervisor.sock"
SAMPLER: Final = "iodaemon.node.sampler.sweep"
"""The one program outside of this package that is begun here."""
LOCK: Final = "lock"
"""In the runtime directory as well; the anchor has it for as long as the root side lives."""
HOPELESS: Final = 78
"""EX_CONFIG of sysexits.h: starting it again does not help."""
BEATS: Final = 3
"""So often in the grace time each side says that it is there."""
_KILL_AFTER: Final = 4
_AT_ONCE: Final = 64
_FIRST_WAIT_S: Final = 0.1
_LAST_WAIT_S: Final = 5.0
_WORD_BYTES: Final = 64
_OUTPUTS_MODE: Final = 0o750
_LAST_BREATH_S: Final = 0.1
"""For a process that has given up the lock to close its sockets as well."""


class NotOursError(PermissionError):
    """Others could change what is in a directory."""


class Config(NamedTuple):
    """How the root side is begun.

    Attributes:
        runtime: directory on tmpfs: socket, lock and ledger.
        daemon_uid: the one user who is obeyed.
        daemon_gid: group of the socket, the ledger and the jobs' own files, which the daemon
            reads; None: their user alone.
        min_uid: no job runs as a uid below; None: all run as the caller's own user.
        outputs: directory of the files of jobs that name none; made if it is missing. Where it
            cannot be made those jobs fail until it can.
        grace_s: a daemon, or a supervisor, that says nothing for so long counts as gone.
        cgroup: "auto": the jobs' scope, as a service, or below the caller's own; "none": by
            signals; else the directory.
        is_service: runs until SIGTERM; else ends without a daemon and without jobs.
        lack: without cgroups, why (``hello`` of ``protocol``).
        detail: the same as a sentence.
        state: the daemon's directory; the second address is named by it. None: by ``runtime``.
    """

    runtime: str
    daemon_uid: int
    daemon_gid: int | None = None
    min_uid: int | None = None
    outputs: str | None = None
    grace_s: float = 30.0
    cgroup: str = "auto"
    is_service: bool = False
    lack: str = "configured"
    detail: str = "signals, as configured"
    state: str | None = None

    def dump(self) -> str:
        return json.dumps(self._asdict())

    def place(self, name: str) -> str:
        return os.path.join(self.runtime, name)


def load_config(text: str) -> Config:
    """The reverse of ``Config.dump``."""
    return Config(**json.loads(text))


def command(module: str, *words: str) -> list[str]:
    """How to run a module of this package, or ``SAMPLER``: isolated, after the standard library."""
    root = str(Path(__file__).resolve().parents[2])
    name = module if module == SAMPLER else f"iodaemon.supervisor.{module}"
    code = f"import sys; sys.path.append({root!r}); from {name} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, *words]


def spawn(arguments: list[str], fds: list[int], blocked: tuple[signal.Signals, ...] = ()) -> int:
    """Start a program with these descriptors and signals that wait; its number."""
    kept = [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]  # without close-on-exec
    return os.posix_spawn(
        arguments[0], arguments, os.environ, file_actions=kept, setsigmask=blocked
    )


def execute(module: str, words: list[str], fds: list[int]) -> NoReturn:
    """Become a module of this package, with these descriptors and all children.

    Raises:
        OSError: the program is not there; nothing has changed.
    """
    arguments = command(module, *words)
    try:
        for fd in fds:
            os.set_inheritable(fd, True)  # noqa: FBT003
        os.execv(arguments[0], arguments)  # noqa: S606
    finally:
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003


def abstract_address(config: Config) -> str:
    """Where the supervisor is found as well, should somebody remove the runtime directory.

    Or should the daemon be started in another environment, and so have another one.
    """
    name = os.fsencode(os.path.realpath(config.state or config.runtime))
    return f"\0iod-supervisor-{zlib.crc32(name):08x}"


def listen(config: Config) -> tuple[int, int]:
    """The socket in the runtime directory, made anew, and its inode; the lock is the caller's."""
    os.makedirs(config.runtime, 0o700 if config.daemon_gid is None else 0o711, exist_ok=True)
    path = config.place(SOCKET)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    if config.daemon_gid is not None:
        os.chown(path, -1, config.daemon_gid)
        os.chmod(path, 0o660)
    elif config.daemon_uid != os.geteuid():
        os.chown(path, config.daemon_uid, -1)
    listener.listen(16)
    return listener.detach(), os.stat(path).st_ino


class Shared(NamedTuple):
    """Descriptors that each supervisor of this anchor gets; ``second`` is -1 if there is none.

    ``inode`` is that of the socket in the runtime directory which ``listener`` is bound to.
    """

    listener: int
    second: int
    lock: int
    ledger: int
    inode: int

    def fds(self) -> list[int]:
        return [fd for fd in self[:4] if fd >= 0]


def _make_own(directory: str, mode: int) -> None:
    """Raises NotOursError: others could change what is in it; OSError: it cannot be made."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(directory)
        os.chmod(directory, mode)
    found = os.lstat(directory)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or not stat.S_ISDIR(found.st_mode):
        text = "it is not a directory that nobody else may write to"
        raise NotOursError(errno.EPERM, text, directory)


def open_shared(config: Config) -> Shared:
    """Make the directories, take the lock, make the sockets, open the ledger.

    Where systemd starts an anchor while a supervisor whose anchor died has jobs, it waits for the
    lock: that supervisor ends when nothing runs any more, and to end it would lose exit codes.

    Raises:
        OSError: EADDRINUSE: another root side runs on this directory; EPERM: others could change
            what is in a directory; others: that of the sockets cannot be had.
    """
    _make_own(config.runtime, 0o700 if config.daemon_gid is None else 0o711)
    if config.outputs is not None:
        try:
            _make_own(config.outputs, _OUTPUTS_MODE)
            if config.daemon_gid is not None:
                os.chown(config.outputs, -1, config.daemon_gid)
                os.chmod(config.outputs, _OUTPUTS_MODE)
        except NotOursError:
            raise
        except OSError as error:
            text = "jobs that name no output file fail until it can be"
            say(f"{config.outputs} cannot be made ({error.strerror}); {text}")
    lock = os.open(config.place(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not (config.is_service and systemd.is_heard()):
            raise OSError(errno.EADDRINUSE, "a supervisor runs already", config.runtime) from error
        systemd.notify("READY=1", "STATUS=waits until nothing runs under the supervisor of before")
        fcntl.flock(lock, fcntl.LOCK_EX)
        time.sleep(_LAST_BREATH_S)
    second = _listen_on_second(config)
    ledger = open_ledger(config.place("ledger"))
    let_read(ledger.fd, config.daemon_gid)
    listener, inode = listen(config)
    return Shared(listener, second, lock, ledger.fd, inode)


def _listen_on_second(config: Config) -> int:
    """-1: another user has that address.

    Raises:
        OSError: EADDRINUSE: another root side runs, whose directory was removed.
    """
    address = abstract_address(config)
    second = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        second.bind(address)
        second.listen(16)
    except OSError as error:
        second.close()
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
            contextlib.suppress(ConnectionRefusedError, BlockingIOError),
        ):
            probe.setblocking(False)  # noqa: FBT003 - who has it need not accept
            probe.connect(address)
            pid, uid = peer_of(probe)
            if uid == os.geteuid():
                text = f"a supervisor runs already (pid {pid})"
                raise OSError(errno.EADDRINUSE, text, config.runtime) from error
        say("another user has taken this directory's second address; it is done without")
        return -1
    return second.detach()


class Anchor:
    """One anchor. ``run`` returns when there is nothing left to keep.

    After ``execve`` in place it goes on with a supervisor and the line to it.
    """

    def __init__(
        self,
        config: Config,
        shared: Shared,
        cgroups: Cgroups | None,
        supervisor: int = 0,
        line: socket.socket | None = None,
    ) -> None:
        self._config = config
        self._shared = shared
        self._cgroups = cgroups
        self._supervisor = supervisor
        self._line = line
        self._begin_reaping()
        self._silence = Silence(config.grace_s)
        self._started_s = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._is_leaving = self._is_over = self._has_notified = self._is_asked = False

    def _begin_reaping(self) -> None:
        find = (lambda _: None) if self._cgroups is None else self._cgroups.key_of
        self._reaper = Reaper(Ledger(self._shared.ledger), find)

    def run(self) -> None:
        syscalls.ignore_no_signal()
        signals = syscalls.open_signals(signal.SIGCHLD, *syscalls.HEARD)
        self._reap()  # what ended while this program was executed woke nobody
        while not self._is_over:
            if not self._supervisor and time.monotonic() >= self._started_s + self._wait_s:
                self._start()
            poll = select.poll()
            poll.register(signals, select.POLLIN)
            if self._line is not None:
                poll.register(self._line, select.POLLIN)
            for fd, _ in poll.poll(self._patience_s() * 1000 + 1):
                if fd == signals:
                    self._take_signals(syscalls.read_signals(signals))
                else:
                    self._hear()
            self._reap()
            self._watch()

    def _patience_s(self) -> float:
        if not self._supervisor:
            return max(0.0, self._started_s + self._wait_s - time.monotonic())
        return min(self._silence.wait_s(), self._config.grace_s)

    def _take_signals(self, numbers: set[int]) -> None:
        """SIGHUP is an upgrade, by ``systemctl reload``: the supervisor begins it."""
        if signal.SIGTERM in numbers and not self._supervisor:
            self._is_over = True
        elif signal.SIGTERM in numbers:
            self._tell(signal.SIGTERM)
        elif signal.SIGHUP in numbers and self._supervisor:
            self._tell(signal.SIGHUP)

    def _tell(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._supervisor, number)

    def _start(self) -> None:
        reach("anchor.starting")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        resume = {"anchor": theirs.fileno(), "shared": list(self._shared)}
        words = [self._config.dump(), json.dumps(resume)]
        if self._cgroups is not None:
            with contextlib.suppress(OSError):  # of what somebody removed
                self._cgroups.open()
        self._started_s = time.monotonic()
        with theirs:
            try:
                fds = [theirs.fileno(), *self._shared.fds()]
                self._supervisor = spawn(command("server", *words), fds, syscalls.HEARD)
            except OSError as error:
                ours.close()
                self._wait_s = min(max(2 * self._wait_s, _FIRST_WAIT_S), _LAST_WAIT_S)
                say(f"no supervisor can be started ({error.strerror}); it is tried again")
                return
        ours.setblocking(False)  # noqa: FBT003
        self._line = ours
        self._silence.heard()

    def _hear(self) -> bool:
        """Whether the supervisor said something."""
        assert self._line is not None
        word = syscalls.receive(self._line, _WORD_BYTES)
        if word is None:
            return False
        if not word:
            self._line.close()
            self._line = None
            return False
        self._silence.heard()
        if self._config.is_service and not self._has_notified:
            detail = self._config.detail if self._cgroups is None else self._cgroups.detail
            self._has_notified = systemd.notify("READY=1", f"STATUS=suspends by {detail}")
        if word == b"over":
            self._is_leaving = True
        elif word == b"reexec":
            reach("anchor.reexec")
            line = self._line.fileno()
            resume = {"supervisor": self._supervisor, "line": line, "shared": list(self._shared)}
            words = [self._config.dump(), json.dumps(resume)]
            try:
                execute("anchor", words, [line, *self._shared.fds()])
            except OSError as error:
                say(f"the anchor stays the program it is ({error.strerror})")
        self._is_asked = True
        return True

    def _reap(self) -> None:
        """Take in every child that has ended; the supervisor reads in the ledger whose it was."""
        more, has_news = True, False
        while more:
            taken, more = self._reaper.scan(_AT_ONCE)
            has_news |= any(ended.key is not None for ended in taken)
            if any(ended.pid == self._supervisor for ended in taken):
                self._on_death()
        if has_news:
            reach("anchor.reaped")
        if self._line is not None and (has_news or self._is_asked):
            self._is_asked = False
            with contextlib.suppress(OSError):
                self._line.send(b"clean")

    def _on_death(self) -> None:
        """Let all jobs run on; the children are this process's now."""
        self._supervisor = 0
        while self._line is not None and self._hear():
            pass  # what it said last
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._is_leaving:
            self._is_over = True
            return
        self._let_all_go("the supervisor died", "; it is started again")
        reach("anchor.thawed")
        self._begin_reaping()
        lasted_s = time.monotonic() - self._started_s
        self._wait_s = 0.0 if lasted_s > 1.0 else min(max(2 * self._wait_s, 0.1), _LAST_WAIT_S)

    def _let_all_go(self, why: str, then: str = "") -> None:
        let_go = 0 if self._cgroups is None else self._cgroups.thaw_all()
        say(f"{why}; {let_go} jobs that stood still run on{then}")

    def _watch(self) -> None:
        """The dead man's switch over the supervisor."""
        if not self._supervisor:
            return
        if self._silence.begins():
            self._let_all_go("the supervisor says nothing")
            reach("anchor.silence")
            self._tell(signal.SIGCONT)
        elif self._silence.lasts_s() > _KILL_AFTER * self._config.grace_s:
            self._tell(signal.SIGKILL)


def open_cgroups(config: Config) -> tuple[Cgroups | None, Config]:
    """The tree of cgroups, and the configuration with its place, or why there is none."""
    if config.cgroup == "none":
        return None, config
    lack, problem = "unusable", "this process is in no cgroup that can be seen from here"
    try:
        for base in _find_places(config, find_mount()[0]):
            try:
                cgroups = Cgroups(base)
                cgroups.open()
            except OSError as error:
                place = os.path.dirname(base)
                problem = f"no cgroup can be used in {place} ({error.strerror or error})"
                say(problem)
            else:
                with contextlib.suppress(OSError), open(config.place("cgroup"), "w") as note:
                    note.write(base)
                return cgroups, config._replace(cgroup=base)
    except OSError:
        lack, problem = "no_hierarchy", "cgroup v2 is not mounted"
    say(f"jobs are held by signals: {problem}")
    return None, config._replace(cgroup="none", lack=lack, detail=f"signals: {problem}")


def _find_places(config: Config, mount: str) -> Iterator[str]:
    """Where the tree may be, the best place first."""
    if config.cgroup != "auto":
        yield config.cgroup
        return
    if config.is_service:
        yield os.path.join(mount, systemd.SLICE, systemd.SCOPE)
    base = find_base(config)
    with contextlib.suppress(OSError):  # it may have been begun from elsewhere
        if base is not None and any(n[0].isdigit() for n in os.listdir(os.path.join(base, "jobs"))):
            yield base
    with contextlib.suppress(OSError):
        name = f"iodaemon-{zlib.crc32(os.path.realpath(config.runtime).encode()):08x}"
        yield os.path.join(find_own_cgroup(), name)


def find_base(config: Config) -> str | None:
    """Where the tree of the root side is that runs, or ran last in this boot."""
    try:
        with open(config.place("cgroup")) as note:
            return note.read()
    except OSError:
        return None


def thaw_all(config: Config) -> int:
    """Let all jobs go, with anchor and supervisor or without; how many were held."""
    count, in_cgroups = 0, list[Key]()
    base = find_base(config)
    with contextlib.suppress(OSError):
        if base is not None:
            cgroups = Cgroups(base)
            in_cgroups = cgroups.find_jobs()
            count = cgroups.thaw_all()
            os.close(cgroups.fd)
    try:
        fd = os.open(config.place("ledger"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return count
    ledger = Ledger(fd)
    if os.fstat(fd).st_uid == os.geteuid() and ledger.is_of_this_boot:
        holders = Holders(ledger)
        count += sum(map(holders.let_go, set(ledger.running.values()).difference(in_cgroups)))
    os.close(fd)
    return count


def clear(config: Config, cgroups: Cgroups | None) -> None:
    """Remove socket and cgroups; who has the lock calls this last."""
    with contextlib.suppress(OSError):
        os.unlink(config.place(SOCKET))
    if cgroups is not None:
        cgroups.leave()


def main() -> None:
    """Arguments: the configuration, and after ``execve`` what goes on."""
    config = load_config(sys.argv[1])
    resume: dict[str, Any] = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    syscalls.name_process("iod-anchor")
    with contextlib.suppress(OSError):
        os.setsid()
    os.chdir("/")
    syscalls.become_subreaper()
    try:
        shared = Shared(*resume["shared"]) if resume else open_shared(config)
    except OSError as error:
        say(f"{error.filename or config.runtime}: {error.strerror}")
        sys.exit(HOPELESS)
    for fd in (*shared.fds(), *([resume["line"]] if resume else ())):
        os.set_inheritable(fd, False)  # noqa: FBT003
    os.ftruncate(shared.lock, 0)
    os.pwrite(shared.lock, f"{os.getpid()}\n".encode(), 0)
    cgroups, config = open_cgroups(config)
    line = socket.socket(fileno=resume["line"]) if resume else None
    Anchor(config, shared, cgroups, resume.get("supervisor", 0), line).run()
    reach("anchor.leaving")
    clear(config, cgroups)
