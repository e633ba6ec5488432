"""EquilibrIO's numbers: how near each queued job would bring what runs to the whole workload.

A job's I/O intensity is its mean I/O rate over its run. S is the mean intensity of what runs, W
that of what runs or is queued. Jobs of which nothing is known are counted in neither.

For each queued job c: lambda is its arrival, scaled over the queue to 0 (first) ... 1 (last);
delta is ``|W - S_c|``, scaled likewise, with ``S_c`` the mean if c ran as well; its weighted
priority is ``(1 - alpha) * lambda + alpha * delta``, of which the smallest goes first. That of an
unknown job is lambda alone.

Source: Özden, Tarraf, Wolf, IEEE CLUSTER 2025 (EquilibrIO), slides "Fairness priority value" and
"Weighted priority". Degenerate cases are ours: equal arrivals make lambda 0, equal distances make
delta 0; equal priorities go by arrival, then id.

How far to depart from the order of arrival: an alpha that finds itself. The authors fix alpha for a
whole workload and leave its adaptation as future work. A fixed one also reorders where nobody would
wait for the storage. ``alpha = most * need``, from 0 to ``most``, at each turn anew:

- Where it is known what the storage delivers, the need is how full it would be: S or W, whichever
  is larger, for as many jobs as run, in parts of ``full`` times the bandwidth, at most 1. S tells
  of what runs already, W of what will run if the order stays. Means collide long before they fill
  the storage, as jobs do their I/O in bursts; so ``full`` is a half.
- Where it is not known, the need is how far S and W are apart, in parts of the larger: 0 where what
  runs is like the whole, 1 where one of them does nothing.

Measured by the experiment ``equilibrio-auto``; ``most`` is the best fixed alpha of the source.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

ROUNDING: Final = 1e-12
"""Distances that differ by less than this part of the larger are equal."""
_CHUNK: Final = 64
"""Jobs that are looked at before it is asked whether a later one can still be first."""


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """S and W at one instant, in bytes/s or operations/s.

    Attributes:
        running: known intensities of what runs, in any order.
        total: their sum.
        workload: W; 0 where nothing is known.
        by_system: whether distances are those of ``S_c`` to W; otherwise those of the job's own
            intensity to W.
    """

    running: tuple[float, ...]
    total: float
    workload: float
    by_system: bool = True

    @property
    def system(self) -> float:
        """S; 0 where nothing is known of what runs."""
        return self.total / len(self.running) if self.running else 0.0

    def system_with(self, intensity: float) -> float:
        """``S_c``: S if a job of this intensity ran as well."""
        return (self.total + intensity) / (len(self.running) + 1)

    def with_running(self, intensity: float | None) -> Balance:
        """When a queued job has started: W is as before."""
        if intensity is None:
            return self
        running = (*self.running, intensity)
        return msgspec.structs.replace(self, running=running, total=math.fsum(running))

    def distance(self, intensity: float) -> float:
        """Delta, not yet scaled, of a job with this intensity."""
        own = self.system_with(intensity) if self.by_system else intensity
        return abs(self.workload - own)


def balance_of(
    running: Iterable[float | None], queued: Sequence[float], *, by_system: bool = True
) -> Balance:
    """S and W.

    Args:
        running: intensities of what runs; None: unknown.
        queued: the known intensities of what waits.
        by_system: of ``Balance``.
    """
    known = tuple(x for x in running if x is not None)
    count = len(known) + len(queued)
    workload = math.fsum((*known, *queued)) / count if count else 0.0
    total = math.fsum(known)
    return Balance(running=known, total=total, workload=workload, by_system=by_system)


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """What makes one number of the arrival and the intensity of a job in the queue.

    Attributes:
        first_s, span_s: of the arrivals.
        least, span: of the distances; a span of 0: they are equal.
        balance: what distances are measured by.
        alpha: the reordering intensity, 0 (first come, first served) to 1 (intensity alone).
    """

    first_s: float
    span_s: float
    least: float
    span: float
    balance: Balance
    alpha: float

    def lam(self, arrival_s: float) -> float:
        """Lambda, 0 to 1."""
        return (arrival_s - self.first_s) / self.span_s if self.span_s else 0.0

    def delta(self, intensity: float) -> float:
        """Delta, 0 to 1."""
        return (self.balance.distance(intensity) - self.least) / self.span if self.span else 0.0

    def weigh(
        self, arrivals_s: Sequence[float], intensities: Sequence[float | None]
    ) -> list[float]:
        """The weighted priorities of these jobs; the loop that the time goes into."""
        first_s, span_s = self.first_s, self.span_s or 1.0
        keep, alpha = 1.0 - self.alpha, self.alpha if self.span else 0.0
        least, span, w = self.least, self.span or 1.0, self.balance.workload
        by_system = self.balance.by_system
        total = self.balance.total if by_system else 0.0
        count = len(self.balance.running) + 1 if by_system else 1
        return [
            (t - first_s) / span_s
            if x is None
            else keep * ((t - first_s) / span_s)
            + alpha * ((abs(w - (total + x) / count) - least) / span)
            for t, x in zip(arrivals_s, intensities, strict=True)
        ]

    def find_first(self, arrivals_s: Sequence[float], intensities: Sequence[float | None]) -> int:
        """The place of the smallest weighted priority; of equal ones the first.

        Arrivals rise and delta is at least 0: where lambda alone outweighs the best until now,
        nothing better comes.
        """
        keep = 1.0 - self.alpha
        best, place, begin, size = math.inf, 0, 0, _CHUNK
        while begin < len(arrivals_s) and keep * self.lam(arrivals_s[begin]) <= best:
            end = begin + size
            weights = self.weigh(arrivals_s[begin:end], intensities[begin:end])
            least = min(weights)
            if least < best:
                best, place = least, begin + weights.index(least)
            begin, size = end, 2 * size
        return place


def scale_of(
    arrivals_s: Sequence[float], known: Sequence[float], balance: Balance, alpha: float
) -> Scale:
    """The scale of a queue that is not empty, in O(log n).

    Args:
        arrivals_s: rising.
        known: the known intensities of the queue, rising.
        alpha: the reordering intensity.
    """
    least = most = 0.0
    if known:
        # The distance falls up to where S_c is W, and rises from there.
        nearest = _turning_point(known, balance)
        around = known[max(0, nearest - 1) : nearest + 1]
        least = min(map(balance.distance, around))
        most = max(balance.distance(known[0]), balance.distance(known[-1]))
    span = most - least
    return Scale(
        first_s=arrivals_s[0],
        span_s=arrivals_s[-1] - arrivals_s[0],
        least=least,
        span=span if span > ROUNDING * most else 0.0,
        balance=balance,
        alpha=alpha,
    )


def _turning_point(known: Sequence[float], balance: Balance) -> int:
    """Of the first intensity that takes S (or itself) to W or above."""
    if not balance.by_system:
        return bisect_left(known, balance.workload)
    total, count = balance.total, len(balance.running) + 1
    return bisect_left(known, balance.workload, key=lambda x: (total + x) / count)


def told_way(scale: Scale, intensity: float, told: Callable[[float], str]) -> str:
    """What the start of a job of this intensity does to S, and how that compares with others.

    Args:
        scale: by which it is the first of the line.
        intensity: of the job.
        told: an intensity in words.
    """
    balance = scale.balance
    whole = f"the {told(balance.workload)} of all"
    is_best = scale.delta(intensity) <= ROUNDING
    later = "those that may start and are nearer came later"
    if not balance.by_system:
        own = f"its I/O intensity is {told(intensity)}"
        return f"{own}, nearest to {whole}" if is_best else f"{own}, of {whole}; {later}"
    after = told(balance.system_with(intensity))
    if not balance.running:
        start = f"it makes the mean I/O intensity of the running jobs {after}"
        return f"{start}, nearest to {whole}" if is_best else f"{start}, of {whole}; {later}"
    start = (
        "it takes the mean I/O intensity of the running jobs from "
        f"{told(balance.system)} to {after}"
    )
    was, now = abs(balance.workload - balance.system), balance.distance(intensity)
    rounding = ROUNDING * max(was, now, balance.workload)
    if is_best and now < was - rounding:
        return f"{start}, nearest to {whole}"
    way = "nearer to" if now < was - rounding else "farther from"
    if abs(now - was) <= rounding:
        way = "as far as before from"
    return f"{start}, {way} {whole}; " + ("no other that may start is nearer" if is_best else later)
