"""What may be put on one thing that gets congested, and who puts how much on it.

A device's queue and the operator's cap are the same to the rule ``bounded``: a load, a limit for
it, and each job's part of it. Everything here is a function of one slice and what is remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from iodaemon.core.bandwidth import DeviceLoad
from iodaemon.core.congestion import (
    CALM_WAIT,
    KNEE_WAIT,
    Sense,
    await_of,
    look,
    not_congested_after_all,
    predicted_knee,
)
from iodaemon.core.decision import Quantity
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.platform import Device
from iodaemon.core.view import View
from iodaemon.policy.crowd import Crowding, is_crowd

CAP: Final = "io_bound"
"""The name of the operator's cap among the devices' names."""
IDLE_QUEUE: Final = 0.25
"""Below this mean number of requests in flight a device does next to nothing."""
IDLE_SHARE: Final = 0.01
"""The same for the cap: below this part of it next to nothing is moved."""
NOT_FALLING: Final = 0.85
"""A wait below this part of the last slice's is falling by itself (oomd's fast-fall veto)."""
RELIEF: Final = 0.85
"""Less than this part of the bytes after an action, at about the same wait: no relief."""
SAME_AWAIT: Final = 0.8
GONE_SLICES: Final = 2
"""A device without counters in so many slices in a row is gone."""
WRITEBACK_SHARE: Final = 0.5
"""More than this part of a device's bytes being writes of nobody who runs: writeback."""
MOST_RETRY_FACTOR: Final = 16.0
NEVER_S: Final = -1e300


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What a device looked like when jobs on it were suspended."""

    moved_bytes_per_s: float
    await_s: float
    queue_length: float


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one device, or of the cap.

    Attributes:
        sense: what was learned of the device.
        high_slices: slices in a row in which the cap was exceeded.
        action: the last suspension, until its relief was checked.
        is_reducing: jobs were suspended, and the wait is not down at the knee yet.
        absent_slices: slices in a row without counters of the device.
        resumed_s: when a job last came back here.
        retry_s: how long resumes wait after one that proved too much; 0: none did lately.
        not_before_s: no resume before.
        crowding: what is remembered of crowds there.
    """

    sense: Sense = Sense()
    high_slices: int = 0
    action: Action | None = None
    is_reducing: bool = False
    absent_slices: int = 0
    resumed_s: float = NEVER_S
    retry_s: float = 0.0
    not_before_s: float = NEVER_S
    crowding: Crowding = Crowding()

    def with_return(self, now_s: float) -> Place:
        """When a job has come back here."""
        crowding = self.crowding.with_return()
        return msgspec.structs.replace(self, resumed_s=now_s, crowding=crowding)


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """When a device counts as past what it can carry: the parameters of the rule, by name."""

    high_wait: float
    least_queue: float
    sustain: int
    writeback_s: float
    crowd_slices: int


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that gets congested, in one slice.

    Attributes:
        name: ``sda``, or ``io_bound``.
        quantity: what is measured of it, and with it the units of the figures.
        value: of the signal.
        threshold: from where on it is too much.
        load: what all jobs together put on it: requests in flight, or bytes/s.
        target: load down to which jobs are taken off when it is too much.
        fits: load up to which suspended jobs may come back.
        is_exceeded: it is too much now, and has been for long enough.
        is_extreme: it would still be too much with half of the load gone.
        is_calm: jobs may come back now.
        is_idle: next to nothing happens there, or none of the jobs that ran there is left.
        is_wronged: it was never congested; all may come back.
        returning: so many of a crowd may come back at once, because clearly less is moved than
            before some were held, and the wait is low; 0: not for that.
        minds_crowds: many small jobs may be taken off for what they do together.
        parts: each running job's part of the load; jobs elsewhere, or unknown, are not in it.
    """

    name: str
    quantity: Quantity
    value: float
    threshold: float
    load: float
    target: float
    fits: float
    is_exceeded: bool
    is_extreme: bool
    is_calm: bool
    is_idle: bool
    is_wronged: bool
    returning: int = 0
    minds_crowds: bool = True
    parts: Mapping[JobId, float]

    @property
    def signal(self) -> str:
        """What was looked at."""
        return "total of all jobs" if self.name == CAP else f"{self.quantity} of {self.name}"

    def describe(self) -> str:
        """How it stands, in one sentence without its end."""
        if self.quantity == "wait":
            return (
                f"requests to {self.name} take {self.value:.1f} times as long as alone, with "
                f"{self.load:.1f} in flight"
            )
        return f"all jobs move {_mb_per_s(self.value)}, io_bound is {_mb_per_s(self.threshold)}"

    def reason(self, job_id: JobId) -> Reason:
        """Why this job was suspended for it."""
        part = self.parts[job_id]
        if self.quantity == "wait":
            code, what = "Congested", f"{part:.1f} of them"
        else:
            code, what = "IoBound", _mb_per_s(part)
        return Reason(code=code, text=f"{self.describe()}; this job has {what}")


def is_concerned(view: View, job: Job, name: str) -> bool:
    """True when the job's I/O counts there; a job whose devices are unknown counts everywhere."""
    if name == CAP:
        return True
    counters = view.counters(job.id)
    devices = None if counters is None else counters.devices
    return devices is None or name in devices


def device_budget(
    view: View, device: Device, place: Place, interval_s: float, marks: Marks
) -> tuple[Place, Budget]:
    """How a device stands after one more slice, and what is remembered of it."""
    load = view.devices[device.id]
    sense, wronged = _learn(place, load, device, interval_s, marks)
    target = max(predicted_knee(sense), sense.knee if sense.knee < load.queue_length else 0.0)
    is_high = not wronged and _is_high(place, sense, marks.sustain)
    if is_high:
        sense = msgspec.structs.replace(sense, knee=target)
    running = [job for job in view.running if is_concerned(view, job, device.id)]
    is_held = any(is_concerned(view, job, device.id) for job in view.suspended)
    is_calm = sense.wait < CALM_WAIT and view.now_s >= place.not_before_s
    crowding = place.crowding.after(sense, load.total_bytes_per_s, is_held=is_held, is_calm=is_calm)
    budget = Budget(
        name=device.id,
        quantity="wait",
        value=1.0 if sense.last_wait is None else sense.last_wait,
        threshold=marks.high_wait,
        load=load.queue_length,
        target=target,
        fits=sense.knee,
        is_exceeded=is_high and not _is_writeback(view, device, load, marks.writeback_s),
        is_extreme=_is_extreme(sense, marks.high_wait),
        is_calm=is_calm,
        is_idle=load.queue_length < IDLE_QUEUE or not running,
        is_wronged=wronged,
        returning=crowding.returning,
        minds_crowds=crowding.minds(marks.crowd_slices),
        parts=_split(view, running, load),
    )
    place = msgspec.structs.replace(
        place,
        sense=sense,
        action=None,
        is_reducing=is_high,
        absent_slices=0,
        crowding=crowding,
    )
    return place, budget


def without_counters(place: Place) -> Place:
    """What is remembered of a device of which nothing was counted in this slice.

    Counters that went backwards, or a file that could not be read, are missing once. A device
    that is gone stays away; what was known of it is nothing to one that comes in its place.
    """
    absent_slices = place.absent_slices + 1
    if absent_slices >= GONE_SLICES:
        return Place(absent_slices=absent_slices)
    return msgspec.structs.replace(
        place,
        action=None,
        is_reducing=False,
        absent_slices=absent_slices,
        crowding=msgspec.structs.replace(place.crowding, wasted_slices=0, returning=0, returned=0),
    )


def _learn(
    place: Place, load: DeviceLoad, device: Device, interval_s: float, marks: Marks
) -> tuple[Sense, bool]:
    """What is known after this slice, and whether the last suspension wronged the jobs."""
    sense = look(
        place.sense,
        load,
        interval_s,
        rotational=device.rotational,
        high_wait=marks.high_wait,
        least_queue=marks.least_queue,
        service=device.service,
    )
    if place.action is None or not _brought_no_relief(place.action, load):
        return sense, False
    return not_congested_after_all(sense, load, place.action.queue_length), True


def cap_budget(
    view: View, place: Place, bound: float, *, low_share: float, sustain: int
) -> tuple[Place, Budget]:
    """How the cap stands after one more slice."""
    parts = {
        job.id: rate.total_bytes_per_s
        for job in view.running
        if (rate := view.bandwidth(job.id)) is not None
    }
    total = sum(parts.values())
    high_slices = place.high_slices + 1 if total > bound else 0
    budget = Budget(
        name=CAP,
        quantity="bandwidth",
        value=total,
        threshold=bound,
        load=total,
        target=bound,
        fits=low_share * bound,
        is_exceeded=high_slices >= sustain,
        is_extreme=False,
        is_calm=total <= bound and view.now_s >= place.not_before_s,
        is_idle=total < IDLE_SHARE * bound,
        is_wronged=False,
        parts=parts,
    )
    return msgspec.structs.replace(place, high_slices=high_slices), budget


def between_samples(
    budget: Budget, running: Collection[JobId], returned: Mapping[JobId, float]
) -> Budget:
    """How a thing stands within a slice: without who ended, with who came back.

    Of a crowd one may take the place of each that ended; how the others do is seen in the next.

    Args:
        budget: as it was last.
        running: who runs there now; one whose part is not known may well use it.
        returned: who came back since, and the part each had when it last ran.
    """
    parts = {job_id: part for job_id, part in budget.parts.items() if job_id in running}
    parts |= returned
    load = sum(parts.values())
    is_idle = load < _little(budget) and all(job_id in parts for job_id in running)
    return msgspec.structs.replace(
        budget,
        load=load,
        is_exceeded=False,
        is_wronged=False,
        is_idle=is_idle,
        returning=min(budget.returning, 1),
        parts=parts,
    )


def with_expected(budget: Budget, expected: Mapping[JobId, float]) -> Budget:
    """The same with what jobs are expected to put on it that came back late in the slice."""
    parts = {**budget.parts, **{i: max(p, budget.parts.get(i, 0.0)) for i, p in expected.items()}}
    is_idle = budget.is_idle and sum(expected.values()) < _little(budget)
    return msgspec.structs.replace(budget, parts=parts, is_idle=is_idle)


def after_suspension(
    place: Place, budget: Budget, view: View, *, retry_s: float, dwell_s: float
) -> Place:
    """What is remembered when jobs were suspended here: to check relief, and to learn patience."""
    load = view.devices.get(budget.name) if budget.name != CAP else None  # type: ignore[call-overload]  # a DeviceId
    action = None
    if load is not None:
        action = Action(
            moved_bytes_per_s=load.total_bytes_per_s,
            await_s=await_of(load),
            queue_length=load.queue_length,
        )
        if budget.minds_crowds and is_crowd(budget.parts, budget.load):
            most = max(place.crowding.most_bytes_per_s, load.total_bytes_per_s)
            crowding = msgspec.structs.replace(place.crowding, most_bytes_per_s=most)
            place = msgspec.structs.replace(place, crowding=crowding)
    if view.now_s - place.resumed_s > 2.0 * dwell_s:
        return msgspec.structs.replace(place, action=action, retry_s=0.0)
    patience_s = min(max(2.0 * place.retry_s, retry_s), MOST_RETRY_FACTOR * retry_s)
    return msgspec.structs.replace(
        place, action=action, retry_s=patience_s, not_before_s=view.now_s + patience_s
    )


def _split(view: View, jobs: Iterable[Job], load: DeviceLoad) -> dict[JobId, float]:
    """Each running job's part of a device's queue, by the bytes it moved.

    What the device moved for nobody who runs now (a job that ended, writeback) is nobody's part;
    a job whose I/O is unknown has none.
    """
    rates = {
        job.id: rate.total_bytes_per_s
        for job in jobs
        if (rate := view.bandwidth(job.id)) is not None
    }
    total = max(sum(rates.values()), load.total_bytes_per_s)
    queue = load.queue_length
    return {job_id: queue * rate / total if total else 0.0 for job_id, rate in rates.items()}


def _is_high(place: Place, sense: Sense, sustain: int) -> bool:
    """Too much by the upper mark for long enough; once jobs were suspended, by the lower one."""
    if place.is_reducing:
        return sense.last_wait is not None and sense.last_wait > KNEE_WAIT
    return sense.high_slices >= sustain and not _is_falling(place.sense, sense)


def _is_extreme(sense: Sense, high_wait: float) -> bool:
    """By Little's law the wait halves with the queue: half of it would still be too much."""
    if sense.last_wait is None or not sense.is_sure:
        return False
    return min(sense.wait, sense.last_wait) > 2.0 * high_wait


def _is_falling(before: Sense, now: Sense) -> bool:
    if before.last_wait is None or now.last_wait is None:
        return False
    return now.last_wait < NOT_FALLING * before.last_wait


def _little(budget: Budget) -> float:
    """Load below which next to nothing happens there."""
    return IDLE_QUEUE if budget.quantity == "wait" else IDLE_SHARE * budget.threshold


def _brought_no_relief(action: Action, load: DeviceLoad) -> bool:
    """Less was moved after the suspension, and each request took as long as before it."""
    moved_less = load.total_bytes_per_s < RELIEF * action.moved_bytes_per_s
    return moved_less and await_of(load) > SAME_AWAIT * action.await_s


def _is_writeback(view: View, device: Device, load: DeviceLoad, writeback_s: float) -> bool:
    """The device mostly writes, nobody who runs wrote that, and writers were suspended lately."""
    lately = any(
        view.now_s - (job.io_held_since_s or NEVER_S) < writeback_s for job in view.suspended
    )
    if not lately:
        return False
    rates = [
        rate.written_bytes_per_s
        for job in view.running
        if is_concerned(view, job, device.id) and (rate := view.bandwidth(job.id)) is not None
    ]
    nobodys = load.written_bytes_per_s - sum(rates)
    return nobodys > WRITEBACK_SHARE * load.total_bytes_per_s


def _mb_per_s(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s / 1e6:.1f}".removesuffix(".0") + " MB/s"
