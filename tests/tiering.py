"""Daemons with storage tiers on two small disks, for tests: asked by the command line."""

import contextlib
import subprocess
import sys

import pytest
from harness import Server, until
from scratching import left

SLOW = '[tier.slow]\nbandwidth = "50 MB/s"\n'


def tables(disks, *, split="", slow=SLOW):
    """The configuration of a fast tier on these disks, and a slow one without."""
    text = "[tier.fast]\n" + (f'split = "{split}"\n' if split else "")
    text += 'staging = "100 MB/s"\n'
    return text + "".join(f'[[tier.fast.disk]]\npath = "{disk}"\n' for disk in disks) + slow


class Tiered(Server):
    """A server with tiers.

    Args:
        disks: of ``two_disks``.
        text: further tables of the configuration.
        settings: further lines of it.
    """

    def __init__(self, disks, text, **settings):
        super().__init__("signals", has_faults=True, **settings)
        self.disks = disks
        with open(self.config, "a") as file:
            file.write(text)
        (self.root / "in").mkdir()

    def iod(self, *words):
        """Call the command line: exit code, and what it told."""
        told = subprocess.run(
            [sys.executable, "-m", "iodaemon.cli", "--api", self.client.socket_path, *words],
            env=self.environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return told.returncode, told.stdout + told.stderr

    def says(self, *words):
        """What it told, of a call that succeeded."""
        code, told = self.iod(*words)
        assert code == 0, told
        return told

    def sent(self, *words, text=None):
        """The number of a job that was submitted by the command line."""
        script = () if text is None else ("--", "/bin/sh", "-c", text)
        return int(self.says("submit", *words, *script).split()[-1])

    def held(self, name, *words):
        """A job that begins, says where its space is, and lasts until its gate is open."""
        text = (
            f'echo "start {name}" >> ledger; echo "$IOD_SCRATCH" > at-{name};'
            f" while [ ! -e gate-{name} ]; do sleep 0.02; echo >> ticks-{name}; done;"
            f' echo "done {name}" >> ledger'
        )
        return self.sent(*words, text=text)

    def paths(self, name):
        """Where the space of a held job is, once it has begun."""
        until(lambda: self.ticks(name), f"the start of {name}")
        return (self.place / f"at-{name}").read_text().split()[0].split(":")

    def taken(self):
        """Bytes of each job, by ``iod node``'s record."""
        rows = self.client.node()["allocated"]
        found = {}
        for row in rows:
            found[row["job_id"]] = found.get(row["job_id"], 0) + row["size_bytes"]
        return found

    def revive(self):
        """Another daemon where none is left."""
        if not self.is_running():
            self.restart()

    def await_nothing(self):
        """Nothing is on the disks any more, and nothing is taken of them."""
        until(lambda: not left(self.disks), f"removal of {left(self.disks)}")
        until(lambda: not self.taken(), f"space to be free again ({self.taken()})")

    def input(self, **files):
        """Files to be copied in; where."""
        for name, content in files.items():
            (self.root / "in" / name).write_bytes(content)
        return str(self.root / "in")


@pytest.fixture
def make_tiered(disks):
    """Makes servers with tiers on the two disks; each is left behind clean."""
    with contextlib.ExitStack() as servers:

        def make(*, text=None, **settings):
            text = tables(disks, split="4 MiB") if text is None else text
            return servers.enter_context(Tiered(disks, text, **settings)).start()

        yield make
