"""Jobs on one disk under a rule, slice by slice."""

from builders import MB, counters, job, resumed, sample, started, submitted, suspended
from builders import platform as machine_of

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Resume, Suspend
from iodaemon.core.job import JobState
from iodaemon.core.rule import Rules
from iodaemon.core.sample import DeviceCounters
from iodaemon.core.state import State
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io

SLICE_S = 1.0
REQUESTS = 100
"""A slice, of 100 kB each."""


class Machine:
    """Jobs on one disk under a rule; every call is a slice that says what they and it did."""

    def __init__(self, rule, jobs):
        self.state = State(machine_of(4))
        rules = Rules(
            name="test", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=rule
        )
        self.controller = Controller(self.state, rules, seed=1)
        self.now_s = 0.0
        self.evidence = []
        self._moved = dict.fromkeys(range(1, jobs + 1), 0)
        self._disk = dict.fromkeys(("reads", "read_sectors", "queue_ms", "read_ms"), 0)
        self.controller.step([submitted(job(number)) for number in self._moved])
        self.controller.step([started(0.0, number) for number in self._moved])
        self.slice(queue=0.0)

    def slice(self, *, queue=None, mb=0):
        """One slice.

        Args:
            queue: requests in flight; None: nothing is counted of the disk.
            mb: what each running job reads.
        """
        for made in self.state.live:
            if made.state is JobState.RUNNING:
                self._moved[made.id] += mb * MB
        disks = {} if queue is None else {"sim0": self._count(queue)}
        told = {made.id: counters(self._moved[made.id]) for made in self.state.live}
        sampled = ev.SampleTaken(at_s=self.now_s, sample=sample(self.now_s, told, disks))
        plan = self.controller.step([sampled])
        self.state.check()
        for decision in plan.decisions:
            answer = {Suspend: suspended, Resume: resumed}[type(decision)]
            self.controller.step([answer(self.now_s, decision.job_id)])
        self.evidence += plan.evidence
        self.now_s += SLICE_S

    def _count(self, queue):
        self._disk["reads"] += REQUESTS
        self._disk["read_sectors"] += REQUESTS * 200
        self._disk["queue_ms"] += int(1000 * queue * SLICE_S)
        self._disk["read_ms"] += int(1000 * queue * SLICE_S)
        others = dict.fromkeys(
            ("reads_merged", "writes", "writes_merged", "written_sectors", "write_ms"), 0
        )
        return DeviceCounters(**self._disk, **others, in_flight=0, busy_ms=0)

    @property
    def held(self):
        return [made.id for made in self.state.live if made.io_hold]
