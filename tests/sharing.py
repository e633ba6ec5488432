"""A service for all users, with storage tiers: root's keeper, and a daemon in a sandbox."""

import contextlib
import os
import pwd
import socket
import subprocess

from calling import call_as
from harness import Server, end, is_listening, until
from keeping import DAEMON, keeper_words
from tiering import Tiered

MAIL = pwd.getpwnam("mail")
"""The first user."""
GAMES = pwd.getpwnam("games")
"""The second user."""
LEAST_UID = 2
_POWERS = "+sys_ptrace,+dac_read_search"
"""Of iodaemon.service."""
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
        theirs = f'state_dir = "{daemons}"\nkeeper_dir = "{self.state}"'
        self.config.write_text(said.replace(ours, theirs))
        self.keeper = None
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

    # -- daemon and keeper -----------------------------------------------------------------------

    def command(self):
        daemon = [*super().command(), "--system"]
        ids = ["--reuid", str(DAEMON.pw_uid), "--regid", str(DAEMON.pw_gid), "--clear-groups"]
        powers = ["--inh-caps", _POWERS, "--ambient-caps", _POWERS, "--bounding-set"]
        seen = ["sh", "-c", _HIDDEN, str(self.disks[0].parent)]
        setpriv = ["setpriv", *ids, *powers, f"-all,{_POWERS}", *daemon]
        return ["unshare", "--mount", "--propagation", "slave", *seen, *setpriv]

    def start(self, *, wait=True):
        for path in (self.state, self.runtime):
            path.mkdir(mode=0o700, exist_ok=True)
        self.runtime.chmod(0o755)
        if self.keeper is None or self.keeper.poll() is not None:
            self._start_keeper()
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
                env={**self.environment, "HOME": "/"},
                cwd="/",
            )
        if wait:
            until(self.answers, "a daemon that answers")
        return self

    def answers(self):
        """Its socket is there before it is; what it is asked too early waits."""
        assert self.process.poll() is None, f"the daemon ended: {self.log.read_text()}"
        return b" event=ready " in self.log.read_bytes()[self._told_before :]

    def _start_keeper(self):
        identity = (DAEMON.pw_uid, DAEMON.pw_gid, LEAST_UID)
        path = self.runtime / "keeper.sock"
        command = keeper_words(self.state, path, 60, "signals", *identity)
        with open(self.state / "keeper.log", "ab") as log:
            self.keeper = subprocess.Popen(command, stderr=log, env=self.environment, cwd="/")
        until(lambda: is_listening(path), "a keeper that listens")

    def _leave_nothing(self):
        if self.is_running():
            self.end_all()
            assert self.stop() == 0, self.log.read_text()
        if self.keeper is not None:
            end(self.keeper.pid)
            self.keeper.wait()
        (self.runtime / "keeper.sock").unlink(missing_ok=True)
        Server._leave_nothing(self)

    def __exit__(self, *failure):
        try:
            super().__exit__(*failure)
        finally:
            if self._listener is not None:
                self._listener.close()
            if self.keeper is not None:
                with contextlib.suppress(ProcessLookupError):
                    self.keeper.kill()
                self.keeper.wait()


__all__ = ["GAMES", "MAIL", "Shared"]
