"""Draining: nothing starts because somebody wants the node empty; that is no error."""

from __future__ import annotations

from typing import Final

import msgspec

from iodaemon.core.condition import drained
from iodaemon.core.job import Reason

DRAIN: Final = "Drain"
"""The word for a job that waits because the node is drained."""


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing starts; what is submitted waits, what runs goes on and is regulated as before.

    Attributes:
        since_s: when it began.
        by: who wanted it; of several the last one.
        reason: what for, in their words; empty: not said.
    """

    since_s: float
    by: str
    reason: str = ""

    @property
    def why(self) -> Reason:
        """Why a job waits."""
        return Reason(code=DRAIN, text=drained(self.by, self.reason))
