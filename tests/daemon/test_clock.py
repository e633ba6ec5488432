"""The wall clock is set, forward and back: no job lasts longer for that, and nothing goes by it.

The daemon's reading of the wall clock is shifted in its process alone, before it starts or by a
file while it runs; the supervisor reads the machine's own. So a step between two daemons
is one between daemon and supervisor as well. (Time namespaces do not shift the wall clock, and
setting it would be felt by all.)
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from builders import job, reason
from exploring import tries
from harness import Server, until
from hypothesis import example, given, settings
from hypothesis import strategies as st
from journals import store

from iodaemon.core.decision import Lesson
from iodaemon.core.job import DiskId, JobKind, JobState, Share, TierName
from iodaemon.core.lifecycle import shifted
from iodaemon.daemon.journal.record import Reading
from iodaemon.daemon.timeline import SPAN_S, count_on, expired_before_s, keep_time, not_after

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
NOW = Reading(at_s=2000.0, boot_id="one", uptime_s=1000.0)

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


def check_times(found):
    """Its times are those of a job that ran for some seconds."""
    assert 0.0 < found["run_s"] < 600.0
    assert 0.0 < found["ended_s"] - found["started_s"] < 600.0
    assert found["run_s"] == pytest.approx(found["ended_s"] - found["started_s"], abs=0.5)


@pytest.fixture
def server():
    with Shifted("signals") as server:
        yield server


@pytest.fixture
def jobs(server):
    """Starts a daemon whose clock is ahead, with two jobs: one has a walltime, one is deaf."""

    def start(ahead_s):
        server.ahead_s = ahead_s
        server.start()
        limited = server.gated("limited", code=3, walltime_s=1800.0)
        deaf = "trap '' TERM; echo start deaf >> ledger; while :; do sleep 0.02; done"
        deaf = server.script(deaf)
        server.goes_on("limited")
        until(lambda: "start deaf" in server.lines(), "start of the deaf one")
        return limited, deaf

    return start


@pytest.mark.node
def test_a_clock_that_was_set_between_two_daemons_changes_nothing(server, jobs):
    """It was half a year behind the supervisor's: no job is shortened, nothing is removed."""
    behind_s = 200 * DAY_S
    limited, deaf = jobs(-behind_s)
    short = server.script("echo something; sleep 0.5; exit 4")
    before = server.end_of(short)
    with ThreadPoolExecutor() as others:
        others.submit(server.client.cancel, deaf, grace_s=2.0)
        server.await_durable(deaf, "STOPPING")
        server.set_clock(0.0)
    ended = server.end_of(deaf)
    running = server.job(limited)
    server.open_gate("limited")
    found = server.end_of(limited)

    assert ("FAILED", 4) == (before["state"], before["exit_code"])
    assert 0.4 < before["run_s"] < 60.0
    assert abs(before["ended_s"] - time.time() + behind_s) < 600.0
    assert ("CANCELLED", "RUNNING") == (ended["state"], running["state"])
    assert ("FAILED", 3) == (found["state"], found["exit_code"])
    assert 0.0 < running["run_s"] < 600.0
    check_times(found)
    assert short in [each["id"] for each in server.client.history()["jobs"]]
    assert "something\n" == server.output(short)


@pytest.mark.node
@pytest.mark.parametrize("by_s", [HOUR_S, pytest.param(-HOUR_S, marks=pytest.mark.slow)])
def test_a_clock_that_is_set_while_a_daemon_runs_ends_no_job_and_delays_no_kill(server, jobs, by_s):
    limited, deaf = jobs(0.0)
    short = server.gated("short", walltime_s=1.0)
    with ThreadPoolExecutor() as others:
        others.submit(server.client.cancel, deaf, grace_s=1.0)
        server.await_durable(deaf, "STOPPING")
        server.step_clock(by_s)
    ends = [server.end_of(job_id)["state"] for job_id in (deaf, short)]
    running = server.job(limited)
    server.open_gate("limited")
    found = server.end_of(limited)

    assert (["CANCELLED", "TIMEOUT"], "RUNNING") == (ends, running["state"])
    assert ("FAILED", 3) == (found["state"], found["exit_code"])
    check_times(found)
    assert abs(found["ended_s"] - time.time()) < 600.0  # by the clock as it was at the start
    server.kill()
    server.restart()
    assert abs(server.client.jobs()["now_s"] - time.time() - by_s) < 600.0


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


def kept(journal, anchor_s, *, same_boot=True):
    """What a daemon with this clock goes on from."""
    return keep_time(journal, journal.restore(), anchor_s, NOW, same_boot=same_boot)


@pytest.mark.parametrize("same_boot", [True, False])
def test_what_was_set_is_set_once_and_only_within_a_boot(journal, same_boot):
    """Of jobs and of what was learned."""
    kind = JobKind("1 like:solve")
    first = kept(journal, 1000.0)
    running = job(1, state=JobState.RUNNING, at_s=5.0)
    store(journal, jobs=(running,), lessons={kind: Lesson(at_s=5.0)})
    found = [kept(journal, 1100.0, same_boot=same_boot), kept(journal, 1100.4)]
    moved_s = 105.0 if same_boot else 5.0

    assert () == first.jobs
    for again in found:
        assert [moved_s] == [each.since_s for each in again.jobs]
        assert ((kind, Lesson(at_s=moved_s)),) == again.lessons
    assert 1100.0 == again.anchor_s


def test_of_what_has_ended_the_time_is_set_for_which_its_result_is_kept(journal):
    share = Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=1)
    fields = {
        "state": JobState.FAILED,
        "at_s": 5.0,
        "shares": (share,),
        "scratch_kept": reason("ScratchKept"),
    }
    jobs = job(1, **fields, scratch_kept_since_s=6.0), job(2, **fields)
    kept(journal, 1000.0)
    store(journal, jobs=jobs)
    kept(journal, 1100.0)
    again = {each.id: each for each in journal.restore().jobs}

    assert (106.0, 5.0) == (again[1].scratch_kept_since_s, again[1].ended_s)
    assert jobs[1] == again[2]


def test_nothing_was_learned_in_the_future():
    first, later = (JobKind("1 like:a"), Lesson(at_s=5.0)), (JobKind("1 like:b"), Lesson(at_s=15.0))

    assert (first, (later[0], Lesson(at_s=10.0))) == not_after((first, later), 10.0)


# -- what is kept for a time -----------------------------------------------------------------------

RETAIN_S = 30 * DAY_S
YEAR_S = 365 * DAY_S


class Machine:
    """A machine, what its clocks show, and a daemon that gives records times and looks hourly.

    Attributes:
        true_s: what has passed, whoever noticed it.
        wall_s: what the wall clock shows.
        records: those that are left, as (the daemon's time, the true one).
        early: records that went before they were old enough.
    """

    def __init__(self, wall_s=100 * YEAR_S):
        self.true_s, self.wall_s = 0.0, wall_s
        self.monotonic_s = self.uptime_s = 50.0
        self.boot = 1
        self.passed = None
        self.records, self.early = [], []
        self.start()

    def start(self):
        """Another daemon."""
        self.anchor_s = self.wall_s - self.monotonic_s
        self.look()

    def look(self):
        """Remove what is old."""
        reading = Reading(at_s=self.now_s, boot_id=str(self.boot), uptime_s=self.uptime_s)
        self.passed = count_on(self.passed, reading, RETAIN_S)
        before_s = expired_before_s(self.passed, RETAIN_S)
        gone = [record for record in self.records if record[0] < before_s]
        self.early += [record for record in gone if self.true_s - record[1] < RETAIN_S]
        self.records = [record for record in self.records if record[0] >= before_s]

    @property
    def now_s(self):
        return self.anchor_s + self.monotonic_s

    def tick(self, by_s, *, suspended=False):
        self.true_s += by_s
        self.wall_s += by_s
        self.uptime_s += by_s
        self.monotonic_s += 0.0 if suspended else by_s

    def end(self, ago_s=0.0):
        """A job ended so long ago, as the supervisor tells it."""
        self.records.append((self.now_s - ago_s, self.true_s - ago_s))

    # what may happen

    def run(self, hours):
        for _ in range(hours):
            self.tick(HOUR_S / 2)
            self.end()
            self.tick(HOUR_S / 2)
            self.look()

    def set_clock(self, days):
        self.wall_s += days * DAY_S

    def suspend(self, hours):
        self.tick(hours * HOUR_S, suspended=True)

    def restart(self, hours):
        """The daemon is away for so long; a job ends before, and one meanwhile."""
        self.tick(HOUR_S / 2)
        self.end()
        self.tick(hours * HOUR_S)
        self.start()
        self.end(ago_s=hours * HOUR_S / 2)

    def fail(self, times):
        """The daemon fails soon after its start, so many times."""
        for _ in range(times):
            self.tick(60.0)
            self.end()
            self.start()

    def reboot(self, hours, uptime_s=50.0):
        """Off for so long; a job ends before, and what ran is lost when the next daemon starts."""
        self.tick(HOUR_S / 2)
        self.end()
        self.true_s += hours * HOUR_S
        self.wall_s += hours * HOUR_S
        self.monotonic_s = self.uptime_s = uptime_s
        self.boot += 1
        self.start()
        self.end()

    def move(self, hours):
        """The state directory is another machine's after so long, one that has been up for long."""
        self.reboot(hours, YEAR_S)


HAPPENINGS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 400)),
    st.tuples(st.just("set_clock"), st.integers(-400, 400)),
    st.tuples(st.just("fail"), st.integers(1, 9)),
    *(
        st.tuples(st.just(name), st.integers(0, 400))
        for name in ("suspend", "restart", "reboot", "move")
    ),
)


@settings(max_examples=tries(200), deadline=None)
@given(st.lists(HAPPENINGS, max_size=12))
@example([("set_clock", -200), ("fail", 1), ("set_clock", 200), ("fail", 3), ("run", 720)])
@example([("set_clock", -200), ("restart", 400), ("run", 720)])
def test_whatever_the_clock_shows_nothing_goes_before_its_time(happenings):
    machine = Machine()
    machine.run(24)
    for name, number in happenings:
        getattr(machine, name)(number)
    machine.run(24)

    assert [] == machine.early


@pytest.mark.parametrize("hours_off", [0, 12])
def test_what_is_old_goes_and_time_off_does_not_count(hours_off):
    machine = Machine()
    for _ in range(70):
        machine.run(24)
        if hours_off:
            machine.reboot(hours_off)
    oldest_s = machine.true_s - min(born_s for _, born_s in machine.records)
    days_s = RETAIN_S + 30 * hours_off * HOUR_S

    assert days_s - 2 * DAY_S <= oldest_s <= days_s + 2 * DAY_S
    assert len(machine.passed.spans) <= 3 + RETAIN_S / SPAN_S


def test_a_year_ahead_and_back_lets_what_was_right_go_in_time():
    machine = Machine()
    machine.run(24)
    machine.set_clock(365)
    machine.restart(1)
    machine.set_clock(-365)
    machine.restart(1)
    machine.run(24 * 33)

    assert [] == machine.early
    assert {True} == {wall_s > machine.now_s - RETAIN_S - DAY_S for wall_s, _ in machine.records}


@pytest.mark.parametrize("by_s", [-200 * DAY_S, YEAR_S])
def test_in_another_boot_a_result_that_is_kept_is_as_old_as_when_last_looked_at(journal, by_s):
    share = Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=1)
    ended = job(1, state=JobState.FAILED, at_s=5.0, shares=(share,), scratch_kept_since_s=YEAR_S)
    last = Reading(at_s=YEAR_S + DAY_S, boot_id="one", uptime_s=7.0)
    now = Reading(at_s=last.at_s + by_s, boot_id="two", uptime_s=50.0)
    passed = count_on(None, last, RETAIN_S)
    store(journal, jobs=(ended,), meta={"anchor_s": 0.0, "passed": passed})
    for _ in range(2):  # also where the daemon fails before it notes the boot
        found = keep_time(journal, journal.restore(), 9.0, now, same_boot=False)
    again = journal.restore()

    assert [now.at_s - DAY_S] == [each.scratch_kept_since_s for each in again.jobs]
    assert found == again
