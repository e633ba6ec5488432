"""A root side of its own for one test, and the daemon's stand-in that talks to it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import find_state, name_of, until

from iodaemon.supervisor.anchor import SOCKET, Config, abstract_address, command
from iodaemon.supervisor.launch import PROGRAM
from iodaemon.supervisor.orders import UNCOMPILED
from iodaemon.supervisor.reap import children_of, tree_of

WITHIN_S = 60.0
"""Only to end a test that would wait for ever: whatever is waited for lasts once it is there."""
UNIFIED = Path("/sys/fs/cgroup/unified")
CAN_FREEZE = os.access(UNIFIED, os.W_OK)
Message = dict[str, Any]

over_both_launchers = pytest.mark.parametrize("launcher", ["compiled", "python"])
"""For what a job's process does before it executes its command."""
by_either_means = pytest.mark.parametrize(
    "means",
    [
        pytest.param(
            "cgroup", marks=pytest.mark.skipif(not CAN_FREEZE, reason="no writable cgroup")
        ),
        "processes",
    ],
)
"""For what freezes, kills, finds and reaps the processes of a job."""


def is_alive(pid: int) -> bool:
    return find_state(pid) not in (None, "Z", "X")


class Gate:
    """A file that jobs wait for, without using any CPU time, until it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def wait_and(self, then: str) -> list[str]:
        return ["sh", "-c", f"flock -s {self.path} true; {then}"]

    def open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Tracer:
    """A process that traces another one and takes no notice of its end; it may hold it, too."""

    def __init__(self, traced: int, *, holds: bool = False) -> None:
        self.traced, self.holds = traced, holds

    def __enter__(self) -> None:
        read, write = os.pipe()
        self.tracer = os.fork()
        if self.tracer == 0:
            libc = ctypes.CDLL(None)
            done = libc.ptrace(0x4206, self.traced, None, None)  # PTRACE_SEIZE
            if done == 0 and self.holds:
                done = libc.ptrace(0x4207, self.traced, None, None)  # PTRACE_INTERRUPT
            os.write(write, b"y" if done == 0 else b"n")
            signal.pause()
        assert os.read(read, 1) == b"y"
        os.close(read)
        os.close(write)

    def __exit__(self, *_: object) -> None:
        os.kill(self.tracer, signal.SIGKILL)
        os.waitpid(self.tracer, 0)


class Daemon:
    """One connection. ``states`` has the last report of each key."""

    def __init__(self, address: str, *, says_hello: bool = True) -> None:
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.line.settimeout(WITHIN_S)
        try:
            self.line.connect(address)
        except OSError:
            self.line.close()
            raise
        self.unread = b""
        self.reports: list[Message] = []
        self.states: dict[str, Message] = {}
        self.hello: Message = {}
        if says_hello:
            self.greet()

    def greet(self) -> None:
        self.say("hello", protocol=1)
        self.hello = self.await_message(lambda m: "hello" in m)["hello"]

    def say(self, wish: str, **fields: Any) -> None:
        self.say_all({"wish": wish, **fields})

    def say_all(self, *wishes: Message) -> None:
        """At once: the supervisor may end by the first one."""
        self.line.sendall(b"".join(json.dumps(wish).encode() + b"\n" for wish in wishes))

    def read(self) -> Message:
        """The next message. Raises ConnectionError at the end of the line."""
        while b"\n" not in self.unread:
            data = self.line.recv(1 << 20)
            if not data:
                raise ConnectionResetError
            self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        message: Message = json.loads(line)
        self.reports.append(message)
        if "state" in message:
            self.states[message["key"]] = message
        return message

    def drain(self) -> None:
        """Read what is there."""
        while b"\n" in self.unread or select.select([self.line], [], [], 0)[0]:
            self.read()

    def await_message(self, is_it: Callable[[Message], bool]) -> Message:
        until_s = time.monotonic() + WITHIN_S
        while not is_it(message := self.read()):
            assert time.monotonic() < until_s, self.reports[-20:]
        return message

    def await_state(self, key: str, *states: str, **fields: Any) -> Message:
        """The report of this key that is of one of these states, with these fields."""

        def fits(report: Message) -> bool:
            if report.get("key") != key or report.get("state") not in states:
                return False
            return all(report.get(name) == value for name, value in fields.items())

        last = self.states.get(key, {})
        return last if fits(last) else self.await_message(fits)

    def start(self, key: str, *words: str, **launch: Any) -> None:
        launch = {"command": list(words), "environment": {"PATH": os.environ["PATH"]}, **launch}
        self.say_all({"wish": "prepare", "key": key, "launch": launch}, {"wish": "run", "key": key})

    def run(self, key: str, *words: str, **launch: Any) -> Message:
        """Start it; the report that it runs."""
        self.start(key, *words, **launch)
        return self.await_state(key, "running", "failed", "ended")

    def code_of(self, key: str, text: str) -> int | None:
        """The exit code of a job that runs this text in a shell."""
        self.start(key, "sh", "-c", text)
        code: int | None = self.await_state(key, "ended")["exit"]["code"]
        return code

    def hold(self, key: str = "1.1") -> None:
        self.say("freeze", key=key)
        self.await_state(key, "running", frozen=True)

    def thaw(self, key: str = "1.1") -> None:
        self.say("thaw", key=key)
        self.await_state(key, "running", frozen=False)

    def kill(self, key: str) -> Message:
        """The report of its end."""
        self.say("kill", key=key)
        return self.await_state(key, "ended", "lost")

    def beat(self) -> Message:
        self.say("beat", n=1)
        return self.await_message(lambda m: "beat" in m)

    def sync(self, **wishes: str) -> None:
        self.states.clear()
        self.say("sync", keys=[[key.replace("_", "."), wish] for key, wish in wishes.items()])
        self.await_message(lambda m: "synced" in m)

    def await_prepared(self, key: str) -> None:
        """Which is told of only if it is asked for."""
        until(lambda: self.sync() or self.states.get(key, {}).get("state") == "prepared")

    def await_end(self) -> None:
        """Of the line."""
        with contextlib.suppress(ConnectionError):
            while True:
                self.read()

    def close(self) -> None:
        self.line.close()


LAUNCHERS = {"cgroup": "compiled", "processes": "python"}


class RootSide:
    """Anchor, supervisor and launcher with a runtime directory of their own on tmpfs.

    Without a launcher it is the one that goes with the means: so both launchers are met wherever
    the means are two.
    """

    def __init__(self, means: str, launcher: str = "", **config: Any) -> None:
        assert os.access(PROGRAM, os.X_OK), "'make setup' compiles it"
        self.directory = Path(tempfile.mkdtemp(prefix="iod-test-", dir="/dev/shm"))
        self.directory.chmod(0o755)
        self.runtime = self.directory / "run"
        self.faults = self.directory / "faults"
        self.faults.mkdir()
        self.log = self.directory / "log"
        self.cgroup = UNIFIED / self.directory.name
        place = {"cgroup": str(self.cgroup), "processes": "none"}[means]
        settings = {"daemon_uid": os.getuid(), "grace_s": 30.0, **config}
        self.config = Config(**{"runtime": str(self.runtime), "cgroup": place, **settings})
        self.runtime = Path(self.config.runtime)
        self.daemons: list[Daemon] = []
        self._make_gate()
        self.process: subprocess.Popen[bytes]
        self._environment = {**os.environ, "IOD_FAULTS": str(self.faults)}
        if (launcher or LAUNCHERS[means]) == "python":
            self._environment[UNCOMPILED] = "1"

    def _make_gate(self) -> None:
        self.gate = Gate(self.directory / "gate")
        self.gate.path.chmod(0o666)

    def begin(self, *before: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*before, *command("anchor", self.config.dump())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def connect(self, *, says_hello: bool = True) -> Daemon:
        """The daemon; to whichever supervisor listens now."""

        def attempt() -> Daemon | None:
            with contextlib.suppress(FileNotFoundError, ConnectionError):
                daemon = Daemon(str(self.runtime / SOCKET), says_hello=False)
                try:
                    if says_hello:
                        daemon.greet()
                except ConnectionError:
                    daemon.close()
                    raise
                return daemon
            return None

        daemon: Daemon = until(attempt, "a supervisor that answers")
        self.daemons.append(daemon)
        return daemon

    def find(self, *keys: str) -> Daemon:
        """A daemon that comes back, and asks for these attempts, which shall run."""
        daemon = self.connect()
        daemon.sync(**{key.replace(".", "_"): "run" for key in keys})
        return daemon

    def outcome(self, key: str) -> Message:
        """What becomes of an attempt, whoever dies meanwhile."""

        def attempt() -> Message | None:
            with contextlib.suppress(ConnectionError):
                daemon = self.connect()
                daemon.sync(**{key.replace(".", "_"): "run"})
                return daemon.await_state(key, "ended", "lost", "failed", "absent")
            return None

        found: Message = until(attempt, f"an end of {key}")
        return found

    def connect_abstract(self) -> Daemon:
        daemon = Daemon(abstract_address(self.config))
        self.daemons.append(daemon)
        return daemon

    def arm(self, point: str, number: int = signal.SIGKILL, passage: int = 1) -> None:
        new = self.directory / "new-fault"
        new.write_text(f"{passage} {int(number)}")
        new.rename(self.faults / point)

    def has_fired(self, point: str) -> bool:
        return not list(self.faults.glob(f"{point}*"))

    def role(self, name: str) -> int:
        """The process of this name below the anchor, which is there sooner or later."""

        def find() -> int | None:
            named = (pid for pid in tree_of([self.process.pid]) if name_of(pid) == name)
            return next(filter(is_alive, named), None)

        return int(until(find, name))

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        pid = self.role(name)
        os.kill(pid, number)
        if number == signal.SIGKILL and pid != self.process.pid:
            until(lambda: not is_alive(pid))
        return pid

    def kill_both(self) -> None:
        """SIGKILL to the anchor, and to the supervisor before that has another one."""
        supervisor = self.role("iod-supervisor")
        self.kill("iod-anchor")
        self.process.wait()
        os.kill(supervisor, signal.SIGKILL)
        until(lambda: not is_alive(supervisor), "the end of the supervisor")

    def job_cgroup(self, key: str) -> Path:
        return self.cgroup / "jobs" / key

    def clear(self) -> None:
        """Leave nothing of the jobs of a test to the next one on this root side."""
        daemon = self.connect()
        daemon.sync()
        running = [key for key, report in daemon.states.items() if report["state"] == "running"]
        for key in running:
            daemon.say("kill", key=key)
        for key in running:
            daemon.await_state(key, "ended", "lost", "absent")
        daemon.sync()
        self.gate.open()
        for each in self.daemons:
            each.close()
        self.daemons.clear()
        for path in set(self.directory.iterdir()) - {self.runtime, self.faults, self.log}:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self.directory.chmod(0o755)
        self._make_gate()

    def members(self, key: str) -> list[int]:
        return [int(w) for w in (self.job_cgroup(key) / "cgroup.procs").read_text().split()]

    def end(self) -> None:
        """End all, however it is, and check that nothing is left."""
        if not self.directory.exists():
            return
        for daemon in self.daemons:
            daemon.close()
        self.gate.open()
        if os.environ.get("IOD_SHOW_LOG"):
            print(self.log.read_text())
        with contextlib.suppress(OSError):
            (self.cgroup / "cgroup.kill").write_text("1")
        below = [] if self.process.poll() is not None else tree_of(children_of(self.process.pid))
        self.process.kill()  # first: it would start another supervisor
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        until(self._is_clean, "an end of all processes")
        for mount in Path("/proc/self/mounts").read_text().split("\n"):
            if f" {self.directory}/" in mount:
                subprocess.run(["umount", "-l", mount.split()[1]], check=True)
        shutil.rmtree(self.directory)

    def _is_clean(self) -> bool:
        token = str(self.directory).encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if token in path.read_bytes() and is_alive(int(path.parent.name)):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    return False
        return remove_cgroup(self.cgroup)


def remove_cgroup(path: Path) -> bool:
    if not path.exists():
        return True
    with contextlib.suppress(OSError):
        (path / "cgroup.kill").write_text("1")
    for directory in sorted(path.rglob("*"), key=lambda p: -len(p.parts)):
        if directory.is_dir():
            with contextlib.suppress(OSError):
                directory.rmdir()
    with contextlib.suppress(OSError):
        path.rmdir()
    return not path.exists()
