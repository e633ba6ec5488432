"""What a job is charged: the time it would have taken on the slowest tier, wherever it ran.

Who was put on a slow tier is not charged for that, and who was put on a fast one pays for no less
than others. The time is reckoned from what was measured:

1. Of the time that it ran, what was spent on staging is taken off: what was copied, over the
   tier's staging rate.
2. What it read and wrote itself took its time on the tier that it had, and takes it on the slow
   one instead. What is copied out is among it: the job wrote it once, there as here.
3. What was copied in is read from the slow tier where it is, also where the job did not read it
   from its disk but found it in memory, just copied: the kernel counts no such reading.

What was staged, and what that read and wrote, is what the kernel counted of the steps that copied
(where that is not known: what was asked for). The bandwidths are those of whole tiers: what
a job has of them alone. Rule 3 takes it that a job reads all of its input, and reads it once.

Source: the times of the rule ``storage_aware`` (equation 2 of its sheet), solved for the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence

from iodaemon.core.job import IoTotals, Job
from iodaemon.core.scratch import ScratchRequest, Staged
from iodaemon.core.tier import Tier


def slow_tier_s(job: Job, tiers: Sequence[Tier]) -> float:
    """How long the job would have run on the slowest tier, s; as long as it ran where it did.

    Args:
        job: its run has ended.
        tiers: fastest first.
    """
    had = next((tier for tier in tiers if tier.name == job.tier), None)
    request = job.spec.scratch
    if had is None or request is None or had.name == tiers[-1].name:
        return job.run_s
    slow = tiers[-1]
    staged = job.staged or _as_asked(request)
    staged_s = (staged.came_bytes + staged.went_bytes) / had.staging_bytes_per_s
    moved, unread = _own_bytes(job.io, staged, request)
    longer = 1.0 / slow.bandwidth_bytes_per_s - 1.0 / had.bandwidth_bytes_per_s
    in_place_s = unread / slow.bandwidth_bytes_per_s
    return max(0.0, job.run_s - staged_s) + in_place_s + moved * max(0.0, longer)


def _own_bytes(io: IoTotals, staged: Staged, request: ScratchRequest) -> tuple[int, int]:
    """What the job itself moved on its tier, and what of its input it did not read from there."""
    total = io.total_bytes
    if total is None:
        return request.data_bytes + staged.went_bytes, staged.came_bytes
    read = max(0, (io.read_bytes or 0) - staged.read_bytes)
    return max(0, total - staged.moved_bytes), max(0, staged.came_bytes - read)


def _as_asked(request: ScratchRequest) -> Staged:
    """As if all had been copied that the job named: read from one tier, written to the other."""
    came = request.input_bytes if request.input_path is not None else 0
    went = request.output_bytes if request.output_path is not None else 0
    return Staged(came_bytes=came, went_bytes=went, moved_bytes=2 * (came + went))
