"""What machines do to a scheduler besides killing it."""

import contextlib
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from chance import Round
from harness import until
from mounting import disk_of, full, make_file_system, mount
from player import Player

from iodaemon.errors import IodaemonError
from iodaemon.node.sampler.proc_files import find_state
from iodaemon.supervisor.reap import children_of

pytestmark = [pytest.mark.node, pytest.mark.slow]


def test_a_supervisor_and_an_anchor_that_stand_still_are_named_and_hold_no_job():
    """The daemon ends meanwhile, and says what remains."""
    player = Player("signals")
    with player.server:
        player.start()
        going, held, still = (player.submit("gated", code) for code in (0, 3, 4))
        for job in (going, held, still):
            player.until_running(job)
        player.suspend(still)
        supervisor, anchor = player.server.supervisor_pid(), player.server.anchor_pid()
        player.server.stop_processes(anchor, supervisor)
        with ThreadPoolExecutor() as pool:
            cancelling, suspending = (
                pool.submit(player.cancel, going),
                pool.submit(player.suspend, held),
            )
        cancelled, suspended = cancelling.result(), suspending.result()
        told = player.server.client.jobs()["node"]["starts_blocked"]
        node = player.server.client.node()["measured"]
        player.stop()
        code, log = player.server.process.returncode, player.server.log.read_text()
        ours = {anchor, supervisor}
        until(lambda: set(player.server.frozen()) == ours, "a thaw by the holders")
        for pid in ours:
            os.kill(pid, signal.SIGCONT)
        player.revive()
        ended = player.server.end_of(going)
        player.server.await_state(held, "SUSPENDED_USER")

        assert not cancelled["gone"]
        assert ("StopDelayed", "HoldDelayed") == tuple(
            answer["job"]["reason"]["code"] for answer in (cancelled, suspended)
        )
        assert f"(pid {supervisor})" in told
        assert told == node["supervisor_problem"] == cancelled["job"]["reason"]["text"]
        assert 1 == code
        assert f"may stand still: the supervisor (pid {supervisor})" in log
        assert "CANCELLED" == ended["state"]
        assert [] == player.settle()


class FailingDisk:
    """A file system on an image, which the kernel can be told to find damaged."""

    def __init__(self, image, place):
        self.image, self.place = image, place

    def attach(self):
        mount("-o", "loop,errors=remount-ro", self.image, self.place)
        self.place.chmod(0o700)

    def detach(self):
        subprocess.run(["umount", self.place], check=True)

    def turn_read_only(self):
        """At once and under open files, as a real fault does; a remount would be refused."""
        source = subprocess.run(
            ["findmnt", "-n", "-o", "SOURCE", self.place], check=True, capture_output=True
        )
        name = source.stdout.decode().strip().removeprefix("/dev/")
        Path("/sys/fs/ext4", name, "trigger_fs_error").write_text("1")

    def mend(self):
        """As its owner would; nobody may have it open."""
        self.detach()
        subprocess.run(["e2fsck", "-p", self.image], check=False, capture_output=True)
        self.attach()


@contextlib.contextmanager
def failing_disk_of(server, image):
    """As ``disk_of``, on such a disk."""
    make_file_system(image)
    server.state.mkdir(mode=0o700)
    disk = FailingDisk(image, server.state)
    disk.attach()
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", server.state], check=True)
        server.state.rmdir()
        server.root.rmdir()


def test_whatever_is_asked_while_the_disk_is_full_nothing_is_lost(means):
    chance = random.Random(5)
    player = Player(means, chance)
    with disk_of(player.server) as disk, player.server:
        player.start()
        gated, still = player.submit("gated", 3), player.submit("gated", 4)
        player.until_running(gated)
        player.until_running(still)
        with full(disk):
            while player.submit("short") is not None:  # until the log has no room either
                player.look(still)
            player.suspend(still)
            player.gate.touch()
            time.sleep(0.3)
            player.kill_daemon()
        player.revive()

        assert [] == player.settle()
        assert [] == Round(player, chance).play()


def test_a_disk_that_turns_read_only_under_a_running_daemon_loses_nothing(tmp_path):
    player = Player("signals")
    with failing_disk_of(player.server, tmp_path / "image") as disk, player.server:
        player.start()
        ended, held = player.submit("short", 3), player.submit("short", 4, hold=True)
        player.server.outcome(ended)
        disk.turn_read_only()
        with pytest.raises(IodaemonError) as refusal:
            player.server.script("true")
        known = player.server.states(ended, held)
        player.stop()
        until(lambda: not player.server.supervisor_lives(), "end of the root side")
        disk.mend()
        player.revive()

        assert "became read-only: see 'dmesg', repair it and mount it writable" in str(
            refusal.value
        )
        assert ["FAILED", "HELD"] == known == player.server.states(ended, held)
        assert [] == player.settle()
        assert [("FAILED", 3), ("FAILED", 4)] == player.server.outcome(ended, held)


@pytest.fixture
def frozen_disk(tmp_path):
    """A file system that takes no write until it is thawed: its writers sleep uninterruptibly."""
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    make_file_system(image)
    mount("-o", "loop", image, place)
    subprocess.run(["fsfreeze", "--freeze", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", place], check=False)
        until(lambda: subprocess.run(["umount", place], check=False).returncode == 0, "umount")


def test_a_cancel_says_why_a_job_in_uninterruptible_sleep_is_not_gone(frozen_disk):
    player = Player("signals")  # once: neither means ends what the kernel does not let go
    with player.server:
        player.start()
        job = player.server.script(f"echo x > {frozen_disk}/file", name="stuck")
        player.told.acknowledged[job] = "stuck"
        until(lambda: any(find_state(p) == "D" for p in player.server.job(job)["pids"]), "D state")
        answer = player.cancel(job, grace_s=0.0)
        subprocess.run(["fsfreeze", "--unfreeze", frozen_disk], check=True)

        assert not answer["gone"]
        assert "STOPPING" == answer["job"]["state"]
        assert "uninterruptible" in answer["job"]["reason"]["text"]
        assert "CANCELLED" == player.server.end_of(job)["state"]
        assert [] == player.settle()


def test_a_parent_in_vfork_is_suspended_and_cancelled_like_any_other(means):
    """It waits uninterruptibly for its child's exec; that wait can be killed."""
    code = "import ctypes,time;l=ctypes.CDLL(None)\nif l.vfork()==0: time.sleep(1000)"
    player = Player(means)
    with player.server:
        player.start()
        job = player.server.submit("/usr/bin/env", "python3", "-c", code, name="vfork")
        player.told.acknowledged[job] = "vfork"

        def waits():
            pids = player.server.job(job)["pids"]
            return [pid for pid in pids if find_state(pid) == "D" and children_of(pid)]

        until(waits, "a parent in vfork")
        player.suspend(job)
        until(lambda: player.server.job(job)["state"] == "SUSPENDED_USER", "a standstill")
        answer = player.cancel(job)

        assert answer["gone"]
        assert [] == player.settle()
