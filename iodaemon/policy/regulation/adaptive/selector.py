"""Who stands still so that a limit or the operator's cap holds, who is slowed down, who comes back.

1. For the memory: whoever started first runs to its end. To load a working set again costs more
   than anybody gains by taking turns, and whoever started last has loaded least.
2. For a device: whoever puts most on it stands still first, because that relieves the most for the
   fewest jobs; among those that put as much on it whoever started last.
3. Users take turns: the first job of each in that order goes before the second of any, so that to
   stand still is shared by users and not by jobs.
4. Nobody is stopped who asked not to be, who is protected by the controller, whose I/O is unknown,
   or who has run for less than a timeslice.

The operator's cap (``io_bound``), for all jobs that run together:

5. Above it for two slices in a row: those beyond it stand still, whoever started last first.
6. Who stands still for it comes back when all together, with what it moved when it ran last, stay
   below ``LOW_SHARE`` of it; one of them in any case when next to nothing is moved.
7. One job always runs, however much it moves.

A job that is one too many for a device and asked never to be suspended:

8. It is slowed down, by a cap on what it may move there: half of what it moved in the last slice,
   of which no more counts than an equal part of what the device moved. A job that dirties pages as
   fast as the memory takes them would not notice half of that.
9. The cap is on what it writes, where it writes more than it reads; else on what it reads. It keeps
   that until there is room at the device, as who stands still does until then.
10. Never for the memory: a job that is slowed down keeps as much of it. Never where the kernel, or
    the backend, knows no caps (``View.may_cap``).

Source: the operator's cap is that of Lv et al., JCST 2014, section 3; two marks as in LSF and in
systemd-oomd, so that a job does not come and go with each slice. Slowing down: measured
(docs/regulation.md, "A ladder before freezing").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from iodaemon.core.decision import Cap
from iodaemon.core.job import Job, JobId, JobKind
from iodaemon.core.platform import DeviceId
from iodaemon.core.view import View
from iodaemon.policy.regulation.adaptive.contender import A_SLICE, MEMORY

CAP: Final = "io_bound"
"""The name of the cap among the resources' names."""
SUSTAIN_CAP: Final = 2
LOW_SHARE: Final = 0.7
IDLE_SHARE: Final = 0.01
PART: Final = 0.5
"""Of what it moved: measured; a part so large relieves the device, and leaves the job its pace."""
LEAST_BYTES_PER_S: Final = 1e6
"""No cap is tighter: a job with a heartbeat has to get on (Linux charges whole pages and requests).
"""


class RunOrder:
    """The order in which jobs keep running at each resource; asked within one decision."""

    def __init__(self, view: View) -> None:
        self._view = view

    def in_order(self, resource: str, jobs: Iterable[Job]) -> list[Job]:
        """The jobs, whoever is to run on first."""
        if resource == MEMORY:
            return _in_turns(sorted(jobs, key=_arrival))
        weighed = sorted(
            jobs, key=lambda job: (self._heaviness.get(self._view.kind(job.id), 0), *_arrival(job))
        )
        return _in_turns(weighed)

    def may_stop(self, job: Job, timeslice_s: float) -> bool:
        view = self._view
        if job.spec.no_suspend or job.is_immune(view.now_s) or view.bandwidth(job.id) is None:
            return False
        return job.run_s_at(view.now_s) >= A_SLICE * timeslice_s

    @cached_property
    def _heaviness(self) -> dict[JobKind, int]:
        """Bytes/s of a job of each kind in the mean, as a power of two: less is no difference."""
        moved: dict[JobKind, float] = {}
        ran_s: dict[JobKind, float] = {}
        for job in self._view.live:
            kind, counters = self._view.kind(job.id), self._view.counters(job.id)
            if counters is not None:
                moved[kind] = moved.get(kind, 0.0) + (counters.moved_bytes or 0)
                ran_s[kind] = ran_s.get(kind, 0.0) + job.run_s_at(self._view.now_s)
        return {
            kind: round(math.log2(max(1.0, size / max(1.0, ran_s[kind]))))
            for kind, size in moved.items()
        }


def _arrival(job: Job) -> tuple[float, int]:
    return job.started_s or 0.0, job.id


def _in_turns(jobs: Sequence[Job]) -> list[Job]:
    """One job of each user, in the order in which they come, then another one of each."""
    places: Counter[int] = Counter()
    turns: dict[JobId, int] = {}
    for job in jobs:
        turns[job.id] = places[job.uid]
        places[job.uid] += 1
    return sorted(jobs, key=lambda job: turns[job.id])


# -- the operator's cap ----------------------------------------------------------------------------


def moved_bytes_per_s(view: View) -> float:
    """What all jobs that run moved in the slice."""
    rates = (view.bandwidth(job.id) for job in view.running)
    return sum(rate.total_bytes_per_s for rate in rates if rate is not None)


def surplus(view: View, jobs: Sequence[Job], bound: float) -> list[Job]:
    """Those of the jobs, in the order in which they are to run on, that are beyond the cap."""
    total, kept, beyond = 0.0, 0, []
    for job in jobs:
        rate = view.bandwidth(job.id)
        moves = 0.0 if rate is None else rate.total_bytes_per_s
        if moves > 0.0 and kept and total + moves > bound:
            beyond.append(job)
            continue
        total += moves
        kept += moves > 0.0
    return beyond


def fitting(view: View, held: Sequence[Job], bound: float) -> list[Job]:
    """Those of the held jobs, in the order of their return, for whom there is room."""
    total, back = moved_bytes_per_s(view), []
    for job in held:
        expected = view.predicted(job.id).rate_bytes_per_s
        if total + expected > LOW_SHARE * bound and total > IDLE_SHARE * bound:
            break
        total += expected
        back.append(job)
    return back


def headroom_bytes_per_s(view: View, held: Sequence[Job], bound: float) -> float:
    """What admission may still add: nothing that those who are held will take."""
    promised = sum(view.predicted(job.id).rate_bytes_per_s for job in held)
    return max(0.0, LOW_SHARE * bound - moved_bytes_per_s(view) - promised)


# -- slowing down ----------------------------------------------------------------------------------


def slow_down(view: View, device: str, contenders: Sequence[Job], many: int) -> dict[JobId, Cap]:
    """The caps of those who may have one, at most so many; who has one keeps it.

    Args:
        device: that they are too many for.
        contenders: all of them, those first that are to be slowed down first.
        many: how many are too many.
    """
    able = [job for job in contenders if job.spec.no_suspend and view.may_cap(job.id)]
    had = view.caps
    able.sort(key=lambda job: not _is_on(had.get(job.id), device))  # stable
    caps: dict[JobId, Cap] = {}
    for job in able:
        if len(caps) >= many:
            break
        known = had.get(job.id)
        cap = known if _is_on(known, device) else _half(view, device, job, len(contenders))
        if cap is not None:
            caps[job.id] = cap
    return caps


def _is_on(cap: Cap | None, device: str) -> bool:
    if cap is None:
        return False
    return device in cap.read_bytes_per_s or device in cap.written_bytes_per_s


def _half(view: View, device: str, job: Job, many: int) -> Cap | None:
    """The cap of a job that has none yet; None: it moved nothing, or what it moved is not known."""
    name = DeviceId(device)
    moved, load = view.bandwidth(job.id), view.devices.get(name)
    if moved is None or load is None or moved.total_bytes_per_s <= 0.0:
        return None
    own = min(moved.total_bytes_per_s, load.total_bytes_per_s / many)
    most = {name: max(LEAST_BYTES_PER_S, PART * own)}
    if moved.written_bytes_per_s > moved.read_bytes_per_s:
        return Cap(written_bytes_per_s=most)
    return Cap(read_bytes_per_s=most)
