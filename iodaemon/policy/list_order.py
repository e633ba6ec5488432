"""Who comes first at an exclusive I/O resource: the eight list orders, written once.

Idea: whenever the resource is free and somebody waits, the one with the smallest key is served to
its end. The order decides who waits, and with that how evenly the delay falls.

Every key is a plain function of the same eight numbers, so that the I/O token of the daemon, the
links of the simulator and the compiled sweeps (numba compiles these very functions) use one text:

- ``now_s``: the instant of the decision;
- ``requested_s``: when the job asked for this phase;
- ``phase_s``: length of the phase that waits, when it has the resource alone;
- ``remaining_s``: what the job still has to do from this phase on, without any contention;
- ``io_done_s``: time it has been served until now;
- ``elapsed_s``: time since its release;
- ``ideal_done_s``: what the work it has done until now takes without contention, the compute phase
  before this request included;
- ``job``: its id.

The smallest key is served first; equal keys by the earlier request, then by the smaller id.
Every order is work conserving, so none is worse than twice the best possible makespan.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, section 5.1, items 1 to 8, theorem 1.
"""

# ruff: noqa: ARG001 - one signature for all, whatever an order looks at

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from iodaemon.core.rule import OrderKey


def lowest_id(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The smallest id first. Source: section 5.1 (1)."""
    return float(job)


def longest_io(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The longest waiting phase first: the resource is kept occupied. Source: section 5.1 (2)."""
    return -phase_s


def shortest_io(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The shortest waiting phase first: nobody waits long for it. Source: section 5.1 (3)."""
    return phase_s


def shortest_remaining(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The least work left first: slots come free soon. Source: section 5.1 (4)."""
    return remaining_s


def longest_remaining(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The most work left first: all end together. Source: section 5.1 (5)."""
    return -remaining_s


def fifo(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The earliest request first. Source: section 5.1 (6)."""
    return requested_s


def bandwidth_oriented(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The least time served in relation to the time since release first.

    Source: section 5.1 (7), "lowest ratio between I/O time and execution". At its release a job
    has the ratio 0.
    """
    if elapsed_s <= 0.0:
        return 0.0
    return io_done_s / elapsed_s


def stretch_oriented(
    now_s: float,
    requested_s: float,
    phase_s: float,
    remaining_s: float,
    io_done_s: float,
    elapsed_s: float,
    ideal_done_s: float,
    job: int,
) -> float:
    """The worst current stretch (time since release / ideal time of the work done) first.

    Source: section 5.1 (8). A job that has done nothing yet has the stretch 1 at its release and
    an infinite one from then on.
    """
    if ideal_done_s <= 0.0:
        return -1.0 if elapsed_s <= 0.0 else -float("inf")
    return -(elapsed_s / ideal_done_s)


ORDERS: Final[Mapping[str, OrderKey]] = MappingProxyType(
    {
        "lowest_id": lowest_id,
        "longest_io": longest_io,
        "shortest_io": shortest_io,
        "shortest_remaining": shortest_remaining,
        "longest_remaining": longest_remaining,
        "fifo": fifo,
        "bandwidth_oriented": bandwidth_oriented,
        "stretch_oriented": stretch_oriented,
    }
)
"""All eight by name, in the order of the paper's list."""

CHANGING: Final = frozenset({"bandwidth_oriented", "stretch_oriented"})
"""Orders in which two waiting jobs may change places as time goes by: their keys hold only for the
instant at which they were computed. All others may be kept in a heap from request to service."""
