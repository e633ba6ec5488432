"""The operator's cap: how many of the jobs that run stay below ``io_bound`` together.

1. Above it for two slices in a row: those beyond it stand still, whoever started last first.
2. Who stands still for it comes back when all together, with what it moved when it ran last, stay
   below ``LOW_SHARE`` of it; one of them in any case when next to nothing is moved.
3. One job always runs, however much it moves.

Source: the cap is that of Lv et al., JCST 2014, section 3; two marks as in LSF and in
systemd-oomd, so that a job does not come and go with each slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from iodaemon.core.job import Job
from iodaemon.core.view import View

CAP: Final = "io_bound"
"""The name of the cap among the resources' names."""
SUSTAIN_CAP: Final = 2
LOW_SHARE: Final = 0.7
IDLE_SHARE: Final = 0.01


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
