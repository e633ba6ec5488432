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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

ROUNDING: Final = 1e-12
"""Distances that differ by less than this part of the larger are equal."""


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """S and W at one instant, in bytes/s or operations/s.

    Attributes:
        running: known intensities of the running jobs, in any order.
        workload: W; 0 where nothing is known.
        by_system: whether distances are those of ``S_c`` to W; otherwise those of the job's own
            intensity to W.
    """

    running: tuple[float, ...]
    workload: float
    by_system: bool = True

    @property
    def system(self) -> float:
        """S; 0 where nothing is known of what runs."""
        return math.fsum(self.running) / len(self.running) if self.running else 0.0

    def system_with(self, intensity: float) -> float:
        """``S_c``: S if a job of this intensity ran as well."""
        return (math.fsum(self.running) + intensity) / (len(self.running) + 1)

    def with_running(self, intensity: float | None) -> Balance:
        """When a queued job has started: W is as before."""
        if intensity is None:
            return self
        return msgspec.structs.replace(self, running=(*self.running, intensity))

    def distances(self, intensities: Iterable[float]) -> list[float]:
        """Delta, not yet scaled, of jobs with these intensities."""
        w = self.workload
        if not self.by_system:
            return [abs(w - x) for x in intensities]
        total, count = math.fsum(self.running), len(self.running) + 1
        return [abs(w - (total + x) / count) for x in intensities]


def balance_of(
    running: Iterable[float | None], queued: Iterable[float | None], *, by_system: bool = True
) -> Balance:
    """S and W of these intensities; None: unknown."""
    known = tuple(x for x in running if x is not None)
    waiting = [x for x in queued if x is not None]
    count = len(known) + len(waiting)
    workload = math.fsum((*known, *waiting)) / count if count else 0.0
    return Balance(running=known, workload=workload, by_system=by_system)


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Of each queued job, in order of arrival; all in 0 ... 1.

    Attributes:
        lambdas: its arrival.
        deltas: its distance; 0 where unknown.
        weights: its weighted priority.
    """

    lambdas: list[float]
    deltas: list[float]
    weights: list[float]

    @property
    def best(self) -> int:
        """The place in the queue of the one that goes first."""
        return self.weights.index(min(self.weights))

    def order(self) -> list[int]:
        """Places in the queue, the first to go first; equal ones by arrival."""
        return sorted(range(len(self.weights)), key=self.weights.__getitem__)


def rank(
    arrivals_s: Sequence[float],
    intensities: Sequence[float | None],
    balance: Balance,
    alpha: float,
) -> Ranks:
    """The weighted priorities of a queue that is not empty.

    Args:
        arrivals_s: rising.
        intensities: None: unknown.
        balance: S and W now.
        alpha: the reordering intensity, 0 (first come, first served) to 1.
    """
    lambdas = _lambdas(arrivals_s)
    known = [x for x in intensities if x is not None]
    scaled = iter(_scaled(balance.distances(known)))
    keep = 1.0 - alpha
    if len(known) == len(intensities):
        deltas = list(scaled)
        weights = [keep * own + alpha * d for own, d in zip(lambdas, deltas, strict=True)]
        return Ranks(lambdas=lambdas, deltas=deltas, weights=weights)
    deltas = [0.0 if x is None else next(scaled) for x in intensities]
    weights = [
        own if x is None else keep * own + alpha * d
        for own, d, x in zip(lambdas, deltas, intensities, strict=True)
    ]
    return Ranks(lambdas=lambdas, deltas=deltas, weights=weights)


def _lambdas(arrivals_s: Sequence[float]) -> list[float]:
    first_s, span_s = arrivals_s[0], arrivals_s[-1] - arrivals_s[0]
    if span_s <= 0.0:
        return [0.0] * len(arrivals_s)
    return [(arrival_s - first_s) / span_s for arrival_s in arrivals_s]


def _scaled(distances: list[float]) -> list[float]:
    least, most = min(distances, default=0.0), max(distances, default=0.0)
    span = most - least
    if span <= ROUNDING * most:
        return [0.0] * len(distances)
    return [(distance - least) / span for distance in distances]
