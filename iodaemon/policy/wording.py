"""Quantities as reasons tell them."""

from __future__ import annotations

from collections.abc import Callable

from iodaemon.policy.intensity import ROUNDING, Scale


def told_rate(rate_bytes_per_s: float) -> str:
    """A rate: ``12.5 MB/s``."""
    return f"{rate_bytes_per_s / 1e6:.1f} MB/s"


def told_span(seconds: float) -> str:
    """How long: ``90 s``, ``15 min``, ``2.5 h``."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


def told_passed(count: int) -> str:
    """Whom a start out of turn passes: ``passes 1 earlier job``."""
    return f"passes {count} earlier job{'' if count == 1 else 's'}"


def told_cpus(count: int) -> str:
    """So many slots: ``1 CPU``."""
    return f"{count} CPU{'' if count == 1 else 's'}"


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
