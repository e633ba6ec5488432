"""Even I/O: a job goes where the least I/O is expected.

1. Only partitions with enough free slots are asked; without one the job waits.
2. Of these, the one whose live jobs are expected to move the fewest bytes/s together, each as a
   mean over its whole run: a job stays where it is put, and one that computes just now will do
   its I/O yet. A job whose I/O is unknown adds nothing: nothing is known against its partition.
3. Between equals a heavy job prefers a partition with a device attached to it. Heavy is a job
   with a known rate above the mean known rate of the live jobs.
4. Then the most free slots, then the lowest number.

Needs: nothing; hints and measurements make it better, near devices are used where known.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from iodaemon.core.job import Job, Prediction, Reason
from iodaemon.core.platform import Partition, PartitionId
from iodaemon.core.view import NotNow, PlacementView


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Least expected I/O first; it has no parameters."""

    def choose(self, view: PlacementView, job: Job) -> PartitionId | NotNow:
        """The partition with room for the job that has the least to do, or why none now."""
        partitions = view.platform.partitions
        fitting = [p for p in partitions if view.slots_free(p.id) >= job.spec.cpus]
        if not fitting:
            most = max((view.slots_free(p.id) for p in partitions), default=0)
            return NotNow(_no_room(job.spec.cpus, most))
        if len(fitting) == 1:
            return fitting[0].id
        placed = [(other.partition, view.expected(other.id)) for other in view.live]
        load = dict.fromkeys((p.id for p in partitions), 0.0)
        for partition_id, prediction in placed:
            if partition_id in load:
                load[partition_id] += prediction.rate_bytes_per_s
        heavy = _is_heavy(view.expected(job.id), (prediction for _, prediction in placed))

        def rank(partition: Partition) -> tuple[float, bool, int, PartitionId]:
            is_far = heavy and not partition.near_devices
            return (load[partition.id], is_far, -view.slots_free(partition.id), partition.id)

        return min(fitting, key=rank).id


def _no_room(needed: int, most_free: int) -> Reason:
    slots = "1 free CPU" if needed == 1 else f"{needed} free CPUs on one socket"
    return Reason(code="Slots", text=f"needs {slots}; most free now: {most_free}")


def _is_heavy(prediction: Prediction, others: Iterable[Prediction]) -> bool:
    """True when the job is known to move more than the mean of the jobs whose rate is known."""
    known = [other.rate_bytes_per_s for other in others if other.is_known]
    mean = sum(known) / len(known) if known else 0.0
    return prediction.is_known and prediction.rate_bytes_per_s > mean
