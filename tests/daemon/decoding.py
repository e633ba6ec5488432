"""A submission decoded in one go, as ``POST /v1/jobs`` does between other requests."""

from __future__ import annotations

from collections.abc import Sequence

from iodaemon.core.platform import Platform
from iodaemon.core.storage import Tier
from iodaemon.daemon.http.submission import Submission, decode_in_steps


def decode_submission(body: bytes, platform: Platform, tiers: Sequence[Tier] = ()) -> Submission:
    steps = decode_in_steps(body, platform, tiers)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
