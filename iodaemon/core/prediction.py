"""What is known of a job's I/O before it runs, and what it then turns out to be."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Source = Literal["measured", "declared", "learned", "imported", "unknown"]
"""Where it is known from. ``declared``: the job's submitter said it. ``learned``: earlier runs of
the same did it here. ``imported``: they did it elsewhere, by their Darshan logs."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job is expected to move, as a mean over the time it runs.

    Attributes:
        rate_bytes_per_s: read plus written. It is the job's I/O intensity as EquilibrIO defines
            it: the part of its time in I/O, times its bandwidth while in I/O.
        confidence: 0 (a guess) to 1 (measured in the last slice).
        source: where it is known from.
        io_share: the part of its run time in which it does I/O. None: not known.
        operations_per_s: read and write requests. None: not known.
        by: what earlier runs it is known by, for example ``name:solver``. Empty: none.
        runs: how many of them.
        run_s: how long they took, typically; no bound. None: not known.
    """

    rate_bytes_per_s: float
    confidence: float
    source: Source
    io_share: float | None = None
    operations_per_s: float | None = None
    by: str = ""
    runs: int = 0
    run_s: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is; what is not known is not zero."""
        return self.source != "unknown"

    @property
    def burst_bytes_per_s(self) -> float:
        """What it moves while it does I/O; the mean where its share is not known."""
        return self.rate_bytes_per_s / self.io_share if self.io_share else self.rate_bytes_per_s


UNKNOWN: Final = Prediction(rate_bytes_per_s=0.0, confidence=0.0, source="unknown")
