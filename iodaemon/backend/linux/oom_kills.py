"""How many processes of the whole machine the kernel killed for want of memory, and when about.

/proc/vmstat oom_kill (Linux 4.13; mm/oom_kill.c) counts kills for the machine's memory and for the
limit of any cgroup, of either version. Whose process it was it does not say: beside an end by a
SIGKILL that nobody here sent it makes want of memory the probable cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, find_count

WITHIN_S: Final = 10.0
"""From the kill to the end of the process, at most: what it had is given back first, about 10 GB/s.
"""
_APART_S: Final = 5.0
"""Between two readings that are kept; one takes 0.05 to 0.3 ms."""
_KEPT: Final = 8
"""Readings: an end that is told half a minute late is placed as well."""


class OomKills:
    """Remembers when the count was what.

    Args:
        read: the count now; None: the kernel does not say.
    """

    def __init__(self, read: Callable[[], int | None]) -> None:
        self._read = read
        self._readings: deque[tuple[float, int]] = deque(maxlen=_KEPT)

    def look(self, at_s: float) -> None:
        """Read the count, unless it was read just now."""
        if self._readings and at_s - self._readings[-1][0] < _APART_S:
            return
        if (count := self._read()) is not None:
            self._readings.append((at_s, count))

    def count(self, ended_s: float) -> int:
        """How many were killed from shortly before this time until now; 0: none, or not known."""
        before = [kills for at_s, kills in self._readings if at_s <= ended_s - WITHIN_S]
        first = [kills for at_s, kills in self._readings if at_s <= ended_s]
        now = self._read()
        if now is None or not first:
            return 0
        return max(0, now - (before[-1] if before else first[0]))


class OomKillFile:
    """The count in /proc/vmstat, through a descriptor that is kept.

    Args:
        root: ``/``, or a directory that looks like it.
    """

    def __init__(self, root: Path) -> None:
        self._file = KeptFile(root / "proc/vmstat")

    def read(self) -> int | None:
        """The count now; None: the kernel does not say."""
        try:
            return parse_oom_kills(self._file.read())
        except (NoData, PermissionError):
            return None

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()


def parse_oom_kills(text: bytes) -> int | None:
    """``oom_kill`` of /proc/vmstat; None where it is not, before Linux 4.13 or cut short."""
    return find_count(text, b"oom_kill")
