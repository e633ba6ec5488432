"""Quantities as reasons tell them."""

from __future__ import annotations


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
