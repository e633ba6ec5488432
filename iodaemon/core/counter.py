"""What counters and gauges say, where that can be believed.

A counter may be missing, go backwards, or jump: a container hides it, a device is replaced, a
kernel has a bug. What cannot be true is not known, and whoever asks does without it.
"""

from __future__ import annotations

from typing import Final

from iodaemon.core.sample import NodeCounters

MOST_BYTES_PER_S: Final = 1e13
"""No machine moves more: 256 cores that copy from their caches move half of it."""
MOST_REQUESTS_PER_S: Final = 1e9
"""No device completes more."""
MOST_CPUS: Final = 8192
"""No Linux has more (CONFIG_NR_CPUS)."""


def grown(before: float | None, now: float | None, most: float) -> float | None:
    """By how much a counter grew.

    Returns:
        None where it is missing, went backwards, or grew by more than ``most``.
    """
    if before is None or now is None:
        return None
    growth = float(now - before)
    return growth if 0.0 <= growth <= most else None


def known_memory(node: NodeCounters) -> tuple[float, float] | None:
    """Memory that can be had, and all that there is; None: not known, or more of it than all."""
    available, memory = node.available_bytes, node.memory_bytes
    if available is None or memory is None or not 0 <= available <= memory:
        return None
    return float(available), float(memory)
