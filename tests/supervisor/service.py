"""A root side as the service has it: root's, with jobs of any user but root."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from pathlib import Path
from typing import Any

from harness import until
from root_side import Daemon, Gate, Message, RootSide

NOBODY = pwd.getpwnam("nobody").pw_uid
PATH = {"PATH": os.environ["PATH"]}


class Service:
    """One for many tests: each job has a key of its own, each test has directories of its own.

    Attributes:
        tmp: everybody's.
        home: of a user, with a file ``precious``.
        gate: jobs may wait for it.
    """

    def __init__(self, means: str) -> None:
        self.outputs = Path(tempfile.mkdtemp(prefix="iod-test-outputs-", dir="/dev/shm"))
        self.root = RootSide(means, min_uid=1, outputs=str(self.outputs / "own"), is_service=True)
        self.outputs.chmod(0o755)
        self.outputs /= "own"
        self.root.begin()
        self.daemon: Daemon = self.root.connect()
        self._jobs = 0

    def lay_out(self) -> None:
        place = Path(tempfile.mkdtemp(dir=self.root.directory))
        place.chmod(0o755)
        self.tmp, self.home = place / "tmp", place / "home"
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        self.home.mkdir()
        self.precious = self.home / "precious"
        self.precious.write_text("before")
        for path in (self.home, self.precious):
            os.chown(path, NOBODY, NOBODY)
        self.gate = Gate(place / "gate")
        self.gate.path.chmod(0o666)

    def close(self) -> None:
        self.root.end()
        shutil.rmtree(self.outputs.parent)

    def execute(self, *words: str, **launch: Any) -> Message:
        """The report that it runs, or does not."""
        self._jobs += 1
        return self.daemon.run(f"{self._jobs}.1", *words, **{"uid": NOBODY, **launch})

    def start(self, text: str, **launch: Any) -> Message:
        return self.execute("/bin/sh", "-c", text, **launch)

    def run(self, text: str, **launch: Any) -> Message:
        """The report of its end."""
        key = self.start(text, **launch)["key"]
        return self.daemon.await_state(key, "ended", "failed")

    def output(self, key: str) -> str:
        """What a job printed, once it has ended well."""
        ended = self.daemon.await_state(key, "ended", "failed")
        text = (self.outputs / key).read_text()
        assert (ended["state"], ended["exit"]["code"]) == ("ended", 0), (ended, text)
        return text

    def printed(self, text: str, **launch: Any) -> str:
        return self.output(self.start(text, **launch)["key"])

    def first_word(self, key: str) -> str:
        """The first one that it prints, which lasts."""
        path = self.outputs / key
        return str(until(lambda: path.exists() and path.read_text().split())[0])

    def refusal(self, path: Path | str, name: str = "stdout") -> str:
        """Why it is no output file; empty: it was one."""
        text = "echo after" if name == "stdout" else "echo after >&2"
        return str(self.run(text, **{name: str(path)}).get("problem", ""))
