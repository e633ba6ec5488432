"""How many jobs may run at all before anything is known of them: from the number of cores upwards.

1. It begins with as many as there are cores (times the operator's ``oversubscribe``), or with as
   many of the next kind as were seen to do no harm.
2. It grows while all of them run, others wait, and cores idle: no further than what the jobs that
   run use of the cores would fill all of them with.
3. Twofold while next to nothing is read. By half while the memory would take long to fill: one more
   can do no harm soon. Else by one, once what is kept in memory is in, if the working set of
   another job is expected to fit as well.
4. Above the number of cores a job needs free memory: a fifth of it stays free. Where idle time or
   memory is not known no job starts there.

Source: Jacobson, "Congestion avoidance and control", SIGCOMM 1988 (slow start); Denning, "Working
sets past and present", IEEE TSE 1980 (a program is started only if its working set fits).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from iodaemon.core.job import Job
from iodaemon.core.platform import Platform
from iodaemon.core.sample import MOST_CPUS, NodeCounters, grown, known_memory
from iodaemon.core.view import View

BUSY: Final = 0.95
"""Cores that compute for this part of the time are busy."""
KEPT_FREE: Final = 0.2
"""Part of the memory that stays free when jobs start above the number of cores."""


def count_cores(platform: Platform) -> int:
    """Cores, however often each is handed out."""
    return sum(
        len({slot.cpus for slot in part.slots[: part.cores]}) for part in platform.partitions
    )


def idle_cores(before: NodeCounters, now: NodeCounters, interval_s: float) -> float | None:
    """Cores that had nothing to run in the slice, in the mean; None: not counted."""
    if not now.idle_s or before.idle_s.keys() != now.idle_s.keys():
        return None
    total_s = 0.0
    for part, idle_s in now.idle_s.items():
        growth_s = grown(before.idle_s[part], idle_s, MOST_CPUS * interval_s)
        if growth_s is None:
            return None
        total_s += growth_s
    return total_s / interval_s


def most_for_idle(used: int, cores: int, idle: float) -> int:
    """How many jobs like those that run fill all cores; ``used`` where these are busy."""
    busy = max(0.0, cores - idle)
    if busy >= BUSY * cores:
        return used
    return min(2 * used, max(used + 1, math.floor(used * cores / max(busy, 0.5))))


def working_sets(view: View, jobs: Iterable[Job]) -> tuple[float, float]:
    """What these jobs keep in memory together, and what the largest of them does, bytes.

    That is what they hold, or what they have read: whether they will read it again is not known.
    """
    most = float(view.node.memory_bytes or math.inf)
    total = largest = 0.0
    for job in jobs:
        counters = view.counters(job.id)
        if counters is None:
            continue
        kept = min(most, float(max(counters.read_bytes or 0, counters.resident_bytes or 0)))
        total += kept
        largest = max(largest, kept)
    return total, largest


def fits(view: View, jobs: Iterable[Job], more: int) -> bool:
    """Whether the working sets of so many more are expected to fit in memory beside these jobs'.

    Each is taken to be as large as the largest of these. Where nothing is known it fits.
    """
    memory = known_memory(view.node)
    if memory is None:
        return True
    total, largest = working_sets(view, jobs)
    held = (view.counters(job.id) for job in view.live)
    resident = sum(float(each.resident_bytes or 0) for each in held if each is not None)
    return total + more * largest <= memory[0] + resident


def memory_left(view: View) -> tuple[float | None, float]:
    """What jobs above the number of cores may take, and what an unknown one is taken to, bytes.

    What those that run are expected to need and do not have yet is taken. None: it is not known.
    """
    memory = known_memory(view.node)
    if memory is None:
        return None, 0.0
    growth = largest = 0.0
    for job in view.live:
        counters = view.counters(job.id)
        resident = 0.0 if counters is None else float(counters.resident_bytes or 0)
        expected = view.footprint_bytes(job.id)
        largest = max(largest, resident)
        growth += 0.0 if expected is None else max(0.0, expected - resident)
    return memory[0] - growth - KEPT_FREE * memory[1], largest
