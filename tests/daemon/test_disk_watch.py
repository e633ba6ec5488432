"""When disks of tiers are looked at: real looks at real disks, the time between them virtual."""

import asyncio
import os
import threading
from itertools import pairwise

import pytest
from bench import Bench
from scratching import both_disks, disks, needs_root, read_only
from tiering import tables

from iodaemon.config import load_config
from iodaemon.core import event as ev
from iodaemon.core.job import DiskId
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.tiering import live_tiers, look_at_disks, watch_disks
from iodaemon.daemon.timeline import WallTimeline
from iodaemon.supervisor import scratch

__all__ = ["both_disks", "disks"]

pytestmark = [pytest.mark.node, needs_root]

PATIENCE_S = 100.0
"""Of virtual time."""


async def answer_look(*, do, disk):
    """As the supervisor's helper."""
    assert do == "look"
    return scratch._look(disk, is_shared=False)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next timer, and stands still while a look is under way."""

    def __init__(self):
        super().__init__()
        self._now_s = 0.0
        self._wait = self._selector.select
        self._selector.select = self._leap

    def time(self):
        return self._now_s

    def _leap(self, timeout_s=None):
        looks = any(thread.name == "disk" for thread in threading.enumerate())
        events = self._wait(0)  # what a thread that has ended had to say is there
        if events or timeout_s == 0:
            return events
        if looks or timeout_s is None:
            return self._wait(0.01)
        self._now_s += timeout_s
        return events


class Watched:
    """Two disks of a tier, and a daemon's watch over them.

    Attributes:
        looks: when it looked, virtual seconds.
    """

    def __init__(self, disks, path):
        (path / "config.toml").write_text(tables(disks))
        self.disks = disks
        self.config = load_config(path / "config.toml", {"HOME": "/nonexistent"}, 1000, {})
        self.journal = Journal.open(path / "journal.db", seed=1)
        self.loop = VirtualLoop()
        self.looks = []

    def run(self, scenario):
        """Watch during the scenario."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._live(scenario))
        self.journal.close()

    async def _live(self, scenario):
        timeline = WallTimeline(self.loop)
        tiers = live_tiers(self.config, look_at_disks(self.config), ())
        self.bench = Bench(self.journal, timeline=timeline, slots=(4,), tiers=tiers)
        self.bench.driver.run(self.bench.backend)
        watch = asyncio.create_task(watch_disks(self.config, self.bench.driver, answer_look))
        await asyncio.sleep(1.0)  # the look at the beginning
        await scenario()
        assert not watch.done()
        self.bench.driver.halt()
        watch.cancel()

    def meet(self, disk):
        """A job could not have its directory there."""
        at_s, disk = self.bench.now_s, DiskId(str(disk))
        self.bench.post(ev.DiskSeen(at_s=at_s, disk=disk, problem="I/O error"))

    async def until(self, *out):
        """How long it took until these are the disks that are out, virtual seconds."""
        began_s, wanted = self.loop.time(), {str(disk) for disk in out}
        while self.bench.state.stock.unusable.keys() != wanted:
            assert self.loop.time() < began_s + PATIENCE_S
            await asyncio.sleep(0.125)
        return self.loop.time() - began_s


@pytest.fixture
def watched(disks, tmp_path, monkeypatch):
    watched = Watched(disks, tmp_path)
    ask = os.statvfs

    def count(path):
        if str(path) == str(disks[0]):
            watched.looks.append(watched.loop.time())
        return ask(path)

    monkeypatch.setattr(os, "statvfs", count)
    yield watched
    for disk in disks:
        disk.chmod(0o755)


def test_a_disk_that_is_out_is_looked_at_ever_less_often(watched):
    async def scenario():
        await asyncio.sleep(100.0)
        watched.disks[0].chmod(0o777)
        watched.meet(watched.disks[0])
        watched.looks[:] = [watched.loop.time()]
        await asyncio.sleep(250.0)

    watched.run(scenario)

    between = [later - earlier for earlier, later in pairwise(watched.looks)]
    assert pytest.approx([2, 4, 8, 16, 32, 60, 60, 60]) == between


def test_one_that_is_out_again_waits_longer_only_for_the_times_it_was_out(watched):
    """However long all disks worked between."""
    disk, took = watched.disks[0], []

    async def scenario():
        for pause_s in (100.0, 30.0, 50.0, 70.0):
            await asyncio.sleep(pause_s)
            watched.meet(disk)
            await watched.until(disk)
            took.append(await watched.until())

    watched.run(scenario)

    assert pytest.approx([2, 4, 8, 2], abs=0.5) == took


def test_the_log_has_each_reason_that_a_disk_is_out_for_and_each_once(watched, caplog):
    disk = watched.disks[0]

    async def scenario():
        with read_only(disk):
            watched.meet(disk)
            await asyncio.sleep(100.0)
        disk.chmod(0o777)
        await asyncio.sleep(100.0)
        disk.chmod(0o755)
        await watched.until()

    watched.run(scenario)

    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    words = ["I/O error", "is read-only", "belongs to uid 0, mode 0777", f"disk_back disk={disk}"]
    assert [word in line for word, line in zip(words, told, strict=True)] == [True] * 4


def test_a_look_that_fails_is_told_and_is_not_the_last(watched, monkeypatch, caplog):
    disk, ask = watched.disks[0], os.statvfs

    def fail(path):
        monkeypatch.setattr(os, "statvfs", ask)
        raise ValueError(path)

    async def scenario():
        watched.meet(disk)
        await watched.until(disk)
        monkeypatch.setattr(os, "statvfs", fail)
        await watched.until()

    watched.run(scenario)

    told = [record for record in caplog.records if "disk_look_failed" in record.getMessage()]
    assert [ValueError] == [record.exc_info[0] for record in told]
