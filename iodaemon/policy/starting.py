"""Who starts in one decision of the rule ``equilibrio``, in which order, and who is left out."""

from __future__ import annotations

from typing import Final

import msgspec

from iodaemon.core.decision import Placed
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.platform import PartitionId
from iodaemon.core.view import View
from iodaemon.policy.backfill import most_free
from iodaemon.policy.bandwidth import Headroom
from iodaemon.policy.intensity import Balance
from iodaemon.policy.line import Line
from iodaemon.policy.wording import told_passed

ORDER: Final = "Order"
"""The code of the reason why a job starts, or waits, by its rank."""


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """A start, and what to say if others had come earlier, under which code."""

    placed: Placed
    job: Job
    why: str
    code: str = ORDER


class Turns:
    """What one decision comes to: the line gets shorter, the draft fuller.

    Args:
        view: the state.
        line: all that wait; left as it is.
        balance: S and W before.
        late_s: who came before this instant has waited for too long.

    Attributes:
        line: those who may start.
        balance: S and W now.
        draft: where they start.
        outs: who starts, in this order.
        headroom: what regulation leaves.
    """

    def __init__(self, view: View, line: Line, balance: Balance, late_s: float) -> None:
        self.draft = view.draft()
        self.now_s = view.now_s
        self.line = line.copy()
        self.balance = balance
        self.outs: list[Out] = []
        self._late_s = late_s
        self.headroom = Headroom(view)
        self._left_out: list[Job] = []
        self._leave_out()

    def has_room(self) -> bool:
        """Whether the smallest in the line would fit, and regulation might let it start."""
        if self.headroom.shut_by is not None:
            return False
        most = most_free(self.draft)
        return most > 0 and bool(self.line.jobs) and most >= min(self.line.cpus)

    def is_overdue(self) -> bool:
        """Whether the first of the line, which is not empty, has waited for too long."""
        return self.line.arrivals_s[0] < self._late_s

    def may_start(self, job: Job) -> bool:
        """Whether regulation lets it, for its I/O and for the number of jobs."""
        return self.headroom.has_room(job)

    def refusals(self) -> dict[JobId, Reason]:
        """Of those whom regulation leaves no room, why not."""
        told = ((job.id, self.headroom.refusal(job)) for job in self._left_out)
        return {job_id: reason for job_id, reason in told if reason is not None}

    def start(self, job: Job, partition: PartitionId, why: str, code: str = ORDER) -> None:
        """The job starts; it stays in the line."""
        placed = self.draft.start(job, partition)
        self.outs.append(Out(placed=placed, job=job, why=why, code=code))
        self.headroom.take(job)

    def take_turn(self, place: int, partition: PartitionId, why: str) -> None:
        """The job at this place of the line starts, and counts for those that follow."""
        self.start(self.line.jobs[place], partition, why)
        self.balance = self.balance.with_running(self.line.intensities[place])
        self.line.remove(place)
        self._leave_out()

    def keep_slots(self, place: int, partition: PartitionId) -> None:
        """The job at this place waits for regulation alone: nobody else gets its slots."""
        job = self.line.jobs[place]
        self.draft.start(job, partition)
        self._left_out.append(job)
        self.line.remove(place)

    def _leave_out(self) -> None:
        """Those that regulation does not let start are not in the line, but for the overdue."""
        if self.headroom.lets_all or self.headroom.shut_by is not None:
            return
        line, stay = self.line, []
        for place, job in enumerate(line.jobs):
            if line.arrivals_s[place] < self._late_s or self.headroom.has_room(job):
                stay.append(place)
            else:
                self._left_out.append(job)
        if len(stay) < len(line.jobs):
            self.line = line.only(stay)


def without(line: Line, outs: list[Out]) -> tuple[tuple[Placed, ...], Line]:
    """The starts, those before whom others had come with a reason, and the line without them."""
    if not outs:
        return (), line
    places = {out.job.id: line.place_of(out.job) for out in outs}
    gone = sorted(places.values())
    before = {place: number for number, place in enumerate(gone)}
    starts = []
    for out in outs:
        place = places[out.job.id]
        passed = place - before[place]
        why = Reason(code=out.code, text=f"{out.why}; {told_passed(passed)}") if passed else None
        starts.append(msgspec.structs.replace(out.placed, why=why))
    shorter = line.copy()
    for place in reversed(gone):
        shorter.remove(place)
    return tuple(starts), shorter
