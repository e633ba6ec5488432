"""Two small disks of storage tiers, and jobs that have directories on them, for tests."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from harness import find_state, marked, until
from keeping import Keeper, ServiceKeeper
from mounting import make_file_system, mount

MIB = 1 << 20
KEY = {"job": 1, "attempt": 1}


@contextlib.contextmanager
def two_disks():
    """Two ext4 file systems of 16 MiB, mounted; unmounted again whatever happens."""
    place = Path(tempfile.mkdtemp(prefix="iod-disks-"))
    disks = []
    try:
        for name in ("fast", "slow"):
            image, disk = place / f"{name}.img", place / name
            make_file_system(image)
            disk.mkdir()
            mount("-o", "loop", str(image), str(disk))
            disks.append(disk)
        place.chmod(0o755)
        yield disks
    finally:
        for disk in disks:
            subprocess.run(["umount", "--recursive", disk], check=True)
        subprocess.run(["rm", "-rf", place], check=True)


@contextlib.contextmanager
def read_only(disk):
    """The disk as it is after an error; writable again whatever happens."""
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


def left(disks):
    """Names of jobs' directories that are there."""
    stores = [disk / ".iodaemon" for disk in disks]
    return sorted(p.name for s in stores if s.exists() for p in s.iterdir() if p.name != "id")


def share(disk, mib=4):
    return {"path": str(disk), "size": mib * MIB}


class Scratching:
    """A keeper whose jobs have directories.

    Args:
        keeper: a ``Keeper``, running or not.
        disks: of ``two_disks``.
    """

    def __init__(self, keeper, disks):
        self.keeper = keeper
        self.disks = disks
        self.line = keeper.begin()
        if keeper.faults.exists():
            keeper.faults.chmod(0o777)  # a step of staging passes points as its user

    def arm(self, point, *, passage=1, number=signal.SIGKILL):
        """As ``Server.arm``, for whoever passes it."""
        unseen = self.keeper.root / f"{point}.new"
        unseen.write_text(f"{passage} {int(number)}")
        unseen.chmod(0o666)
        unseen.rename(self.keeper.faults / point)

    def stopped_at(self, point):
        """Who was stopped there, once it stands still."""
        until(lambda: not self.keeper.armed(), f"passage of {point}")

        def look():
            return [pid for pid in marked(self.keeper.mark) if find_state(pid) == "T"]

        return until(look, f"a stop at {point}")[0]

    def start(self, text, shares=None, job=1, *, waits=True, **launch):
        """Start a job that runs this text; the keeper's answer, where it is waited for."""
        shares = [share(self.disks[0])] if shares is None else shares
        fields = {**self.keeper.launch(text), "scratch": shares, **launch}
        if not waits:
            self.line.say(("start", {"job": job, "attempt": 1, "launch": fields}))
            return None
        return self.line.ask("start", job=job, attempt=1, launch=fields)

    def run(self, text, shares=None, **launch):
        """Its status; its directories may be there for a moment."""
        self.start(text, shares, **launch)
        return self.keeper.status()

    def scratch(self, known=None, **more):
        """What the keeper says of job 1's directories."""
        return self.line.ask("scratch", **KEY, known=known, **more)

    def await_scratch(self, *states):
        """The report, once its state is one of these."""

        def look():
            report = self.scratch()
            return report if report.get("state") in states else None

        return until(look, lambda: f"{states} ({self.scratch()})")

    def await_removal(self):
        """Nothing of any job is left on the disks."""
        until(lambda: not left(self.disks), lambda: f"removal of {left(self.disks)}")

    def output(self):
        return (self.keeper.directory(1) / "output").read_text()

    def begin_again(self):
        """Another keeper, where the last was killed."""
        with contextlib.suppress(ProcessLookupError):
            self.keeper.process.kill()
        self.keeper.process.wait()
        self.line = self.keeper.begin()

    def record(self):
        return json.loads((self.keeper.directory(1) / "scratch.json").read_text())

    def place(self, number=0):
        """The job's directory on a disk."""
        share = self.record()["shares"][number]
        return Path(share["path"], ".iodaemon", share["name"])


@pytest.fixture(scope="module")
def both_disks():
    with two_disks() as disks:
        yield disks


@pytest.fixture
def disks(both_disks):
    yield both_disks
    remaining = left(both_disks)
    for name in remaining:  # they would fail all tests that follow
        subprocess.run(["rm", "-rf", *(d / ".iodaemon" / name for d in both_disks)], check=False)
    assert [] == remaining
    here = str(both_disks[0].parent)
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    assert sorted(map(str, both_disks)) == sorted(p for p in mounted if p.startswith(here))


@pytest.fixture
def jobs(disks):
    """Jobs of nobody's, with a keeper as the service has it."""
    with ServiceKeeper("signals", has_faults=True) as keeper:
        jobs = Scratching(keeper, disks)
        yield jobs
        jobs.await_removal()


@pytest.fixture
def own_jobs(disks, means):
    """Jobs with the keeper of a user's own daemon, by either means."""
    with Keeper(means) as keeper:
        jobs = Scratching(keeper, disks)
        yield jobs
        jobs.await_removal()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
