"""Why a job that waits is not offered to the rules: it can never start, or not yet."""

from __future__ import annotations

from typing import Final

from iodaemon.core import allotting
from iodaemon.core.job import Job, Reason
from iodaemon.core.platform import Platform
from iodaemon.core.stock import Stock

INFEASIBLE: Final = "Infeasible"
"""The word for a job that nothing here can ever hold."""
OLD_SCRATCH: Final = "OldScratch"
"""The word for a job of which an earlier attempt still holds space."""


def why_never(platform: Platform, stock: Stock, job: Job) -> Reason | None:
    """Why this machine can never hold the job; None: it can."""
    largest = platform.largest_partition
    if job.spec.cpus > largest:
        text = (
            f"asks for {job.spec.cpus} CPUs, the largest socket has {largest}; "
            "cancel it and submit with fewer"
        )
        return Reason(code=INFEASIBLE, text=text)
    request = job.spec.scratch
    if request is None or (request.fallback == "slow" and not stock.tiers):
        return None
    text_of_space = allotting.why_never(stock.tiers, request, any_tier=stock.any_tier)
    return None if text_of_space is None else Reason(code=INFEASIBLE, text=text_of_space)


def why_not_ready(job: Job) -> Reason | None:
    """Why a job that waits may not start before something else has happened; None: it may."""
    if not job.shares:
        return None
    if job.scratch_kept is not None:
        return Reason(code=OLD_SCRATCH, text=job.scratch_kept.text)
    text = "waits until the scratch space of its last attempt has been cleared"
    return Reason(code=OLD_SCRATCH, text=text)
