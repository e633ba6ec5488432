"""A keeper outlives an upgrade of the package: it reads no module once it serves."""

import shutil
from pathlib import Path

import pytest
from harness import until
from keeping import NOBODY, ServiceKeeper
from scratching import both_disks, disks, left

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
def keeper():
    with UpgradedKeeper("signals") as keeper:
        keeper.line = keeper.begin()
        keeper.upgrade()
        yield keeper


def start(keeper, text, job, **more):
    launch = {**keeper.launch(text), **more}
    return keeper.line.ask("start", job=job, attempt=1, launch=launch)


def test_whatever_a_keeper_is_asked_it_imports_nothing_once_it_serves(keeper, disks):
    place = keeper.root / "data"
    for folder in (place, place / "in", place / "out"):
        folder.mkdir()
        folder.chmod(0o777)
    (place / "in" / "a").write_text("a")
    staging = {"input": str(place / "in"), "output": str(place / "out"), "on": "success"}
    shares = [{"path": str(disks[0]), "size": 4 << 20}]
    ask = keeper.line.ask
    start(keeper, "sleep 1000", 2)
    frozen = ask("freeze", job=2, attempt=1)
    thawed = ask("thaw", job=2, attempt=1)
    listed = ask("list", jobs=[[2, 1], [3, 1]])
    ask("kill", job=2, attempt=1, signal=15)
    killed = keeper.status(2)
    text = "/no/such/command; cat $IOD_SCRATCH/a > $IOD_SCRATCH/b"
    start(keeper, text, 1, scratch=shares, staging=staging)
    staged = keeper.status(1)
    measured = ask("scratch", job=1, attempt=1, measure=True)
    until(lambda: ask("scratch", job=1, attempt=1)["state"] == "removed", "its removal")
    ask("tidy", job=1, attempt=1)
    ask("nonsense")
    start(keeper, "exit 7", 4, uid=NOBODY.pw_uid + 1)  # there is no such user
    start(keeper, "sleep 1000", 5)
    keeper.kill_shim(5)
    until(lambda: ask("list", jobs=[[5, 1]])["jobs"][0].get("alive") is False, "its death")
    ask("kill", job=5, attempt=1, signal=9)
    retired = ask("retire", before_s=2e9, most=10)

    assert (True, False) == (frozen["frozen"], thawed["frozen"])
    assert [2, 3] == [each["job"] for each in listed["jobs"]]
    assert 15 == killed["exit"]["signal"]
    assert 0 == staged["exit"]["code"]
    assert ("held", False, True) == (measured["state"], measured["is_over"], measured["is_all"])
    assert "a" == (place / "out" / "b").read_text()
    assert retired["removed"] >= 2
    assert "" == keeper.imports.read_text()
    assert [] == left(disks)
