"""Whether a process does anything, by what the kernel counts of it.

A heartbeat that the other side need not send: it works between all versions of keeper and shim,
needs no disk, no memory in common and no further wake-ups. Standard library only.
"""

from __future__ import annotations

import math
import os
import re
import time
from typing import Final

_SWITCHES: Final = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
_STATUS_BYTES: Final = 16384
"""More than /proc/PID/status has, with a line of CPUs for a machine of 8,192."""


class Pulse:
    """Of one process, which need not be alive any more.

    /proc/PID/status tells how often its first thread has been switched from a CPU. It answers
    whatever the process waits for. The open file stands for this very process, whoever gets its
    number later. A process that computes without end counts as alive, as it is switched as well.
    """

    def __init__(self, pid: int) -> None:
        """Begin to count now."""
        try:
            self._fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self._beats = self.count()
        self._since_s = time.monotonic()

    def is_silent_for(self, limit_s: float) -> bool:
        """Look now: True when it has been seen to do nothing for so long; once for each silence."""
        beats, now_s = self.count(), time.monotonic()
        if beats is None or beats != self._beats:
            self._beats, self._since_s = beats, now_s
        if now_s - self._since_s < limit_s:
            return False
        self._since_s = math.inf
        return True

    def count(self) -> int | None:
        """How often it has been switched so far; None: it is gone, or hidden."""
        try:
            text = os.pread(self._fd, _STATUS_BYTES, 0)
        except OSError:
            return None
        return sum(map(int, _SWITCHES.findall(text)))

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
