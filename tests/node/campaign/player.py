"""A client for whom daemons die: it asks, restarts what must be, remembers what it was told."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter

from harness import Server, end, is_of_job, marked, name_of, until
from ledger import Told, read_journal, read_pages, read_states, script, violations

from iodaemon.errors import IodaemonError, NoDaemon
from iodaemon.node.sampler.proc_files import find_state
from iodaemon.supervisor.reap import read_state

GRACE_S = 0.3
"""From SIGTERM to SIGKILL; some jobs do not listen to the first."""
AWAY_S = 0.4
"""How long a supervisor waits for a daemon before it lets all go."""

SETTLES_WITHIN_S = 40.0
RESTART_S = 2.0

BODIES = {
    "short": ":",
    "gated": "while [ ! -e {gate} ]; do sleep 0.03; done",
    "deaf": "trap '' TERM; while [ ! -e {gate} ]; do sleep 0.03; done",
    "family": "(sleep 0.05 & sleep 0.02 & wait); while [ ! -e {gate} ]; do sleep 0.03; done",
}
"""What jobs do between their lines."""


class Player:
    """One server and everything that was asked of it; several threads may ask at once."""

    def __init__(self, means, chance=None, **settings):
        self.server = Server(
            means, has_faults=True, orphan_grace=f"{AWAY_S} s", cancel_grace="1 s", **settings
        )
        self.server.client.reconnect_s = 0.0  # who finds no daemon starts one
        self.chance = chance or random.Random(0)
        self.pages = self.server.root / "pages"
        self.pages.mkdir()
        self.told = Told()
        self.done = Counter()
        self.refused = Counter()
        self.restarts = 0
        self.root_side_died = self.jobs_die = False
        self._checked = set()
        self._names = 0
        self._round = 0
        self._reviving = threading.Lock()

    # -- what is asked -------------------------------------------------------------------------

    @property
    def gate(self):
        """The jobs of this round last until this file is there."""
        return self.server.root / f"gate-{self._round}"

    @property
    def journal(self):
        return self.server.state / "journal.db"

    def submit(self, kind="short", code=0, **options):
        """A job of this kind; None where the client was not told its number."""
        self._names += 1
        name = f"n{self._names}"
        text = script(self.pages, BODIES[kind].format(gate=self.gate), code)
        job = self._ask("submit", self.server.script, text, name=name, **options)
        if job is not None:
            assert job not in self.told.acknowledged, f"number {job} was given out twice"
            self.told.acknowledged[job] = name
        return job

    def cancel(self, job, grace_s=GRACE_S):
        self.told.cancelled.add(job)
        return self._ask("cancel", self.server.client.cancel, job, grace_s=grace_s)

    def requeue(self, job, grace_s=GRACE_S):
        self.told.requeued.add(job)
        return self._ask("requeue", self.server.client.requeue, job, grace_s=grace_s)

    def suspend(self, job):
        return self._ask("suspend", self.server.client.suspend, job)

    def resume(self, job):
        return self._ask("resume", self.server.client.resume, job)

    def wait(self, *jobs, timeout_s=0.2):
        return self._ask("wait", self.server.client.wait, jobs, timeout_s=timeout_s)

    def look(self, job):
        return self._ask("show", self.server.client.job, job)

    def until_running(self, job):
        """Wait until its command runs, through any number of deaths; None if it never will."""

        def look():
            found = None if job is None else self.look(job)
            return found is None or found["state"] in ("RUNNING", "PENDING") or found["ended_s"]

        until(look, f"start of job {job}")

    def _ask(self, word, request, *words, **options):
        """The answer; None when there was none, or it was no."""
        self.done[word] += 1
        try:
            return request(*words, **options)
        except NoDaemon:
            self.revive()
        except IodaemonError:
            self.refused[word] += 1
        return None

    # -- life and death ------------------------------------------------------------------------

    def start(self):
        self.server.start()
        return self

    def revive(self):
        """Start a daemon where none runs, again if that one dies as well."""
        with self._reviving:
            while not self.server.is_running() or not self._answers():
                if not self.server.is_running():
                    self.restarts += 1
                    self.server.start(wait=False)
                time.sleep(0.02)

    def _answers(self):
        with contextlib.suppress(IodaemonError):
            self.server.client.jobs()
            return True
        return False

    def stop(self):
        """SIGTERM to the daemon; it may die on its way out."""
        with contextlib.suppress(ProcessLookupError):
            self.server.process.send_signal(signal.SIGTERM)
        self.server.process.wait(30)

    def kill_daemon(self):
        if self.server.is_running():
            self.server.kill()

    def _kill(self, role):
        """SIGKILL to whoever of this role is there."""
        for pid in self.server.of_role(role):
            end(pid)

    def kill_supervisor(self):
        self._kill("iod-supervisor")

    def kill_anchor(self):
        """A supervisor that dies in the same round has nobody left who reaps."""
        self.root_side_died = True
        self._kill("iod-anchor")

    def kill_launcher(self):
        """And no child of it or of a holder, which has its name until it executes its command."""
        for pid in self.server.of_role("iod-launcher"):
            state = read_state(pid)
            if state is not None and name_of(state.parent) != "iod-holder" and not is_of_job(pid):
                end(pid)

    def kill_root_side(self):
        self.root_side_died = True
        for role in ("iod-anchor", "iod-supervisor"):
            self._kill(role)

    def go_on_all(self):
        """SIGCONT to our own daemon and supervisor, should one have been stopped."""
        pids = [self.server.process.pid]
        pids += self.server.of_role("iod-supervisor")
        for pid in pids:
            if find_state(pid) == "T":
                os.kill(pid, signal.SIGCONT)

    # -- the reckoning -------------------------------------------------------------------------

    def settle(self):
        """Let everything end that was begun; what then is not as it must be."""
        self.server.disarm()
        self.go_on_all()
        self.gate.touch()
        began_s = restarted_s = time.monotonic()
        while (left := self._unfinished()) and time.monotonic() < began_s + SETTLES_WITHIN_S:
            for job in left:
                if job["state"] in ("HELD", "SUSPENDED_USER"):
                    self.resume(job["id"])
            delayed = any((job["reason"] or {}).get("code") == "StartFailed" for job in left)
            if delayed and time.monotonic() > restarted_s + RESTART_S:
                self.stop()  # the next daemon does not wait as long as this one would
                restarted_s = time.monotonic()
            time.sleep(0.02)
        self.revive()
        return self._left() + self._reckon()

    def _reckon(self):
        """Hold the pages against the journal, and the journal against what the daemon tells."""
        told = {job["id"]: job["state"] for job in self.server.client.jobs(all_jobs=True)["jobs"]}
        found = []

        def agrees():
            return told.items() <= read_states(self.journal).items()

        with contextlib.suppress(AssertionError):  # an end is told before it is on the disk
            until(agrees, "agreement", 10.0)
        jobs, steps = read_journal(self.journal)
        for job, state in told.items():
            if jobs[job]["state"] != state:
                found.append(f"job {job} is {state}, in the journal {jobs[job]['state']}")
        new = {job for job in jobs if job not in self._checked or job in self.told.requeued}
        self.told.bereft |= new if self.root_side_died else set()
        self.told.struck |= new if self.jobs_die else set()
        found += violations(read_pages(self.pages), jobs, steps, self.told, only=new)
        self._checked |= new
        self._round += 1
        self.root_side_died = self.jobs_die = False
        return found

    def _unfinished(self):
        self.revive()
        with contextlib.suppress(NoDaemon):
            return self.server.client.jobs()["jobs"]
        return self._unfinished()

    def _strangers(self):
        """Processes that nobody needs where no job is."""
        return set(marked(self.server.mark)) - self.server.standing()

    def _left(self):
        """Processes, cgroups and standstills that outlived their jobs."""
        until(self.server.supervisor_lives, "a supervisor")
        self.server.anchor_pid()  # it is there again once nothing runs; until then nobody reaps
        try:
            until(lambda: not self._strangers(), "end of all processes", 10.0)
            until(lambda: not self.server.job_cgroups(), "removal of all cgroups", 10.0)
        except AssertionError as error:
            return [f"{error}: {self._strangers()} {self.server.job_cgroups()}"]
        return [f"{frozen} stands still" for frozen in self.server.frozen()]
