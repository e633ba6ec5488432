"""The wall clock is set, forward and back: no job lasts longer for that, and none ends by it.

The daemon's reading of the wall clock is shifted in its process alone, before it starts or by a
file while it runs; the supervisor reads the machine's own. So a step between two daemons
is one between daemon and supervisor as well. (Time namespaces do not shift the wall clock, and
setting it would be felt by all.)
"""

import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from builders import job, reason
from harness import Server, until

from iodaemon.core.decision import Lesson
from iodaemon.core.job import JobKind, JobState
from iodaemon.core.life import shifted
from iodaemon.core.scratch import DiskId, Share, TierName
from iodaemon.daemon.batch import Batch
from iodaemon.daemon.clock import keep_time, not_after
from iodaemon.daemon.journal import Journal

HOUR_S = 3600.0

AHEAD = """
import os, sys, time
wall = time.time
def read():
    try:
        with open({step!r}) as file:
            return wall() + {by_s} + float(file.read())
    except FileNotFoundError:
        return wall() + {by_s}
time.time = read
sys.argv = ["iod", "daemon", "--config", {config!r}]
from iodaemon.cli import main
main()
"""


class Shifted(Server):
    """A server whose next daemon reads a wall clock that is so much ahead."""

    ahead_s = 0.0

    def command(self):
        text = AHEAD.format(by_s=self.ahead_s, step=str(self.step), config=str(self.config))
        return [sys.executable, "-c", text]

    @property
    def step(self):
        """What the clock was set by while a daemon runs, s."""
        return self.root / "step"

    def step_clock(self, by_s):
        """Set the clock of the daemon that runs."""
        unseen = self.root / "step.new"
        unseen.write_text(f"{by_s}")
        unseen.rename(self.step)

    def set_clock(self, ahead_s):
        """Kill the daemon, and start one to which the clock was set."""
        self.kill()
        self.ahead_s = ahead_s
        self.restart()


@pytest.fixture
def shifting():
    with contextlib.ExitStack() as servers:
        yield lambda ahead_s: _started(servers.enter_context(Shifted("signals")), ahead_s)


def _started(server, ahead_s):
    server.ahead_s = ahead_s
    return server.start()


@pytest.mark.node
@pytest.mark.parametrize(("before_s", "after_s"), [(0.0, HOUR_S)])
def test_a_clock_that_was_set_ends_no_job_and_delays_no_kill(shifting, before_s, after_s):
    server = shifting(before_s)
    limited = server.gated("limited", code=3, walltime_s=1800.0)
    deaf = server.script("trap '' TERM; echo start deaf >> ledger; while :; do sleep 0.02; done")
    server.goes_on("limited")
    until(lambda: "start deaf" in server.lines(), "start of the deaf one")
    with ThreadPoolExecutor() as others:
        others.submit(server.client.cancel, deaf, grace_s=2.0)
        server.await_durable(deaf, "STOPPING")
        server.set_clock(after_s)
    ended = server.end_of(deaf)
    running = server.job(limited)
    server.open_gate("limited")
    found = server.end_of(limited)

    assert ("CANCELLED", "RUNNING") == (ended["state"], running["state"])
    assert 0.0 < running["run_s"] < 600.0
    assert ("FAILED", 3) == (found["state"], found["exit_code"])
    assert 0.0 < found["ended_s"] - found["started_s"] < 600.0
    assert found["run_s"] == pytest.approx(found["ended_s"] - found["started_s"], abs=0.5)


@pytest.mark.node
@pytest.mark.parametrize("by_s", [HOUR_S, pytest.param(-HOUR_S, marks=pytest.mark.slow)])
def test_a_clock_that_is_set_while_a_daemon_runs_ends_no_job_and_delays_no_kill(shifting, by_s):
    server = shifting(0.0)
    limited = server.gated("limited", code=4, walltime_s=1800.0)
    short = server.gated("short", walltime_s=1.0)
    deaf = server.script("trap '' TERM; echo start deaf >> ledger; while :; do sleep 0.02; done")
    server.goes_on("limited")
    until(lambda: "start deaf" in server.lines(), "start of the deaf one")
    with ThreadPoolExecutor() as others:
        others.submit(server.client.cancel, deaf, grace_s=1.0)
        server.await_durable(deaf, "STOPPING")
        server.step_clock(by_s)
    ends = [server.end_of(job_id)["state"] for job_id in (deaf, short)]
    running = server.job(limited)
    server.open_gate("limited")
    found = server.end_of(limited)

    assert (["CANCELLED", "TIMEOUT"], "RUNNING") == (ends, running["state"])
    assert ("FAILED", 4) == (found["state"], found["exit_code"])
    assert 0.0 < found["run_s"] < 600.0
    assert found["run_s"] == pytest.approx(found["ended_s"] - found["started_s"], abs=0.5)
    assert abs(found["ended_s"] - time.time()) < 60.0  # by the clock as it was at the start
    server.kill()
    server.restart()
    assert abs(server.client.jobs()["now_s"] - time.time() - by_s) < 60.0


@pytest.mark.node
@pytest.mark.parametrize("ahead_s", [HOUR_S])
def test_a_daemon_whose_clock_differs_from_the_supervisors_shortens_no_job(shifting, ahead_s):
    server = shifting(ahead_s)
    job_id = server.script("sleep 0.5; exit 4")
    found = server.end_of(job_id)

    assert ("FAILED", 4) == (found["state"], found["exit_code"])
    assert 0.4 < found["run_s"] < 60.0
    assert abs(found["ended_s"] - time.time() - ahead_s) < 60.0


def test_moments_move_and_durations_do_not():
    before = job(1, state=JobState.STOPPING, at_s=50.0, started_s=40.0, run_s=7.0, kill_at_s=60.0)

    after = shifted(before, 100.0)

    assert (150.0, 140.0, 160.0, 7.0) == (
        after.since_s,
        after.started_s,
        after.kill_at_s,
        after.run_s,
    )
    assert after.run_s_at(155.0) == before.run_s_at(55.0)


@pytest.mark.parametrize("same_boot", [True, False])
def test_what_was_set_is_set_once_and_only_within_a_boot(tmp_path, same_boot):
    journal = Journal.open(tmp_path / "journal.db", seed=1)
    with contextlib.closing(journal):
        errors = []
        first = keep_time(journal, journal.restore(), 1000.0, same_boot=True)
        journal.write(Batch(jobs=(job(1, state=JobState.RUNNING, at_s=5.0),)), errors.append)
        journal.flush()
        keep_time(journal, journal.restore(), 1100.0, same_boot=same_boot)
        again = keep_time(journal, journal.restore(), 1100.4, same_boot=True)

    assert () == first.jobs
    assert [105.0 if same_boot else 5.0] == [each.since_s for each in again.jobs]
    assert 1100.0 == again.anchor_s


def test_of_what_has_ended_the_time_is_set_for_which_its_result_is_kept(tmp_path):
    share = Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=1)
    fields = {
        "state": JobState.FAILED,
        "at_s": 5.0,
        "shares": (share,),
        "scratch_kept": reason("ScratchKept"),
    }
    jobs = job(1, **fields, scratch_kept_since_s=6.0), job(2, **fields)
    journal = Journal.open(tmp_path / "journal.db", seed=1)
    with contextlib.closing(journal):
        errors = []
        keep_time(journal, journal.restore(), 1000.0, same_boot=True)
        journal.write(Batch(jobs=jobs), errors.append)
        journal.flush()
        keep_time(journal, journal.restore(), 1100.0, same_boot=True)
        again = {each.id: each for each in journal.restore().jobs}

    assert (106.0, 5.0) == (again[1].scratch_kept_since_s, again[1].ended_s)
    assert jobs[1] == again[2]


@pytest.mark.parametrize("same_boot", [True, False])
def test_what_was_learned_is_as_old_as_before(tmp_path, same_boot):
    kind, answers = JobKind("1 like:solve"), []
    journal = Journal.open(tmp_path / "journal.db", seed=1)
    with contextlib.closing(journal):
        keep_time(journal, journal.restore(), 1000.0, same_boot=True)
        journal.write(Batch(lessons={kind: Lesson(at_s=5.0)}), answers.append)
        journal.flush()
        [moved] = keep_time(journal, journal.restore(), 1100.0, same_boot=same_boot).lessons
        again = journal.restore().lessons

    assert (kind, Lesson(at_s=105.0 if same_boot else 5.0)) == moved
    assert (moved,) == again


def test_nothing_was_learned_in_the_future():
    first, later = (JobKind("1 like:a"), Lesson(at_s=5.0)), (JobKind("1 like:b"), Lesson(at_s=15.0))

    assert (first, (later[0], Lesson(at_s=10.0))) == not_after((first, later), 10.0)
