"""One sentence for what is wrong with a disk, whoever finds it; when it is looked at again."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import threading
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
from builders import job
from scratching import both_disks, disks, needs_root, read_only
from tiering import tables

from iodaemon.config import load_config
from iodaemon.core.job import DiskId, JobState, Share, TierName
from iodaemon.daemon import tiering
from iodaemon.daemon.preflight import Preflight
from iodaemon.daemon.tiering import find_unusable, live_tiers, look_at_disks
from iodaemon.doctor.disks import check_tiers
from iodaemon.doctor.report import Verdict
from iodaemon.node import tier_disk
from iodaemon.node.tier_disk import probe_disk, read_answer
from iodaemon.supervisor import disk_trouble, scratch, syscalls

__all__ = ["both_disks", "disks"]


@contextlib.contextmanager
def missing(disk):
    parent = disk.parent.with_name(f"{disk.parent.name}-aside")
    os.rename(disk.parent, parent)
    try:
        yield
    finally:
        os.rename(parent, disk.parent)


@contextlib.contextmanager
def no_directory(disk):
    with missing(disk):
        disk.parent.mkdir()
        disk.touch()
        try:
            yield
        finally:
            shutil.rmtree(disk.parent)


@contextlib.contextmanager
def replaced(disk):
    with missing(disk):
        disk.mkdir(parents=True)
        try:
            yield
        finally:
            shutil.rmtree(disk.parent)


@contextlib.contextmanager
def not_ours(disk):
    disk.chmod(0o777)
    try:
        yield
    finally:
        disk.chmod(0o755)


@contextlib.contextmanager
def filled(disk, make):
    filler = disk / "filler"
    filler.mkdir()
    try:
        with contextlib.suppress(OSError):  # no space is left at some time
            for number in itertools.count():
                make(filler / f"{number}")
        yield
    finally:
        shutil.rmtree(filler)


def take_blocks(path):
    path.write_bytes(bytes(64 << 20))


def take_an_inode(path):
    path.touch()


CONDITIONS = {
    "missing": (missing, disk_trouble.MISSING),
    "no directory": (no_directory, disk_trouble.NO_DIRECTORY),
    "read-only": (read_only, disk_trouble.READ_ONLY),
    "replaced": (replaced, disk_trouble.REPLACED),
    "not ours": (
        not_ours,
        (
            "belongs to uid 0, mode 0777, so that others may change it; "
            "'chown 0 DISK; chmod go-w DISK'"
        ),
    ),
    "no inodes": (partial(filled, make=take_an_inode), disk_trouble.NO_INODES),
    "full": (partial(filled, make=take_blocks), disk_trouble.FULL),
}


def answer_to(wish):
    """What the supervisor's helper answers."""
    read, write = os.pipe()
    pid = syscalls.fork(lambda: scratch._work(wish, write), write)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return answer


@needs_root
@pytest.mark.node
@pytest.mark.parametrize("name", CONDITIONS)
def test_whoever_finds_it_says_the_same(disks, tmp_path, name):
    begin, trouble = CONDITIONS[name]
    disk = str(disks[0])
    path = tmp_path / "config.toml"
    path.write_text(tables([disk]))
    config = load_config(path, {"HOME": "/nonexistent"}, 1000, {})
    tiers = live_tiers(config, look_at_disks(config), ())
    number = os.stat(disk).st_dev
    with begin(disks[0]):
        looked = find_unusable(config, tiers, look_at_disks(config))[disk]
        asked = read_answer(disk, answer_to({"do": "look", "disk": disk, "is_shared": False}))
        preflight = Preflight(config)
        checked = [*preflight.find_problems(), *preflight.find_obstacles()]
        examined = [
            f"{finding.measured}; {finding.remedy}"
            for finding in check_tiers(config.tier, None, is_shared=False)
            if finding.verdict is Verdict.BROKEN
        ]
        wish = {"do": "make", "disk": disk, "name": "1-1-a", "uid": os.geteuid()}
        met = answer_to({**wish, "filesystem": number})

    told = f"tier fast: disk {disk} {trouble.replace('DISK', disk)}"
    assert told == looked
    if name != "replaced":
        assert trouble.replace("DISK", disk) in (asked.problem, asked.obstacle, asked.lack)
    assert met["is_disk"]
    assert told == disk_trouble.sentence(disk, met["problem"], "fast")
    if name != "replaced":  # only who knows what was there can tell that
        assert [told] == checked
        assert [told] == examined


def test_a_disk_that_hangs_holds_up_nobody_and_is_told_as_such(tmp_path, monkeypatch):
    go_on, hanging = threading.Event(), tmp_path / "hanging"

    def hang(path, *, is_shared):
        if path == str(hanging):
            go_on.wait()
        return probe_disk(path, is_shared=is_shared)

    monkeypatch.setattr(tier_disk, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(tier_disk, "probe_disk", hang)
    found = tier_disk.probe_disks([str(hanging), str(tmp_path)], is_shared=False)
    go_on.set()

    assert [disk_trouble.SILENT, ""] == [each.problem for each in found.values()]


FAST, SLOW = DiskId("/fast"), DiskId("/slow")


class OverError(Exception):
    """The time of a test is over."""


class Watched:
    """A daemon's watch over two disks; it stands for the parts of the driver that this asks.

    Attributes:
        why: what a look finds to be wrong, by disk.
        looks: when it looked.
        known: what was known from when on, as (time, the disks that are out).
    """

    def __init__(self, monkeypatch):
        self.now_s, self.why, self.looks, self.known, self.live = 0.0, {}, [], [], []
        tier = SimpleNamespace(disks=[SimpleNamespace(id=FAST), SimpleNamespace(id=SLOW)])
        self.unusable = {}
        self.stock = SimpleNamespace(tiers=[tier], unusable=self.unusable, promised_bytes=dict)
        self.state = SimpleNamespace(stock=self.stock, live=self.live)
        self.timeline = self.watch = self
        monkeypatch.setattr(tiering, "ask_for_disks", self.look)
        monkeypatch.setattr(tiering, "find_unusable", lambda config, tiers, facts, promised: facts)

    async def look(self, *_):
        self.looks.append(self.now_s)
        if isinstance(self.why, Exception):
            raise self.why
        return dict(self.why)

    def post(self, event):
        """A disk was seen."""
        if event.problem:
            self.unusable[event.disk] = event.problem
        else:
            del self.unusable[event.disk]
        self.known.append((self.now_s, set(self.unusable)))

    def meet(self, disk):
        """A job could not have its directory there."""
        self.unusable[disk] = "I/O error"

    async def until(self, holds, pause_s):
        """Go on to what happens next, or to the end of the pause."""
        end_s = self.now_s + pause_s
        while not holds() and self.script and self.script[0][0] <= end_s:
            self.now_s, happens = self.script.pop(0)
            happens()
        if not holds():
            self.now_s = end_s
        return holds()

    def run(self, *script, until_s):
        """Watch while these things happen, each a time and a call."""

        def end():
            raise OverError

        self.script = [*script, (until_s, end)]
        config = SimpleNamespace(tier=True, backend="linux")
        with pytest.raises(OverError):
            asyncio.run(tiering.watch_disks(config, self, None))


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def test_a_disk_that_is_out_is_looked_at_ever_less_often(watched):
    def break_down():
        watched.why = {FAST: "gone"}
        watched.meet(FAST)
        watched.looks[:] = [watched.now_s]

    watched.run((100.0, break_down), until_s=350.0)

    between = [later - earlier for earlier, later in pairwise(watched.looks)]
    assert [2, 4, 8, 16, 32, 60, 60, 60] == between


def test_one_that_is_out_again_waits_longer_only_for_the_times_it_was_out(watched):
    """Within a minute of its return; however long all disks worked before."""
    times = (100.0, 132.0, 186.0, 264.0)
    watched.run(*((at_s, lambda: watched.meet(FAST)) for at_s in times), until_s=300.0)

    assert [102.0, 136.0, 194.0, 266.0] == [at_s for at_s, _ in watched.known]


def test_beside_a_disk_that_is_out_for_long_others_are_looked_at_as_always(watched):
    """One on which a job has been starting for ever; it hangs and gives no error."""
    share = Share(tier=TierName("slow"), disk=SLOW, size_bytes=1)
    watched.live.append(job(state=JobState.STARTING, shares=(share,), at_s=-100.0))
    watched.why = {FAST: "gone"}

    def hang():
        watched.why = {FAST: "gone", SLOW: "silent"}

    def answer():
        watched.why = {FAST: "gone"}

    script = [(1.0, lambda: watched.meet(FAST)), (401.0, hang), (407.5, answer)]
    watched.run(*script, until_s=500.0)

    [(out_s, out), (back_s, back)] = [each for each in watched.known if each[0] > 100.0]
    assert ({FAST, SLOW}, {FAST}) == (out, back)
    assert out_s - 401.0 <= 5.0
    assert 0.0 < back_s - 407.5 <= 4.0


def test_the_log_has_each_reason_that_a_disk_is_out_for_and_each_once(watched, caplog):
    def turn(why):
        watched.why = why

    script = [
        (10.0, lambda: turn({FAST: "is read-only"})),
        (11.0, lambda: watched.meet(FAST)),
        (150.0, lambda: turn({FAST: "is full"})),
        (300.0, lambda: turn({})),
    ]
    watched.run(*script, until_s=500.0)

    told = [record.getMessage() for record in caplog.records]
    reasons = ("I/O error", "is read-only", "is full")
    out = [f'event=disk_out disk=/fast text="{why}"' for why in reasons]
    assert [*out, "event=disk_back disk=/fast"] == told


def test_a_look_that_fails_is_told_and_is_not_the_last(watched, caplog):
    def mend():
        watched.why = {}

    watched.why = ValueError("no answer")
    watched.run((10.0, lambda: watched.meet(FAST)), (13.0, mend), until_s=60.0)

    told = [record for record in caplog.records if "disk_look_failed" in record.getMessage()]
    assert {ValueError} == {record.exc_info[0] for record in told}
    assert {} == watched.unusable
