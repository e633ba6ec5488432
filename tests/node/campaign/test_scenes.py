"""What machines and jobs do to a scheduler besides killing it."""

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
from harness import end, let_others_work, until
from ledger import read_pages, script
from mounting import disk_of, full, make_file_system, mount
from player import Player
from stuck_exec import silent_file_system, stuck_command

from iodaemon.errors import IodaemonError
from iodaemon.node.sampler.proc_files import find_state
from iodaemon.supervisor.reap import children_of

pytestmark = [pytest.mark.node, pytest.mark.slow]

BOMB = "n=0; while :; do (sleep 0.05) & n=$((n+1)); [ $n -ge 20 ] && { wait; n=0; }; done"
"""Forks for ever, each process short-lived, but never more than twenty at a time."""


@pytest.fixture(scope="module")
def _lasting_player(means):
    player = Player(means)
    with player.server:
        yield player.start()


@pytest.fixture
def player(_lasting_player):
    """A server for all of these scenes; after each all settles, and the ledger has to agree."""
    yield _lasting_player
    assert [] == _lasting_player.settle()


# -- a daemon that stands still --------------------------------------------------------------------


def test_a_daemon_that_stood_still_for_a_while_goes_on_where_it_was(player):
    gated, short = player.submit("gated", 3), player.submit("short", 4)
    player.until_running(gated)
    player.server.stop_processes(player.server.process.pid)
    player.gate.touch()
    until(lambda: not player.server.job_processes(), "an end")
    player.server.process.send_signal(signal.SIGCONT)

    assert [("FAILED", 3), ("FAILED", 4)] == player.server.outcome(gated, short)


def test_a_daemon_that_stands_still_for_too_long_keeps_no_job_from_running(player):
    """Once it goes on, it holds again what a person holds."""
    held = player.submit("gated")
    player.until_running(held)
    player.suspend(held)
    assert player.server.frozen()
    daemon = player.server.process
    player.server.stop_processes(daemon.pid)
    until(lambda: player.server.frozen() in ([], [daemon.pid]), "a thaw by the supervisor")
    daemon.send_signal(signal.SIGCONT)
    until(lambda: player.server.frozen() not in ([], [daemon.pid]), "the person's hold")
    until(lambda: player.look(held)["state"] == "SUSPENDED_USER", "its name")

    assert find_state(daemon.pid) != "T"


# -- a supervisor that stands still ----------------------------------------------------------------


def test_a_supervisor_that_stands_still_is_continued_and_what_was_asked_is_done(player):
    """The anchor lets all run on after a grace time, and continues it."""
    going, held, still = (player.submit("gated", code) for code in (0, 3, 4))
    for job in (going, held, still):
        player.until_running(job)
    player.suspend(still)
    player.server.stop_processes(player.server.supervisor_pid())
    with ThreadPoolExecutor() as pool:
        cancelling, suspending = (
            pool.submit(player.cancel, going),
            pool.submit(player.suspend, held),
        )
    cancelling.result()
    suspending.result()
    ended = player.server.end_of(going)
    player.server.await_state(held, "SUSPENDED_USER")
    player.server.await_state(still, "SUSPENDED_USER")

    assert "CANCELLED" == ended["state"]


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


# -- a disk that takes nothing ---------------------------------------------------------------------


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


@contextlib.contextmanager
def read_only(disk):
    """Nothing that is not open can be written on it meanwhile; files open for writing forbid it."""
    options = ["mount", "-o", "remount,ro", disk]
    until(lambda: subprocess.run(options, check=False, capture_output=True).returncode == 0, "ro")
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


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


def test_a_journal_that_became_read_only_loses_nothing():
    player = Player("signals")
    with disk_of(player.server) as disk, player.server:
        player.start()
        ended = player.submit("short", 3)
        player.server.outcome(ended)
        player.stop()
        until(lambda: not player.server.supervisor_lives(), "end of the root side")
        with read_only(disk):
            player.server.start(wait=False)
            code = player.server.process.wait(30)
        player.revive()

        assert 1 == code
        assert "read-only" in player.server.log.read_text().lower()
        assert [] == player.settle()


# -- jobs that are hard to hold --------------------------------------------------------------------


def test_a_fork_bomb_is_suspended_resumed_and_killed(player):
    bomb = player.server.script(BOMB, name="bomb")
    until(lambda: len(player.server.job(bomb)["pids"]) > 5, "a bomb")
    player.told.acknowledged[bomb] = "bomb"
    player.suspend(bomb)
    until(lambda: player.server.job(bomb)["state"] == "SUSPENDED_USER", "a standstill")
    before = set(player.server.job(bomb)["pids"])
    let_others_work()
    after = set(player.server.job(bomb)["pids"])
    player.resume(bomb)
    answer = player.cancel(bomb)

    assert before == after
    assert answer["gone"]


def test_a_job_that_ignores_sigterm_is_gone_after_the_grace_time(player):
    deaf = player.submit("deaf")
    player.until_running(deaf)
    until(lambda: player.pages.joinpath(str(deaf)).exists(), "its first line")
    answer = player.cancel(deaf, grace_s=0.2)

    assert answer["gone"]
    assert "CANCELLED" == answer["job"]["state"]


def test_a_child_that_a_job_stopped_itself_goes_on_once_the_job_is_resumed(player):
    text = script(player.pages, "sh -c 'kill -STOP $$' & wait", 3)
    job = player.server.script(text, name="stops")
    player.told.acknowledged[job] = "stops"
    until(lambda: any(find_state(p) == "T" for p in player.server.job(job)["pids"]), "a stop")
    player.suspend(job)
    player.server.await_state(job, "SUSPENDED_USER")
    player.resume(job)

    assert [("FAILED", 3)] == player.server.outcome(job)


# -- a process that only its holder connects with the job ------------------------------------------


def leads_its_session(pid):
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


@pytest.mark.parametrize("suspended", [True, False])
def test_a_process_outside_of_its_session_goes_on_and_is_ended_without_its_holder(suspended):
    player = Player("signals")
    with player.server:
        player.start()
        job = player.submit("leaves")
        [begun, *_] = until(lambda: read_pages(player.pages).get(job), "its first line")

        def left():
            pids = player.server.job(job)["pids"]
            return begun.pid not in pids and list(filter(leads_its_session, pids))

        [far] = until(left, "a process that left, alone")
        if suspended:
            player.suspend(job)
            until(lambda: player.server.job(job)["state"] == "SUSPENDED_USER", "a standstill")
        player.kill_holder(job)
        try:
            until(lambda: find_state(far) not in ("T", "t"), "its going on", 5.0)
            player.cancel(job)
            until(lambda: find_state(far) in (None, "Z"), "its end", 5.0)
        finally:
            end(far)


# -- a process that nothing can end ----------------------------------------------------------------


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
        stuck_job_is_told_of(player.start(), frozen_disk)

        assert [] == player.settle()


def stuck_job_is_told_of(player, frozen_disk):
    job = player.server.script(f"echo x > {frozen_disk}/file", name="stuck")
    player.told.acknowledged[job] = "stuck"
    until(lambda: any(find_state(p) == "D" for p in player.server.job(job)["pids"]), "D state")
    answer = player.cancel(job, grace_s=0.0)
    subprocess.run(["fsfreeze", "--unfreeze", frozen_disk], check=True)

    assert not answer["gone"]
    assert "STOPPING" == answer["job"]["state"]
    assert "uninterruptible" in answer["job"]["reason"]["text"]
    assert "CANCELLED" == player.server.end_of(job)["state"]


def test_a_process_stuck_in_execve_holds_up_nobody(player, tmp_path):
    """Supervisor, daemon and another job's holder die beside it; it is cancelled, others run."""
    files = silent_file_system(tmp_path)
    try:
        job = player.server.submit(*stuck_command(files.path), name="stuck")
        player.told.acknowledged[job] = "stuck"
        files.wait_for(1)
        bereft = player.submit("gated")
        player.until_running(bereft)
        player.kill_holder(bereft)
        player.server.kill_both()
        player.server.restart()
        ended = player.server.outcome(player.submit("short", 3))
        player.cancel(job, grace_s=0.0)
    finally:
        files.let_go()

    assert [("FAILED", 3)] == ended
    assert "CANCELLED" == player.server.end_of(job)["state"]


def test_a_parent_in_vfork_is_suspended_and_cancelled_like_any_other(player):
    """It waits uninterruptibly for its child's exec; that wait can be killed."""
    code = "import ctypes,time;l=ctypes.CDLL(None)\nif l.vfork()==0: time.sleep(1000)"
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


def test_a_dead_supervisor_on_a_full_disk_is_replaced_and_jobs_are_controlled(means):
    player = Player(means)
    with disk_of(player.server) as disk, player.server:
        player.start()
        gated, still = player.submit("gated", 3), player.submit("gated", 4)
        player.until_running(gated)
        player.until_running(still)
        with full(disk):
            player.kill_supervisor()
            player.suspend(still)
            player.server.await_state(still, "SUSPENDED_USER")
            player.resume(still)
            player.server.await_state(still, "RUNNING")
            cancelled = player.cancel(still)

        assert cancelled is not None
        assert [] == player.settle()
        assert "CANCELLED" == player.look(still)["state"]
