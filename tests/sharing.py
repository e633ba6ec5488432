"""A service for all users, with storage tiers: root's supervisor, and a daemon in a sandbox."""

import contextlib
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

from calling import call_as
from harness import DAEMON, Server, is_listening, until
from tiering import Tiered

import iodaemon
from iodaemon.supervisor import anchor


def _is_for_all(python):
    """Whether every user may execute it, and it can import what this one can."""
    path = Path(python).resolve()
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout
    is_like_this = (
        version.split()[1].rpartition(".")[0] == sys.version.split()[0].rpartition(".")[0]
    )
    return is_like_this and all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


MAIL = pwd.getpwnam("mail")
"""The first user."""
GAMES = pwd.getpwnam("games")
"""The second user."""
LEAST_UID = 2
PYTHON = next((p for p in (sys.executable, "/usr/bin/python3") if _is_for_all(p)), sys.executable)
"""Of the daemon: one that its users may execute, as jobs' data are copied by it as them."""
_PACKAGES = os.pathsep.join(
    [str(Path(iodaemon.__path__[0]).parent), *(p for p in sys.path if "site-packages" in p)]
)
_HIDDEN = """
mount -t tmpfs -o mode=000,ro none "$0" &&
LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&0 0</dev/null
"""
"""The sandbox of the daemon's unit: a place that it does not see, the socket handed over."""


class Shared(Tiered):
    """Its daemon sees no tier's disk where it is, as with ProtectHome= and PrivateTmp=.

    Args:
        disks: of ``two_disks``.
        text: further tables of the configuration.
        settings: further lines of it.
    """

    def __init__(self, disks, text, **settings):
        super().__init__(disks, text, min_uid=LEAST_UID, **settings)
        self.root.chmod(0o711)
        daemons = self.root / "daemon"
        daemons.mkdir(mode=0o750)
        os.chown(daemons, DAEMON.pw_uid, DAEMON.pw_gid)
        said = self.config.read_text()
        ours = f'state_dir = "{self.state}"'
        theirs = f'state_dir = "{daemons}"\nsupervisor_dir = "{self.state}"'
        self.config.write_text(said.replace(ours, theirs))
        self.anchor = None
        self._listener = None

    def home(self, user):
        """A directory of this user's own, closed to others."""
        path = self.root / user.pw_name
        if not path.exists():
            path.mkdir(mode=0o700)
            os.chown(path, user.pw_uid, user.pw_gid)
        return path

    def as_user(self, user, *words):
        """As ``iod`` of a server, called by this user at home."""
        told = call_as(
            *(user.pw_uid, user.pw_gid, self.client.socket_path),
            *words,
            env={**self.environment, "HOME": str(self.home(user))},
            cwd=self.home(user),
        )
        return told.returncode, told.stdout + told.stderr

    def sent_by(self, user, *words, text):
        """The number of a job of this user's."""
        code, told = self.as_user(user, "submit", *words, "--", "/bin/sh", "-c", text)
        assert code == 0, told
        return int(told.split()[-1])

    # -- daemon and root side ----------------------------------------------------------------------

    def command(self):
        daemon = [PYTHON, *super().command()[1:], "--system"]
        ids = ["--reuid", str(DAEMON.pw_uid), "--regid", str(DAEMON.pw_gid), "--clear-groups"]
        seen = ["sh", "-c", _HIDDEN, str(self.disks[0].parent)]
        setpriv = ["setpriv", *ids, "--inh-caps=-all", "--bounding-set=-all", *daemon]
        return ["unshare", "--mount", "--propagation", "slave", *seen, *setpriv]

    def start(self, *, wait=True):
        for path, mode in ((self.state, 0o711), (self.runtime, 0o755)):
            path.mkdir(exist_ok=True)
            path.chmod(mode)
        if self.anchor is None or self.anchor.poll() is not None:
            self._start_anchor()
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(self.client.socket_path)
            os.chmod(self.client.socket_path, 0o666)
            self._listener.listen()
        with open(self.log, "ab") as log:
            self._told_before = log.tell()
            self.process = subprocess.Popen(
                self.command(),
                stdin=self._listener,
                stdout=log,
                stderr=log,
                env={**self.environment, "HOME": "/", "PYTHONPATH": _PACKAGES},
                cwd="/",
            )
        if wait:
            until(self.answers, "a daemon that answers")
        return self

    def answers(self):
        """Its socket is there before it is; what it is asked too early waits."""
        assert self.process.poll() is None, f"the daemon ended: {self.log.read_text()}"
        return b" event=ready " in self.log.read_bytes()[self._told_before :]

    def _start_anchor(self):
        config = anchor.Config(
            runtime=str(self.runtime),
            daemon_uid=DAEMON.pw_uid,
            daemon_gid=DAEMON.pw_gid,
            min_uid=LEAST_UID,
            outputs=str(self.state / "output"),
            grace_s=60,
            cgroup="none",
            is_service=True,
        )
        with open(self.state / "supervisor.log", "ab") as log:
            self.anchor = subprocess.Popen(
                anchor.command("anchor", config.dump()), stderr=log, env=self.environment, cwd="/"
            )
        until(lambda: is_listening(self.runtime / anchor.SOCKET), "a supervisor that listens")

    def _leave_nothing(self):
        if self.is_running():
            self.end_all()
            assert self.stop() == 0, self.log.read_text()
        if self.anchor is not None:
            self.anchor.terminate()
            self.anchor.wait()
        Server._leave_nothing(self)

    def __exit__(self, *failure):
        try:
            super().__exit__(*failure)
        finally:
            if self._listener is not None:
                self._listener.close()
            if self.anchor is not None:
                with contextlib.suppress(ProcessLookupError):
                    self.anchor.kill()
                self.anchor.wait()


__all__ = ["GAMES", "MAIL", "Shared"]
