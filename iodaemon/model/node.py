"""A simulated node: the same decisions in, the same events and counters out, no real process.

It runs on any timeline: in virtual time below the simulator, in wall time below the daemon.
What its jobs do is in their profiles, what they share in the model, how they get on in the
machine (``profile.py``, ``spec.py``, ``machine.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

from iodaemon.core import event as ev
from iodaemon.core.backend import Timeline, Timer
from iodaemon.core.decision import (
    Cap,
    Decision,
    Free,
    Grant,
    Kill,
    Reject,
    Resume,
    Start,
    Stop,
    Suspend,
    Throttle,
)
from iodaemon.core.error import IodaemonError
from iodaemon.core.job import Exit, IoTotals, Job, JobId
from iodaemon.core.platform import (
    COPY_STRIDE,
    Device,
    DeviceId,
    Partition,
    PartitionId,
    Platform,
    Slot,
    SlotId,
)
from iodaemon.core.sample import Sample
from iodaemon.model.disk import SimulatedDisk
from iodaemon.model.machine import Finished, Machine
from iodaemon.model.profile import (
    Compute,
    Hold,
    Profile,
    Read,
    Stage,
    Step,
    Transfer,
    Write,
    parse_profile,
)
from iodaemon.model.scaling import Scaling, constant_scaling, lv_scaling, table_scaling
from iodaemon.model.spec import DEFAULT_MODEL, LinkSpec, Model, StoreSpec
from iodaemon.model.store import NoSpace, Store

__all__ = [
    "DEFAULT_MODEL",
    "Compute",
    "Hold",
    "LinkSpec",
    "Model",
    "Profile",
    "Read",
    "Scaling",
    "SimulatedDisk",
    "SimulatedNode",
    "Stage",
    "Step",
    "Store",
    "StoreSpec",
    "Transfer",
    "Write",
    "constant_scaling",
    "default_platform",
    "lv_scaling",
    "parse_profile",
    "table_scaling",
]

SIGKILL: Final = 9
SIGTERM: Final = 15
CANNOT_EXECUTE: Final = 126
"""The shell's exit code for a command that was found but cannot be run."""


def default_platform(sockets: int = 2, slots: int = 4) -> Platform:
    """Sockets with so many one-CPU slots each, numbered through, and one disk ``sim0``."""
    partitions = tuple(
        Partition(
            id=PartitionId(socket),
            slots=tuple(
                Slot(id=SlotId(cpu), cpus=(cpu,))
                for cpu in range(socket * slots, (socket + 1) * slots)
            ),
        )
        for socket in range(sockets)
    )
    return Platform(partitions=partitions, devices=(Device(id=DeviceId("sim0")),))


class _Launch:
    """A job of this node that has not ended: the decision, and whether it runs yet."""

    def __init__(self, start: Start, profile: Profile) -> None:
        self.start = start
        self.profile = profile
        self.timer: Timer | None = None
        self.runs = False
        self.suspended = False


class SimulatedNode:
    """Carries decisions out in a model. Events are posted from the timeline's calls only.

    Args:
        platform: what can be handed out.
        timeline: the clock.
        post: takes events.
        profile_of: what a job really does.
        model: what jobs share.
        start_delay_s: from a decision to the job's start.
        free_until_s: until when nobody acts or looks, where that is known (virtual time): what
            happens to jobs before needs no calls of the timeline. None: it is not known.
    """

    offers: frozenset[type] = frozenset(
        {Start, Suspend, Resume, Throttle, Stop, Kill, Reject, Grant, Free}
    )

    def __init__(
        self,
        platform: Platform,
        timeline: Timeline,
        post: Callable[[ev.Event], None],
        profile_of: Callable[[JobId], Profile],
        *,
        model: Model = DEFAULT_MODEL,
        start_delay_s: float = 0.0,
        free_until_s: Callable[[], float] | None = None,
    ) -> None:
        self._platform = platform
        self._timeline = timeline
        self._post = post
        self._profile_of = profile_of
        self._start_delay_s = start_delay_s
        self._free_until_s = free_until_s
        cores = {
            # Slots of an oversubscribed core are copies of one.
            partition.id: len({slot.id % COPY_STRIDE for slot in partition.slots})
            for partition in platform.partitions
        }
        self._machine = Machine(model, timeline.now_s, cores)
        self._launches: dict[JobId, _Launch] = {}
        self._alarm: Timer | None = None
        self._alarm_s = math.inf

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        return self._platform

    @property
    def stores(self) -> Mapping[str, Store]:
        """Room for bytes, by name."""
        return self._machine.stores

    def perform(self, decision: Decision) -> None:
        """Carry the decision out; of a job that is unknown or ended it says nothing."""
        self._catch_up()
        match decision:
            case Start():
                self._start(decision)
            case Suspend():
                self._suspend(decision.job_id)
            case Resume():
                self._resume(decision.job_id)
            case Throttle():
                self._cap(decision.job_id, decision.cap)
            case Stop():
                self._stop(decision.job_id)
            case Kill():
                self._end_by_signal(decision.job_id, SIGKILL)
            case Grant():
                self._machine.give_turn(decision.job_id)
            case Free():
                self._free(decision)
            case Reject():
                pass
            case _:
                assert_never(decision)
        self._set_alarm()

    def prepare(self, starts: Iterable[Start]) -> None:
        """Nothing is to be done beforehand."""

    def take_back(self, start: Start) -> None:
        """Nothing was done."""

    def settled(self, jobs: Iterable[Job]) -> None:
        """Nothing is kept of jobs that have ended."""

    def describe_stop(self, job_id: JobId) -> str:  # noqa: ARG002
        """Nobody sends signals here."""
        return ""

    def sample(self) -> None:
        """Read all counters; one SampleTaken answers."""
        self._catch_up()
        self._set_alarm()
        sample = Sample(
            at_s=self._timeline.now_s,
            jobs=self._machine.jobs(),
            devices=self._machine.devices(),
            node=self._machine.node(),
        )
        self._answer(ev.SampleTaken(at_s=sample.at_s, sample=sample))

    # -- decisions ---------------------------------------------------------------------------

    def _start(self, start: Start) -> None:
        known = self._launches.get(start.job_id)
        if known is not None:  # asked again: answered again
            if known.runs:
                self._answer_started(known.start)
            return
        try:
            launch = _Launch(start, self._profile_of(start.job_id))
        except IodaemonError as error:
            self._answer_failed(start, str(error), CANNOT_EXECUTE)
            return
        self._launches[start.job_id] = launch
        if self._start_delay_s > 0.0:
            at_s = self._timeline.now_s + self._start_delay_s
            launch.timer = self._timeline.call_at(at_s, lambda: self._begin_late(launch))
        else:
            self._begin(launch)

    def _begin_late(self, launch: _Launch) -> None:
        self._catch_up()
        self._begin(launch)
        self._set_alarm()

    def _begin(self, launch: _Launch) -> None:
        start = launch.start
        try:
            self._machine.add(start.job_id, launch.profile, len(start.slots), start.partition)
        except IodaemonError as error:
            del self._launches[start.job_id]
            exit_code = None if isinstance(error, NoSpace) else CANNOT_EXECUTE
            self._answer_failed(start, str(error), exit_code)
            return
        launch.runs = True
        self._answer_started(start)
        self._pass_on()

    def _free(self, free: Free) -> None:
        """Simulated jobs leave nothing behind."""
        now_s = self._timeline.now_s
        self._answer(ev.ScratchRemoved(at_s=now_s, job_id=free.job_id, attempt=free.attempt))

    def _suspend(self, job_id: JobId) -> None:
        launch = self._launches.get(job_id)
        if launch is None or not launch.runs:
            return
        launch.suspended = True
        self._machine.suspend(job_id)
        self._answer(ev.JobSuspended(at_s=self._timeline.now_s, job_id=job_id))

    def _resume(self, job_id: JobId) -> None:
        launch = self._launches.get(job_id)
        if launch is None or not launch.runs:
            return
        launch.suspended = False
        self._machine.cap(job_id)
        self._machine.resume(job_id)
        self._answer(ev.JobResumed(at_s=self._timeline.now_s, job_id=job_id))

    def _cap(self, job_id: JobId, cap: Cap | None) -> None:
        """Its one disk is every device's name."""
        launch = self._launches.get(job_id)
        if launch is None or not launch.runs:
            return
        if cap is None:
            self._machine.cap(job_id)
            return
        self._machine.cap(
            job_id,
            read_bytes_per_s=min(cap.read_bytes_per_s.values(), default=math.inf),
            written_bytes_per_s=min(cap.written_bytes_per_s.values(), default=math.inf),
        )

    def _stop(self, job_id: JobId) -> None:
        launch = self._launches.get(job_id)
        if launch is None:
            return
        if not (launch.runs and launch.profile.ignores_term):
            self._end_by_signal(job_id, SIGTERM)
        elif launch.suspended:
            self._resume(job_id)

    def _end_by_signal(self, job_id: JobId, signal: int) -> None:
        launch = self._launches.pop(job_id, None)
        if launch is None:
            return
        if launch.timer is not None:
            launch.timer.cancel()
        io = (
            self._machine.remove(job_id) if launch.runs else IoTotals(read_bytes=0, written_bytes=0)
        )
        self._answer_exited(launch, self._timeline.now_s, Exit(signal=signal), io)

    # -- time --------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Bring the machine to the present; jobs that ended on the way are reported as of then."""
        self._report(self._machine.advance(self._timeline.now_s))

    def _report(self, ends: Iterable[Finished]) -> None:
        for finished in ends:
            launch = self._launches.pop(finished.job_id)
            end = Exit(code=launch.profile.exit_code)
            self._answer_exited(launch, finished.at_s, end, finished.io)
        self._pass_on()

    def _pass_on(self) -> None:
        """What jobs have told of their I/O."""
        told, self._machine.told = self._machine.told, []
        for each in told:
            if each.expect_bytes is None:
                self._answer(ev.PhaseDone(at_s=each.at_s, job_id=each.job_id))
            else:
                self._answer(
                    ev.PhaseAsked(
                        at_s=each.at_s, job_id=each.job_id, expect_bytes=each.expect_bytes
                    )
                )

    def _set_alarm(self) -> None:
        next_s = self._machine.next_s
        if next_s == self._alarm_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_s = None, next_s
        if next_s < math.inf:
            self._alarm = self._timeline.call_at(next_s, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm, self._alarm_s = None, math.inf
        self._catch_up()
        if self._free_until_s is None:
            self._machine.settle()
        else:
            self._report(self._machine.run_ahead(self._free_until_s()))
        self._set_alarm()

    # -- events ------------------------------------------------------------------------------

    def _answer(self, event: ev.Event) -> None:
        """Post it from a call of its own: nobody is answered while still asking."""
        at_s = max(event.at_s, self._timeline.now_s)
        self._timeline.call_at(at_s, lambda: self._post(event))

    def _answer_started(self, start: Start) -> None:
        now_s = self._timeline.now_s
        self._answer(ev.JobStarted(at_s=now_s, job_id=start.job_id, attempt=start.attempt))

    def _answer_failed(self, start: Start, problem: str, exit_code: int | None) -> None:
        self._answer(
            ev.StartFailed(
                at_s=self._timeline.now_s,
                job_id=start.job_id,
                attempt=start.attempt,
                problem=problem,
                exit_code=exit_code,
            )
        )

    def _answer_exited(self, launch: _Launch, at_s: float, end: Exit, io: IoTotals) -> None:
        self._answer(
            ev.JobExited(
                at_s=at_s,
                job_id=launch.start.job_id,
                attempt=launch.start.attempt,
                exit=end,
                io=io,
            )
        )
