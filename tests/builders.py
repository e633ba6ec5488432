"""One-line builders of jobs, machines, samples and events, and the fakes that tests share."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import (
    AdmissionPlan,
    Cap,
    Decision,
    Kill,
    Plan,
    RegulationPlan,
    Reject,
    Resume,
    Start,
    Stop,
    Suspend,
)
from iodaemon.core.job import LIVE, SUSPENDED, Exit, IoTotals, Job, JobId, JobSpec, JobState, Reason
from iodaemon.core.meter import DeviceLoad
from iodaemon.core.platform import Device, DeviceId, Partition, PartitionId, Platform, Slot, SlotId
from iodaemon.core.rule import Rules
from iodaemon.core.sample import DeviceCounters, JobCounters, Sample
from iodaemon.core.state import State
from iodaemon.core.view import NotNow, PlacementView, View

MB = 1_000_000
SPEC_FIELDS = frozenset(JobSpec.__struct_fields__)
PACKS_OVERRIDES = {"admission": {"bandwidth": "100 MB/s"}, "regulation": {"timeslice": "0.2 s"}}
"""With which the shipped policy ``packs`` is run."""
PACKS_NEEDS = {"io_rate_bytes_per_s": 25.0 * MB, "walltime_s": 60.0}
"""What each of those jobs asks for: two fit the share of one of two sockets."""


def platform(*sizes: int) -> Platform:
    """Partitions 0, 1, ... with so many slots each, numbered through; one disk."""
    partitions = []
    first = 0
    for number, size in enumerate(sizes):
        slots = tuple(Slot(id=SlotId(i), cpus=(i,)) for i in range(first, first + size))
        partitions.append(Partition(id=PartitionId(number), slots=slots))
        first += size
    return Platform(partitions=tuple(partitions), devices=(Device(id=DeviceId("sim0")),))


def job(job_id: int = 1, *, state: JobState = JobState.PENDING, at_s: float = 0.0, **fields) -> Job:
    """A job that is consistent in its state; fields of the spec and of the job go by name."""
    spec = {name: fields.pop(name) for name in list(fields) if name in SPEC_FIELDS}
    spec.setdefault("command", ("true",))
    made: dict[str, Any] = {"submitted_s": 0.0, "uid": 1000}
    if state in LIVE:
        made |= {"slots": (SlotId(job_id - 1),), "partition": PartitionId(0), "attempt": 1}
    if state in SUSPENDED:
        made |= {"frozen": True, "freeze_asked": True}
    if state is JobState.SUSPENDED_IO:
        made |= {"io_hold": True, "io_held_since_s": at_s}
    if state is JobState.SUSPENDED_USER:
        made |= {"user_hold": True}
    if state is JobState.STOPPING:
        made |= {"stop": JobState.CANCELLED, "kill_at_s": at_s + 10.0}
    if state in {JobState.HELD, JobState.STOPPING} | SUSPENDED:
        made |= {"reason": reason()}
    if state.is_final:
        made |= {"ended_s": at_s}
    made |= fields
    return Job(id=JobId(job_id), spec=JobSpec(**spec), state=state, since_s=at_s, **made)


def reason(code: str = "Test", text: str = "because") -> Reason:
    return Reason(code=code, text=text)


def submitted(made: Job) -> ev.JobSubmitted:
    return ev.JobSubmitted(at_s=made.submitted_s, job=made)


def started(at_s: float, job_id: int = 1, attempt: int = 1) -> ev.JobStarted:
    return ev.JobStarted(at_s=at_s, job_id=JobId(job_id), attempt=attempt)


def exited(
    at_s: float, job_id: int = 1, attempt: int = 1, *, end: Exit | None = None
) -> ev.JobExited:
    end = Exit(code=0) if end is None else end
    return ev.JobExited(at_s=at_s, job_id=JobId(job_id), attempt=attempt, exit=end, io=IoTotals())


def suspended(at_s: float, job_id: int = 1) -> ev.JobSuspended:
    return ev.JobSuspended(at_s=at_s, job_id=JobId(job_id))


def resumed(at_s: float, job_id: int = 1) -> ev.JobResumed:
    return ev.JobResumed(at_s=at_s, job_id=JobId(job_id))


def cancel(at_s: float, job_id: int = 1, grace_s: float = 10.0) -> ev.CancelRequested:
    return ev.CancelRequested(at_s=at_s, job_id=JobId(job_id), by="ann", grace_s=grace_s)


def requeue(
    at_s: float, job_id: int = 1, grace_s: float = 10.0, ended: Job | None = None
) -> ev.RequeueRequested:
    return ev.RequeueRequested(
        at_s=at_s, job_id=JobId(job_id), by="ann", grace_s=grace_s, ended=ended
    )


def hold(at_s: float, job_id: int = 1) -> ev.SuspendRequested:
    return ev.SuspendRequested(at_s=at_s, job_id=JobId(job_id), by="ann")


def release(at_s: float, job_id: int = 1) -> ev.ResumeRequested:
    return ev.ResumeRequested(at_s=at_s, job_id=JobId(job_id), by="ann")


def timer(at_s: float) -> ev.TimerFired:
    return ev.TimerFired(at_s=at_s)


def counters(read_bytes: int | None = 0, written_bytes: int | None = 0) -> JobCounters:
    return JobCounters(read_bytes=read_bytes, written_bytes=written_bytes)


def device_counters(**fields: int) -> DeviceCounters:
    """Of a disk that has done nothing but what is told."""
    return DeviceCounters(**dict.fromkeys(DeviceCounters.__struct_fields__, 0) | fields)


def device_load(**fields: Any) -> DeviceLoad:
    """A disk in one slice that is busy with one request; else nothing but what is told."""
    nothing: dict[str, Any] = {
        "reads_per_s": 0.0,
        "writes_per_s": 0.0,
        "discards_per_s": 0.0,
        "flushes_per_s": 0.0,
        "read_bytes_per_s": 0.0,
        "written_bytes_per_s": 0.0,
        "read_await_s": None,
        "write_await_s": None,
        "discard_await_s": None,
        "flush_await_s": None,
        "queue_length": 1.0,
        "busy_ratio": 1.0,
        "in_flight": 1,
    }
    return DeviceLoad(**{**nothing, **fields})


def sample(
    at_s: float,
    jobs: Mapping[int, JobCounters] | None = None,
    devices: Mapping[str, DeviceCounters] | None = None,
) -> Sample:
    return Sample(
        at_s=at_s,
        jobs={JobId(number): each for number, each in (jobs or {}).items()},
        devices={DeviceId(name): each for name, each in (devices or {}).items()},
    )


def sampled(at_s: float, jobs: Mapping[int, JobCounters] | None = None) -> ev.SampleTaken:
    return ev.SampleTaken(at_s=at_s, sample=sample(at_s, jobs))


class FirstFit:
    """Placement: the first partition with room."""

    def choose(self, view: PlacementView, job: Job) -> PartitionId | NotNow:
        for partition in view.platform.partitions:
            if view.slots_free(partition.id) >= job.spec.cpus:
                return partition.id
        return NotNow(reason("Slots", "no room"))


class InOrder:
    """Admission: submit order, the first that does not fit ends it; tells a story if asked."""

    def __init__(self) -> None:
        self.rejects: dict[JobId, Reason] = {}

    def decide(self, view: View, memory: None) -> tuple[AdmissionPlan, None]:
        draft = view.draft()
        starts, reasons = [], {}
        for job in view.pending:
            if job.id in self.rejects:
                continue
            reasons[job.id] = reason("Slots", "no room")
            place = draft.place(job)
            if isinstance(place, NotNow):
                break
            starts.append(draft.start(job, place))
        rejects, self.rejects = self.rejects, {}
        return AdmissionPlan(starts=tuple(starts), rejects=rejects, reasons=reasons), memory


class Script:
    """Regulation: does once what ``plan`` says, then nothing."""

    timeslice_s = 1.0

    def __init__(self) -> None:
        self.plan = RegulationPlan()
        self.asked = 0
        self.look = lambda view: None

    def decide(self, view: View, memory: None) -> tuple[RegulationPlan, None]:
        self.asked += 1
        self.look(view)
        plan, self.plan = self.plan, RegulationPlan()
        return plan, memory


class FakeBackend:
    """Records what it is to do. Whatever a test did not expect is left over at its end."""

    offers = frozenset({Start, Suspend, Resume, Stop, Kill, Reject})

    def __init__(self, machine: Platform) -> None:
        self.platform = machine
        self._decisions: list[Decision] = []

    def perform(self, decision: Decision) -> None:
        self._decisions.append(decision)

    def prepare(self, starts: Iterable[Start]) -> None:
        """Nothing is to be done beforehand."""

    def take_back(self, start: Start) -> None:
        """Nothing was done."""

    def settled(self, jobs: Iterable[Job]) -> None:
        """Keeps nothing of them."""

    def describe_stop(self, job_id: JobId) -> str:
        return ""

    def sample(self) -> None:
        """The tests post their own samples."""

    def take(self) -> list[Decision]:
        """What was decided since the last call."""
        decisions, self._decisions = self._decisions, []
        return decisions

    def check(self) -> None:
        assert self._decisions == [], "no unexpected decisions"


class Rig:
    """A controller over a fake backend: ``step`` is what a driver does, ``job`` the outcome."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.backend = FakeBackend(state.platform)
        self.admission = InOrder()
        self.regulation = Script()
        rules = Rules(
            name="test",
            admission=self.admission,
            placement=FirstFit(),
            regulation=self.regulation,
            max_suspend_s=600.0,
        )
        self.controller = Controller(state, rules, seed=1)

    def step(self, *events: ev.Event) -> Plan:
        plan = self.controller.step(events)
        for decision in plan.decisions:
            self.backend.perform(decision)
        self.state.check()
        return plan

    def job(self, job_id: int = 1) -> Job:
        return self.state.jobs[JobId(job_id)]

    def run(self, *jobs: Job, at_s: float = 0.0) -> None:
        """Submit these jobs and let them start, as far as there is room."""
        self.step(*(submitted(made) for made in jobs))
        self.backend.take()
        self.step(*(started(at_s, made.id) for made in jobs if self.job(made.id).is_live))

    def regulate(
        self,
        at_s: float,
        *,
        suspends: tuple[int, ...] = (),
        resumes: tuple[int, ...] = (),
        caps: Mapping[int, Cap] = MappingProxyType({}),
    ) -> Plan:
        """A timeslice ends in which all live jobs have moved something."""
        self.regulation.plan = RegulationPlan(
            suspends=tuple(map(JobId, suspends)),
            resumes=tuple(map(JobId, resumes)),
            caps={JobId(job_id): cap for job_id, cap in caps.items()},
        )
        moved = int(at_s * MB)
        return self.step(sampled(at_s, {made.id: counters(moved) for made in self.state.live}))


def remembered(recollection, now_s):
    """What is known by now of each key: learned last comes first, then what was imported."""
    found = [recollection.look_up(entry, now_s) for entry in recollection.entries()]
    return [each for each in found if each is not None]
