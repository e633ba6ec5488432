"""A keeper outlives an upgrade of the package: it reads no module once it serves."""

import shutil
from pathlib import Path

import pytest
from harness import until
from keeping import NOBODY, ServiceKeeper
from scratching import Scratching, both_disks, disks, share

import iodaemon

__all__ = ["both_disks", "disks"]

pytestmark = pytest.mark.node

PACKAGE = Path(iodaemon.__file__).parent
NOTES_IMPORTS = """
import os, sys
def note(event, words):
    if event == "import":
        fd = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(fd, f"{{os.getpid()}} {{words[0]}}\\n".encode())
        os.close(fd)
sys.addaudithook(note)
"""


class UpgradedKeeper(ServiceKeeper):
    """A keeper of a copy of the package, which is replaced once the keeper serves.

    Each module that it, or a process that it forks, looks for is noted.
    """

    def prefix(self, command):
        self.site = self.root / "site"
        shutil.copytree(
            PACKAGE, self.site / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__")
        )
        self.imports = self.root / "imports"
        self.imports.touch()
        self.imports.chmod(0o666)
        words = list(command)
        at = words.index("-c") + 1
        code = words[at].replace(repr(str(PACKAGE.parent)), repr(str(self.site)))
        assert code != words[at]
        words[at] = NOTES_IMPORTS.format(log=str(self.imports)) + code
        return words

    def upgrade(self):
        """No module of the package is what it was."""
        shutil.rmtree(self.site / PACKAGE.name)
        (self.site / PACKAGE.name).mkdir()
        (self.site / PACKAGE.name / "__init__.py").write_text("raise ImportError('another one')")
        self.imports.write_text("")


@pytest.fixture
def jobs(disks):
    with UpgradedKeeper("signals") as keeper:
        jobs = Scratching(keeper, disks)
        keeper.upgrade()
        yield jobs


@pytest.fixture
def data(jobs):
    """A directory with an input, and room for an output."""
    place = jobs.keeper.root / "data"
    for folder in (place, place / "in", place / "out"):
        folder.mkdir()
        folder.chmod(0o777)
    (place / "in" / "a").write_text("a")
    return place


def test_whatever_a_keeper_is_asked_it_imports_nothing_once_it_serves(jobs, data):
    staging = {"input": str(data / "in"), "output": str(data / "out"), "on": "success"}
    jobs.start("sleep 1000", [], job=2)
    frozen = jobs.line.ask("freeze", job=2, attempt=1)
    thawed = jobs.line.ask("thaw", job=2, attempt=1)
    listed = jobs.line.ask("list", jobs=[[2, 1], [3, 1]])
    jobs.line.ask("kill", job=2, attempt=1, signal=15)
    killed = jobs.keeper.status(2)
    jobs.start("/no/such/command; cat $IOD_SCRATCH/a > $IOD_SCRATCH/b", staging=staging)
    staged = jobs.keeper.status()
    jobs.await_scratch("removed")
    jobs.line.ask("tidy", job=1, attempt=1)
    jobs.line.ask("nonsense")
    jobs.start("exit 7", [], job=4, uid=NOBODY.pw_uid + 1)  # there is no such user
    retired = jobs.line.ask("retire", before_s=2e9, most=10)

    assert (True, False) == (frozen["frozen"], thawed["frozen"])
    assert [2, 3] == [each["job"] for each in listed["jobs"]]
    assert 15 == killed["exit"]["signal"]
    assert 0 == staged["exit"]["code"]
    assert "a" == (data / "out" / "b").read_text()
    assert retired["removed"] >= 2
    assert "" == jobs.keeper.imports.read_text()


def test_a_keeper_copies_out_again_and_finds_a_killed_shim_without_a_module(jobs, data):
    output = data / "out" / "full"
    staging = {"input": None, "output": str(output), "on": "success"}
    output.write_text("in the way")
    jobs.start("echo x > $IOD_SCRATCH/x", [share(jobs.disks[0], 4)], staging=staging)
    jobs.await_scratch("kept")
    output.unlink()
    output.mkdir(mode=0o777)
    output.chmod(0o777)
    jobs.scratch(copy=True)
    jobs.await_scratch("removed")
    jobs.start("sleep 1000", [], job=2)
    jobs.keeper.kill_shim(2)
    until(
        lambda: jobs.line.ask("list", jobs=[[2, 1]])["jobs"][0].get("alive") is False, "its death"
    )
    jobs.line.ask("kill", job=2, attempt=1, signal=9)

    assert "x\n" == (output / "x").read_text()
    assert "" == jobs.keeper.imports.read_text()
