"""What the sampler and the daemon say to each other, on a stream socket.

The daemon says one JSON object a line: first ``devices`` (names of disks) and ``cpus`` (of each
partition), then one for each sweep:

====== =============================================================================
add    jobs that are read from now on: ``[job, attempt, holder, silent]``; with
       ``holder``, a pid, it has no cgroup; ``silent``: a process of it that did not
       answer, which is not read until it does; null: none
remove jobs that are read no more
read   jobs that are read whether they have run or not: what was waited for of them is
       another total than before
====== =============================================================================

The answer to a sweep is ``HEAD`` with the counts of what follows: ``JOB`` and ``MOVED`` rows of
jobs for which they are others than before, a ``DISK`` row for each disk, an ``IDLE`` for each
partition, ``NODE``, and JSON (what changes seldom): ``files``, pairs of a job and the mounts of its
open files (lines of mountinfo; null: not known), and ``group`` (``NodeCounters.refaults_of``).
Where ``HEAD`` begins with ``SILENT``, job and process follow as ``SILENCE``: the sampler ends,
since that process does not answer.
"""

from __future__ import annotations

import math
from struct import Struct, error
from typing import Final

SAMPLE, SILENT = 1, 2
HEAD: Final = Struct("<6I")
"""``SAMPLE`` or ``SILENT``, jobs, moved, disks, idle, bytes of JSON."""
JOB: Final = Struct("<Qq5Q2dQ2dQ")
"""Job, process that does not answer (-1: all do), ``Moved``, CPU and user time, s, resident memory,
stall times of I/O and memory, s, room of the output. ``NO_COUNT`` and NaN: not known."""
MOVED: Final = Struct("<QIIQQ")
"""Job, major and minor number of a device, bytes read and written there."""
DISK: Final = Struct("<I17Q")
"""Place in ``devices``, and the fields of its line in /proc/diskstats."""
IDLE: Final = Struct("<d")
NODE: Final = Struct("<2d5Q")
"""Stall times of I/O and memory; dirty, writeback, available, all, and refaulted bytes."""
SILENCE: Final = Struct("<Qq")
NO_COUNT: Final = (1 << 64) - 1
LARGEST: Final = 1 << 26
"""Bytes of an answer, at most: rows of 100,000 jobs with as many devices each as are common."""


def count(value: int | None) -> int:
    """A count as it is in a row; what is none is not known."""
    return NO_COUNT if value is None or not 0 <= value < NO_COUNT else value


def pack_known(kind: Struct, *fields: int) -> list[bytes]:
    """The row; none where a count cannot be true."""
    try:
        return [kind.pack(*fields)]
    except error:
        return []


def number(value: float | None) -> float:
    """A time as it is in a row."""
    return math.nan if value is None else value


def known_count(value: int) -> int | None:
    """The reverse of ``count``."""
    return None if value == NO_COUNT else value


def known_number(value: float) -> float | None:
    """The reverse of ``number``."""
    return None if math.isnan(value) else value
