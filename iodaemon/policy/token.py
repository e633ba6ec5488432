"""Whose turn it is on each device: one holder at a time, the others in the chosen order.

A claim names all devices that it needs; it gets them together or not at all. Whoever is before
another in the order is not overtaken by it on a device that both need, so that in an order by the
time of asking nobody waits for ever; a device that nobody before it needs is not kept free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.decision import Evidence, Weighed
from iodaemon.core.job import Job, JobId
from iodaemon.core.meter import DeviceLoad
from iodaemon.core.platform import DeviceId
from iodaemon.core.view import View
from iodaemon.policy.order import ORDERS

ANY: Final = DeviceId("any device")
"""The one token of a machine whose devices are not known."""
_NOMINAL_BYTES_PER_S: Final = 100e6
"""Turns bytes into seconds until a device was seen at work; most orders ask for no more than the
relation of two such times."""

_ASKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "longest_io": "phase_s",
        "shortest_io": "phase_s",
        "shortest_remaining": "remaining_s",
        "longest_remaining": "remaining_s",
        "stretch_oriented": "ideal_done_s",
    }
)
"""What an order must know of a job; the others know it of every job."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A job that wants its turn, with the numbers of ``policy.order``; None: not known.

    Attributes:
        devices: what it needs, at least one.
    """

    job_id: JobId
    devices: tuple[DeviceId, ...]
    requested_s: float
    phase_s: float | None = None
    remaining_s: float | None = None
    io_done_s: float = 0.0
    elapsed_s: float = 0.0
    ideal_done_s: float | None = None


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """How the devices are handed out.

    Attributes:
        winners: claims that have their turn, in the order in which they got it.
        behind: each other claim and the job that has, or is first to get, a device it needs.
        places: of each other claim, how many of those who wait are before it.
    """

    winners: tuple[JobId, ...]
    behind: Mapping[JobId, JobId]
    places: Mapping[JobId, int]


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a job, and why: its row in the evidence."""

    job_id: JobId
    verdict: str
    why: str


def evidence_of(
    now_s: float,
    heavy_bytes_per_s: float,
    rates: Mapping[JobId, float | None],
    verdicts: Iterable[Verdict],
) -> Evidence:
    """The table of a decision about turns.

    Args:
        now_s: the instant of the decision.
        heavy_bytes_per_s: who moves more than this needs a turn.
        rates: what each live job moved in the last slice, bytes/s; None: unknown.
        verdicts: of every live job, ordered by id.
    """
    rows = tuple(
        Weighed(
            job_id=each.job_id,
            rate_bytes_per_s=rates[each.job_id],
            load=rates[each.job_id] or 0.0,
            verdict=each.verdict,
            why=each.why,
        )
        for each in verdicts
    )
    strayed = sum(row.load for row in rows if row.verdict == "suspend")
    return Evidence(
        at_s=now_s,
        signal="turn to do I/O",
        quantity="bandwidth",
        value=strayed,
        threshold=heavy_bytes_per_s,
        load=strayed,
        allowed=heavy_bytes_per_s,
        fits=None,
        total_bytes_per_s=sum(rate or 0.0 for rate in rates.values()),
        jobs=rows,
    )


def rank(claims: Iterable[Claim], order: str, now_s: float) -> list[Claim]:
    """The claims in this order; those it knows too little of come last, by the time of asking.

    Args:
        claims: each job once.
        order: a name of ``ORDERS``.
        now_s: the instant of the decision.
    """
    return sorted(claims, key=lambda claim: _key(claim, order, now_s))


def hand_out(holders: Mapping[DeviceId, JobId], ranked: Sequence[Claim]) -> Handed:
    """Give each device that is free to the first claim for it.

    Args:
        holders: who has which device.
        ranked: the claims, the first one first.
    """
    taken = dict(holders)
    winners: list[JobId] = []
    behind: dict[JobId, JobId] = {}
    places: dict[JobId, int] = {}
    for claim in ranked:
        others = [taken[device] for device in claim.devices if device in taken]
        if others:
            places[claim.job_id] = len(places)
            behind[claim.job_id] = others[0]
        else:
            winners.append(claim.job_id)
        for device in claim.devices:
            taken.setdefault(device, claim.job_id)
    return Handed(winners=tuple(winners), behind=behind, places=places)


def who_has_it(handed: Handed, job_id: JobId, *, has_it: bool) -> str:
    """Behind whom a claim waits, in words.

    Args:
        handed: how the devices were handed out.
        job_id: whose claim.
        has_it: the one it is behind has its turn; False: it waits as well.
    """
    other = handed.behind[job_id]
    before = handed.places[job_id] - (0 if has_it else 1)
    text = f"job {other} has it" if has_it else f"job {other} is before it"
    return f"{text}, {before} more before it" if before > 0 else text


def devices_of(view: View, job: Job) -> tuple[DeviceId, ...]:
    """The devices whose tokens the job needs; empty for one whose files lie on none of them.

    Where that is not known it is all of them; so it is for a job that tells of its I/O: it asks
    before it opens its files.
    """
    known = tuple(device.id for device in view.platform.devices) or (ANY,)
    counters = view.counters(job.id)
    if job.phase is not None or counters is None or counters.devices is None or known == (ANY,):
        return known
    return tuple(device for device in known if device in counters.devices)


def claim_of(view: View, job: Job, *, requested_s: float, bytes_per_s: float) -> Claim:
    """What is known of a job that wants its turn.

    Args:
        view: the state.
        job: the job.
        requested_s: since when it wants it.
        bytes_per_s: what a lone job gets: turns bytes into seconds of I/O.
    """
    counters = view.counters(job.id)
    moved = (0, 0) if counters is None else (counters.read_bytes or 0, counters.written_bytes or 0)
    io_done_s = sum(moved) / bytes_per_s
    cpu_s = None if counters is None else counters.cpu_s
    expected = None if job.phase is None else job.phase.expect_bytes
    walltime_s = job.spec.walltime_s
    return Claim(
        job_id=job.id,
        devices=devices_of(view, job),
        requested_s=requested_s,
        phase_s=None if expected is None else expected / bytes_per_s,
        remaining_s=None if walltime_s is None else walltime_s - job.run_s_at(view.now_s),
        io_done_s=io_done_s,
        elapsed_s=0.0 if job.started_s is None else max(0.0, view.now_s - job.started_s),
        ideal_done_s=None if cpu_s is None else cpu_s / job.spec.cpus + io_done_s,
    )


def lone_bytes_per_s(view: View, peak: float) -> float:
    """What a lone job gets: the fastest device's capacity where known, else the most ever seen."""
    capacities = [device.capacity_bytes_per_s or 0.0 for device in view.platform.devices]
    return max(capacities, default=0.0) or peak or _NOMINAL_BYTES_PER_S


def peak_of(loads: Iterable[DeviceLoad], before: float) -> float:
    """The most that any device has moved, bytes/s."""
    return max([before, *(load.total_bytes_per_s for load in loads)])


def _key(claim: Claim, order: str, now_s: float) -> tuple[bool, float, float, int]:
    needed = _ASKS.get(order)
    if needed is not None and getattr(claim, needed) is None:
        return True, claim.requested_s, claim.requested_s, claim.job_id
    key = ORDERS[order](
        now_s,
        claim.requested_s,
        claim.phase_s or 0.0,
        claim.remaining_s or 0.0,
        claim.io_done_s,
        claim.elapsed_s,
        claim.ideal_done_s or 0.0,
        claim.job_id,
    )
    return False, key, claim.requested_s, claim.job_id
