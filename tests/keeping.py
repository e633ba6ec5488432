"""A keeper without a daemon, spoken to over its socket, for tests."""

import contextlib
import json
import os
import pwd
import select
import socket
import subprocess

import pytest
from harness import Server, cgroup_trees, end, marked, until

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.keeper_command import KeeperSpec, keeper_command

NOBODY = pwd.getpwnam("nobody")
DAEMON = pwd.getpwnam("daemon")
"""Stands for the service's own user, which is not installed here."""


def keeper_words(state, path, grace_s, means, *identity):
    """The words that begin a keeper of this directory."""
    keeper = KeeperSpec(state=state, socket=path, grace_s=grace_s, means=means)
    return keeper_command(keeper, *identity)


class Line:
    """One connection to a keeper."""

    def __init__(self, path, state):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")
        self._next = 0
        try:
            self.hello = self.ask("hello", version=protocol.VERSION, state=os.path.realpath(state))
        except ConnectionError:
            self.close()
            raise

    def say(self, *verbs):
        """Send all of these at once."""
        lines = b""
        for verb, fields in verbs:
            self._next += 1
            lines += protocol.encode({"id": self._next, "verb": verb, **fields})
        self._socket.sendall(lines)

    def hear(self):
        line = self._file.readline()
        if not line:
            raise ConnectionResetError("the keeper hung up")
        return json.loads(line)

    def has_heard(self):
        """Whether something has come that nobody has read."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def ask(self, verb, **fields):
        self.say((verb, fields))
        answer = self.hear()
        return answer.get("ok", answer)

    def close(self):
        self._file.close()
        self._socket.close()


class Keeper(Server):
    """A keeper as the daemon starts it, without a daemon."""

    def __init__(self, means, **options):
        super().__init__(means, **options)
        self.lines_open = []

    def begin(self, grace_s=60, stderr=None):
        for path in (self.state, self.runtime):
            path.mkdir(mode=0o700, exist_ok=True)
        self.path = self.runtime / "keeper.sock"
        means = "signals" if self.means == "signals" else "auto"
        command = keeper_words(self.state, self.path, grace_s, means)
        with open(self.state / "keeper.log", "ab") as log:
            self.process = subprocess.Popen(
                command, stderr=stderr or log, env=self.environment, cwd="/"
            )
        self.log.touch()
        return self.line()

    def line(self):
        def connect():
            try:
                self.lines_open.append(Line(self.path, self.state))
            except (FileNotFoundError, ConnectionError):
                return None  # or one answered that was just killed, whose socket a shim still had
            return self.lines_open[-1]

        return until(connect, "a keeper that answers")

    def launch(self, text):
        """What the daemon says of a job that runs this text."""
        return {
            "command": ["/bin/sh", "-c", text],
            "cwd": str(self.place),
            "environment": {**os.environ, "IOD_TEST_MARK": self.mark},
            "umask": 0o022,
            "cpus": sorted(os.sched_getaffinity(0)),
            "memory_nodes": [],
            "stdout": None,
            "stderr": None,
            "open_files": 1024,
        }

    def gated_launch(self):
        text = "echo start >> ledger; until [ -e gate-it ]; do sleep 0.02; echo >> ticks-it; done"
        return self.launch(f"{text}; echo done >> ledger; exit 3")

    def __exit__(self, *failure):
        try:
            super().__exit__(*failure)
        finally:
            for line in self.lines_open:
                line.close()

    def status(self, job=1):
        path = self.directory(job) / "status.json"
        until(path.exists, "status")
        return json.loads(path.read_text())

    def is_running(self):
        return False

    def _leave_nothing(self):
        if self.path.exists():  # also after a SIGKILL: the next keeper tidies up for the last
            line = self.line() if self.process.poll() is None else self.begin()
            line.ask("leave")
            assert self.process.wait(20) == 0
        super()._leave_nothing()


def _remove(cgroup):
    """Of a keeper that was killed; true once it is gone, which who has just ended delays."""
    with contextlib.suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()


class ServiceKeeper(Keeper):
    """As systemd starts it, but without a scope: by signals, or by a cgroup tree of its own."""

    min_uid = 1000

    def begin(self, grace_s=60):
        for path in (self.state, self.runtime):
            path.mkdir(mode=0o700, exist_ok=True)
        self.root.chmod(0o711)
        self.path = self.runtime / "keeper.sock"
        identity = (DAEMON.pw_uid, DAEMON.pw_gid, self.min_uid)
        means = "signals" if self.means == "signals" else "auto"
        command = keeper_words(self.state, self.path, grace_s, means, *identity)
        self.log.touch()
        with open(self.state / "keeper.log", "ab") as log:
            self.process = subprocess.Popen(
                self.prefix(command), stderr=log, env=self.environment, cwd="/"
            )
        return self.line()

    def prefix(self, command):
        """The command, or what runs it; it must exec it in the end."""
        return command

    def launch(self, text, *, uid=NOBODY.pw_uid, **fields):
        return {**super().launch(text), "uid": uid, "cwd": "/", **fields}

    def run(self, text, **fields):
        """What it prints, and its status."""
        line = self.lines_open[-1] if self.lines_open else self.begin()
        line.ask("start", job=1, attempt=1, launch=self.launch(text, **fields))
        status = self.status()
        output = self.directory(1) / "output"
        return output.read_text() if output.exists() else None, status

    def _leave_nothing(self):
        if self.process is not None and self.process.poll() is None:
            end(self.process.pid)
            self.process.wait()
        self.path.unlink(missing_ok=True)
        for tree in cgroup_trees(self.state):  # it could not take it away any more
            until(lambda: not marked(self.mark), "end of all processes")
            for path in (*tree.glob("jobs/*/"), *tree.glob("*/"), tree):
                until(lambda path=path: _remove(path), f"removal of {path}")
        super(Keeper, self)._leave_nothing()


@pytest.fixture
def keeper(means):
    with Keeper(means) as keeper:
        yield keeper
