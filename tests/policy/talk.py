"""Jobs that tell of their I/O, over the controller alone: a small world in virtual time."""

import heapq

import msgspec
from builders import FirstFit, InOrder, counters, exited, job, platform, sampled, started, submitted

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Grant, Start
from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.state import State

MB = 1_000_000


class Talker(msgspec.Struct, frozen=True):
    """What one job does: so often compute, then an I/O phase.

    Attributes:
        compute_s: without I/O.
        io_s: of each phase.
        times: how many of both.
        fields: of its spec.
    """

    compute_s: float
    io_s: float
    times: int
    fields: dict = {}


class World:
    """Runs talkers to their end; every step is looked at."""

    def __init__(self, regulation, talkers, *, max_suspend_s=None, until_s=None, forget_s=()):
        self.talkers = {JobId(i): t for i, t in enumerate(talkers, start=1)}
        self.state = State(platform(len(talkers)))
        rules = Rules(
            name="talk",
            admission=InOrder(),
            placement=FirstFit(),
            regulation=regulation,
            max_suspend_s=max_suspend_s,
        )
        self.controller = Controller(self.state, rules, mode=Mode.ON)
        self.granted: list[tuple[float, int]] = []
        self.over: list[tuple[float, int]] = []
        self.ends: dict[int, float] = {}
        self._agenda: list[tuple[float, int, object]] = []
        self._number = 0
        self._left = {i: t.times for i, t in self.talkers.items()}
        self._moved = dict.fromkeys(self.talkers, 0)
        self._forget_s = list(forget_s)
        self._wake_s = None
        for job_id, talker in self.talkers.items():
            self._at(0.0, submitted(job(job_id, **talker.fields)))
        self._at(regulation.timeslice_s, "sample")
        self.run(until_s)

    def run(self, until_s):
        while self._agenda and len(self.ends) < len(self.talkers):
            now_s = self._agenda[0][0]
            if until_s is not None and now_s > until_s:
                return
            self._step(now_s)

    def _at(self, at_s, what):
        self._number += 1
        heapq.heappush(self._agenda, (at_s, self._number, what))

    def _step(self, now_s):
        events = []
        while self._agenda and self._agenda[0][0] == now_s:
            what = heapq.heappop(self._agenda)[2]
            events += self._events(now_s, what)
        while self._forget_s and self._forget_s[0] <= now_s:
            self._forget_s.pop(0)
            self.controller.use(self.controller.rules)  # as a restart does
        plan = self.controller.step(events)
        self.state.check()
        for decision in plan.decisions:
            self._perform(now_s, decision)
        if plan.wake_at_s is not None and plan.wake_at_s != self._wake_s:
            self._wake_s = plan.wake_at_s
            self._at(plan.wake_at_s, ev.TimerFired(at_s=plan.wake_at_s))
        self.look()

    def _events(self, now_s, what):
        if what == "sample":
            self._at(now_s + self.controller.rules.regulation.timeslice_s, "sample")
            read = {made.id: counters(self._moved[made.id]) for made in self.state.live}
            return [sampled(now_s, read)]
        if isinstance(what, ev.PhaseDone):
            self.over.append((now_s, what.job_id))
            self._moved[what.job_id] += int(self.talkers[what.job_id].io_s * 100 * MB)
            self._left[what.job_id] -= 1
            self._go_on(now_s, what.job_id)
        return [what]

    def _go_on(self, now_s, job_id):
        if self._left[job_id]:
            size = int(self.talkers[job_id].io_s * 100 * MB)
            at_s = now_s + self.talkers[job_id].compute_s
            self._at(at_s, ev.PhaseAsked(at_s=at_s, job_id=job_id, expect_bytes=size))
        else:
            self.ends[job_id] = now_s
            self._at(now_s, exited(now_s, job_id))

    def _perform(self, now_s, decision):
        match decision:
            case Start(job_id=job_id):
                self._at(now_s, started(now_s, job_id))
                self._go_on(now_s, job_id)
            case Grant(job_id=job_id):
                self.granted.append((now_s, job_id))
                at_s = now_s + self.talkers[job_id].io_s
                self._at(at_s, ev.PhaseDone(at_s=at_s, job_id=job_id))

    def look(self):
        told = [made for made in self.state.live if made.phase is not None]
        having = [made.id for made in told if made.has_turn]
        if self.controller.rules.max_suspend_s is not None:
            return  # whom the guard let go on is not alone, and silent when its time is over
        assert len(having) <= 1, "two at a time"
        assert having or not any(made.waits_for_turn for made in told), "a free token"
