"""The published rule: above the bound the heaviest jobs stand still, below it they come back.

Once a timeslice, with the total of what all jobs moved in it (those that are held excepted):

1. Every partition lists its jobs by descending I/O: running jobs that moved something, and
   suspended ones, which keep the rate they had when they were suspended, for sorting only.
2. Total above ``io_bound``: rounds over the partitions, taking the current head of each list; a
   running head is suspended and its I/O subtracted from the total. The rule stops as soon as
   the total is not above the bound. After a full round every list moves on to its next job.
3. Else: on every partition the suspended job with the most I/O is resumed, one a timeslice.
4. Without ``io_bound`` nothing is regulated, and jobs that are still suspended run again.

Cost O(N log N) for N live jobs (the paper states O(N^2)).
Needs: Suspend, Resume.
Source: Lv et al., JCST 2014, sections 3.1-3.4, figures 10-15; timeslice 1 s and 20 s and
IO_BOUND_INTERVAL 40 MB/s from section 3.4.

The faults of the printed procedure are kept, because experiments reproduce it: it suspends the
last running job, and all of them if need be; it resumes by trial, without asking whether the job
still fits, so that a heavy job goes round in a limit cycle; a suspended job keeps its turn in
the rounds, so that a partition is passed over where one heads the list; MB/s says little of what
a parallel device can carry; jobs with much I/O pay for all.

Differs: figure 11 calls the module only when the bound is exceeded, while figure 15 resumes in its
else branch; it is called every timeslice. Line 26 of figure 15 (head = next) stands behind the
loop over the partitions with that loop's index; every head moves on. The loop ends when all lists
are used up. A running job that moved nothing in the slice is no candidate: where it heads the list
of its CMP, figure 15 suspends it and frees nothing (rates 0, 10, 20 and 20 MB/s on four CMPs,
bound 40: the figure suspends the first two, this rule the second). Jobs whose I/O is unknown, and
those that may not be suspended (``--no-suspend``, immune), are no candidates; what the latter move
counts in the total. Equal rates go by job id.
``per_socket_share`` is the variant of section 3.3 ("the entire bandwidth is amortized equally into
each CMP, the dynamic module only cares jobs on the CMP that exceeds its portion"): in step 2 only
partitions above bound / partitions are touched, each until it is not above its share.
``resume_singly`` is the variant below figure 15 ("in case of too aggressive contentions from
resumption, we will let go a job at a time"): in step 3 one job of all is resumed, that with the
most I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import ClassVar, Final

import msgspec

from iodaemon.core.decision import RegulationPlan, Resume, Suspend
from iodaemon.core.job import Job, JobId, JobState, Reason
from iodaemon.core.platform import PartitionId
from iodaemon.core.view import View

Rates = Mapping[JobId, float]
"""The rate of each suspended job in the slice before its suspension, bytes/s."""

_NO_RATES: Final[Rates] = MappingProxyType({})


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The procedure of Lv et al. with its two parameters, and what its prose says beside it.

    Attributes:
        timeslice_s: how often it samples and decides, s, above 0.
        io_bound_bytes_per_s: what all jobs together may move, above 0. None: no bound.
        per_socket_share: the bound is divided equally among the partitions.
        resume_singly: one job is resumed a timeslice, not one on each partition.
    """

    needs: ClassVar[frozenset[type]] = frozenset({Suspend, Resume})

    timeslice_s: float = 1.0
    io_bound_bytes_per_s: float | None = None
    per_socket_share: bool = False
    resume_singly: bool = False

    def __post_init__(self) -> None:
        if not self.timeslice_s > 0.0:
            raise ValueError(f"timeslice_s is {self.timeslice_s:g}; it must be above 0")
        bound = self.io_bound_bytes_per_s
        if bound is not None and not bound > 0.0:
            text = "it must be above 0; leave it out to regulate nothing"
            raise ValueError(f"io_bound_bytes_per_s is {bound:g}; {text}")

    def decide(self, view: View, memory: Rates | None) -> tuple[RegulationPlan, Rates | None]:
        bound = self.io_bound_bytes_per_s
        if bound is None:
            return RegulationPlan(resumes=tuple(job.id for job in view.suspended)), None
        moved = _moved_bytes_per_s(view)
        candidates = _candidates(view, memory or _NO_RATES)
        queues = _queues(candidates)
        if sum(moved.values()) > bound:
            share = bound / len(view.platform.partitions) if self.per_socket_share else None
            plan = _suspend(queues, moved, bound, share)
        else:
            firsts = _first_suspended(queues)
            if self.resume_singly:
                firsts = sorted(firsts, key=_most_first)[:1]
            plan = _resume(firsts, sum(moved.values()), bound)
        held = {job.id for job in view.suspended}.difference(plan.resumes).union(plan.suspends)
        return plan, {c.job_id: c.rate_bytes_per_s for c in candidates if c.job_id in held}


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A job that may be suspended or resumed; the rate of a suspended one is its last."""

    job_id: JobId
    partition: PartitionId
    rate_bytes_per_s: float
    is_suspended: bool


def _moved_bytes_per_s(view: View) -> dict[PartitionId, float]:
    """The rates of all jobs that are not held, summed by partition, bytes/s."""
    moved: dict[PartitionId, float] = {}
    for job in view.live:
        bandwidth = view.bandwidth(job.id)
        if bandwidth is not None and job.partition is not None and not job.wants_freeze:
            before = moved.get(job.partition, 0.0)
            moved[job.partition] = before + bandwidth.total_bytes_per_s
    return moved


def _candidates(view: View, last_rates: Rates) -> list[_Candidate]:
    """Running jobs that moved something and may be suspended, and all suspended ones; by id."""
    found: list[_Candidate] = []
    for job in view.live:
        if job.partition is None:
            continue
        if job.io_hold:
            rate = last_rates.get(job.id, view.predicted(job.id).rate_bytes_per_s)
        elif _may_be_suspended(job, view.now_s):
            bandwidth = view.bandwidth(job.id)
            rate = 0.0 if bandwidth is None else bandwidth.total_bytes_per_s
        else:
            continue
        if job.io_hold or rate > 0.0:
            found.append(
                _Candidate(
                    job_id=job.id,
                    partition=job.partition,
                    rate_bytes_per_s=rate,
                    is_suspended=job.io_hold,
                )
            )
    return found


def _may_be_suspended(job: Job, now_s: float) -> bool:
    """Whether the controller would suspend the job: it runs and nothing protects it."""
    if job.state is not JobState.RUNNING or job.wants_freeze or job.spec.no_suspend:
        return False
    return not job.is_immune(now_s)


def _most_first(candidate: _Candidate) -> tuple[float, JobId]:
    return -candidate.rate_bytes_per_s, candidate.job_id


def _queues(candidates: Iterable[_Candidate]) -> list[list[_Candidate]]:
    """One list for each partition, by number; each by descending I/O."""
    queues: dict[PartitionId, list[_Candidate]] = {}
    for candidate in sorted(candidates, key=_most_first):
        queues.setdefault(candidate.partition, []).append(candidate)
    return [queues[partition] for partition in sorted(queues)]


def _suspend(
    queues: Iterable[Iterable[_Candidate]],
    moved: Mapping[PartitionId, float],
    bound: float,
    share: float | None,
) -> RegulationPlan:
    """Rounds over the heads of the queues until the total is not above the bound."""
    at_first = total = sum(moved.values())
    left = dict(moved)
    taken = dict.fromkeys(moved, 0)
    reasons: dict[JobId, Reason] = {}
    for heads in zip_longest(*queues):
        for head in heads:
            if total <= bound:
                break
            if head is None or head.is_suspended:
                continue
            if share is not None and left[head.partition] <= share:
                continue
            total -= head.rate_bytes_per_s
            left[head.partition] -= head.rate_bytes_per_s
            taken[head.partition] += 1
            reasons[head.job_id] = _why_suspended(head, at_first, bound, taken[head.partition])
    return RegulationPlan(suspends=tuple(reasons), reasons=reasons)


def _first_suspended(queues: Iterable[Iterable[_Candidate]]) -> list[_Candidate]:
    firsts = (next((c for c in queue if c.is_suspended), None) for queue in queues)
    return [first for first in firsts if first is not None]


def _resume(jobs: Iterable[_Candidate], total: float, bound: float) -> RegulationPlan:
    reasons = {c.job_id: _why_resumed(c, total, bound) for c in jobs}
    return RegulationPlan(resumes=tuple(reasons), reasons=reasons)


def _why_suspended(candidate: _Candidate, total: float, bound: float, rank: int) -> Reason:
    text = (
        f"total {_mb_per_s(total)} is above the bound {_mb_per_s(bound)}; this job moved "
        f"{_mb_per_s(candidate.rate_bytes_per_s)}, "
        f"{'the most' if rank == 1 else f'number {rank}'} on socket {candidate.partition}"
    )
    return Reason(code="IoBound", text=text)


def _why_resumed(candidate: _Candidate, total: float, bound: float) -> Reason:
    text = (
        f"total {_mb_per_s(total)} is not above the bound {_mb_per_s(bound)}; of the suspended "
        f"on socket {candidate.partition} this job has the most I/O"
    )
    return Reason(code="IoBound", text=text)


def _mb_per_s(rate_bytes_per_s: float) -> str:
    return f"{rate_bytes_per_s / 1e6:.1f}".removesuffix(".0") + " MB/s"
