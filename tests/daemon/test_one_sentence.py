"""One sentence for what is wrong with a disk, whoever finds it and wherever it is told."""

import contextlib
import itertools
import json
import os
import shutil
import threading
from functools import partial

import pytest
from scratching import both_disks, disks, needs_root, read_only
from tiering import tables

from iodaemon.config import load_config
from iodaemon.daemon.preflight import Preflight
from iodaemon.daemon.tiering import find_unusable, live_tiers, look_at_disks
from iodaemon.doctor.disks import check_tiers
from iodaemon.doctor.report import Verdict
from iodaemon.node import tier_disk
from iodaemon.node.tier_disk import probe_disk, read_answer
from iodaemon.supervisor import disk_trouble, scratch, syscalls

__all__ = ["both_disks", "disks"]

pytestmark = [pytest.mark.node, needs_root]


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
