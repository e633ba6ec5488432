"""Whether the counters can be read by which rules tell progress from thrashing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from iodaemon.doctor.finding import Finding, lacking, ok
from iodaemon.node.feature import (
    AVAILABLE_MEMORY,
    IDLE_TIME,
    LOGICAL_BYTES,
    REFAULTS,
    USER_CPU,
    ProgressSource,
    find_sources,
)

_CHECKED = REFAULTS, LOGICAL_BYTES, USER_CPU, IDLE_TIME, AVAILABLE_MEMORY
"""The stall times have a line of their own (``device.judge_pressure``)."""


def probe_progress(cgroup_home: str | None) -> frozenset[ProgressSource]:
    """Read each once; the cgroup is one in whose place jobs could have theirs."""
    return find_sources(Path("/"), cgroup_home)


def judge_progress(found: frozenset[ProgressSource]) -> Iterator[Finding]:
    """One finding a counter."""
    for source in _CHECKED:
        if source in found:
            yield ok(source.name, source.gives)
        else:
            yield lacking(source.name, "not counted", cost=source.cost, remedy=source.remedy)
