"""A submission decoded in one go, as ``POST /v1/jobs`` does between other requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iodaemon.core.platform import Platform
from iodaemon.core.storage import Tier
from iodaemon.daemon.http.submission import Submission, decode_in_steps


def decode_submission(
    body: bytes, platform: Platform, tiers: Sequence[Tier] = (), **options: Any
) -> Submission:
    return decode_counted(body, platform, tiers, **options)[0]


def decode_counted(
    body: bytes, platform: Platform, tiers: Sequence[Tier] = (), **options: Any
) -> tuple[Submission, int]:
    """The submission, and in how many steps it was decoded."""
    steps, count = decode_in_steps(body, platform, tiers, **options), 1
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count
