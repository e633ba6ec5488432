"""Whether sampling keeps pace with the timeslice, and what to say when it does not."""

from __future__ import annotations

import logging
import math
from typing import Any, Final

from iodaemon.daemon.tally import Durations

log = logging.getLogger(__name__)

SLOW_READINGS: Final = 3
"""So many readings in a row, each longer than a timeslice: no hiccup of a disk or of the CPU."""


class Pace:
    """Holds each reading's duration against the timeslice.

    A slow one is nobody's fault but the timeslice's: instants are skipped meanwhile, never queued
    up, and the regulation goes on with what it gets.

    Attributes:
        durations: from asking for a sample to having it.
        timeslice_s: that in force at the last reading's end; None before it.
        last_s: how long the last reading took; None before its end.
        problem: one line for people while sampling is too slow; else empty. It is logged once.
    """

    def __init__(self, durations: Durations) -> None:
        self.durations = durations
        self.timeslice_s: float | None = None
        self.last_s: float | None = None
        self.problem = ""
        self._slow = 0
        self._longest_s = 0.0
        self._warned = False

    def begin(self) -> None:
        """A reading is asked for; one that is still under way goes on."""
        self.durations.begin()

    def end(self, timeslice_s: float) -> None:
        """A reading is there; one is asked for every ``timeslice_s``."""
        took_s = self.durations.end()
        if took_s is None:
            return
        self.timeslice_s, self.last_s = timeslice_s, took_s
        if took_s <= timeslice_s:
            self._slow, self._longest_s, self.problem = 0, 0.0, ""
            return
        self._slow += 1
        self._longest_s = max(self._longest_s, took_s)
        if self._slow < SLOW_READINGS:
            return
        self.problem = (
            f"reading the counters takes {self._longest_s:.2g} s, longer than the timeslice of "
            f'{timeslice_s:g} s; write timeslice = "{math.ceil(2.0 * self._longest_s)} s" under '
            "[regulation]"
        )
        if not self._warned:
            self._warned = True
            log.warning('event=sampling_too_slow text="%s"', self.problem)

    def report(self, skipped: int) -> dict[str, Any]:
        """For ``iod node``."""
        return {
            "timeslice_s": self.timeslice_s,
            "last_s": self.last_s,
            "skipped": skipped,
            "problem": self.problem,
        }
