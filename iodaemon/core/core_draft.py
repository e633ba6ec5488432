"""Which slots a job may take where jobs share cores: what a draft asks for each job that it places.

A job that asked for CPUs has as many cores that no other such job has. All others of a socket share
its cores, the taken ones too. Together they are as many as there are cores, and above that as many
as regulation lets share them, if there is memory for them.
"""

from __future__ import annotations

from typing import Final, Protocol

from iodaemon.core.decision import StartLimit
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.limits import needed_bytes
from iodaemon.core.platform import PartitionId, Platform
from iodaemon.core.words import told_bytes

NO_SLOTS: Final = "Slots"
"""The code of a placement rule's reason where no socket has a free slot for the job."""
NO_CORES: Final = "Cores"
"""The code of the reason of a job for which there are slots, but not what it needs with them: cores
of its own, or memory beside those with which it would share them."""


class CoresView(Protocol):
    """What this needs of a view."""

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        ...

    @property
    def start_limit(self) -> StartLimit | None:
        """What is left of what regulation said of starts; None: no limit."""
        ...

    def cores_free(self, partition_id: PartitionId) -> int:
        """Cores of the partition that no job has for its own."""
        ...

    def footprint_bytes(self, job_id: JobId) -> float | None:
        """Memory that the job needs; None: unknown."""
        ...


class CoreDraft:
    """Cores and memory in one decision, less what was taken in it.

    Args:
        view: the state.
    """

    def __init__(self, view: CoresView) -> None:
        self._view = view
        self._limit = view.start_limit
        self._left_bytes = None if self._limit is None else self._limit.memory_bytes
        self._taken: dict[PartitionId, int] = {}

    def slots_for(self, job: Job, partition_id: PartitionId, free: int) -> int:
        """How many of the partition's free slots the job may take.

        Args:
            job: which.
            partition_id: there.
            free: slots that may be taken, by whomever.
        """
        if not job.spec.shares_cores and self._is_shared(partition_id):
            taken = self._taken.get(partition_id, 0)
            free = min(free, self._view.cores_free(partition_id) - taken)
        above = 0 if self._limit is None else self._limit.above_cores.get(partition_id, 0)
        if above and self._lacks_memory(job):
            return min(free, max(0, free - above))
        return free

    def take(self, job: Job, partition_id: PartitionId) -> None:
        """The job starts there."""
        if not job.spec.shares_cores:
            self._taken[partition_id] = self._taken.get(partition_id, 0) + job.spec.cpus
        if self._left_bytes is not None:
            self._left_bytes -= self._needed_bytes(job)

    def told(self, job: Job, most: int) -> Reason | None:
        """Why it finds no room, where that has to do with sharing; None: it has not.

        Args:
            job: which.
            most: slots of one partition that another job might take.
        """
        cpus = job.spec.cpus
        if most >= cpus and not job.spec.shares_cores and not self._lacks_memory(job):
            own = "1 core" if cpus == 1 else f"{cpus} cores of one socket"
            return Reason(code=NO_CORES, text=f"needs {own} for its own; others have taken them")
        if most >= cpus:
            needed, left = told_bytes(int(self._needed_bytes(job))), self._left_bytes or 0.0
            text = f"{self._told_cores()}; to share them it needs {needed} of memory, and "
            return Reason(code=NO_CORES, text=f"{text}{told_bytes(max(0, int(left)))} is left")
        if not job.spec.shares_cores:
            return None
        said = "" if self._limit is None else self._limit.why.text
        why = f": {said}" if said else ""
        text = f"{self._told_cores()}; regulation lets no more jobs share them now{why}"
        return Reason(code=NO_SLOTS, text=text)

    def _told_cores(self) -> str:
        partitions = self._view.platform.partitions
        cores = sum(partition.size for partition in partitions)
        where = "the socket" if len(partitions) == 1 else f"all {len(partitions)} sockets"
        if cores == 1:
            return f"the only core of {where} is busy or taken"
        return f"all {cores} cores of {where} are busy or taken"

    def _is_shared(self, partition_id: PartitionId) -> bool:
        return self._view.platform.partition(partition_id).cores is not None

    def _needed_bytes(self, job: Job) -> float:
        assert self._limit is not None
        return needed_bytes(self._limit, self._view.footprint_bytes(job.id))

    def _lacks_memory(self, job: Job) -> bool:
        if self._left_bytes is None:
            return False
        return self._needed_bytes(job) > self._left_bytes
