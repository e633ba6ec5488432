"""What the backend knows of one attempt that runs: what the supervisor said of it."""

from __future__ import annotations

from iodaemon.core.job import JobId
from iodaemon.node.sampler.cgroup_files import read_members
from iodaemon.node.sampler.job_io import Moved
from iodaemon.node.sampler.proc_files import descendants_of, find_state, is_executing
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Message


class LiveJob:
    """One attempt of one job, running when this was made.

    Attributes:
        pid: of its first process.
        holder: of the process that holds it; None: it has a cgroup.
        cgroup: its own; None: there is none.
        is_frozen: as it was last posted.
        is_stopped: its first process was stopped by a signal, its own or somebody's.
        reaped: what its processes moved that were waited for; None: the supervisor has not said.
    """

    def __init__(
        self, key: Key, report: Message, jobs_cgroup: str | None, *, is_adopted: bool = False
    ) -> None:
        self.key = key
        self.pid: int = report["pid"]
        self.holder: int | None = report.get("holder")
        self.cgroup = None if jobs_cgroup is None else f"{jobs_cgroup}/{key}"
        self.is_frozen = self.is_stopped = False
        self.reaped = None if is_adopted else Moved()

    @property
    def job_id(self) -> JobId:
        """The job."""
        return JobId(self.key.job)

    @property
    def attempt(self) -> int:
        """Which start of it."""
        return self.key.attempt

    def pids(self) -> list[int]:
        """The job's processes, parents before children."""
        if self.cgroup is not None:
            return read_members(self.cgroup)
        return [] if self.holder is None else list(descendants_of(self.holder))

    def describe_left(self) -> str:
        """Which processes are left after a kill, and in what state."""
        pids = self.pids()
        stuck = [pid for pid in pids if find_state(pid) == "D"]
        if stuck and is_executing(stuck[0]):
            return (
                f"process {stuck[0]} hangs in execve, where it closes a file, and ends when that "
                "returns; a hung NFS or FUSE server does this"
            )
        if stuck:
            return (
                f"process {stuck[0]} is in an uninterruptible I/O and ends when that returns; "
                "a hung NFS server or disk does this"
            )
        return f"{len(pids)} processes are still ending"


def moved_of(use: Message) -> Moved:
    """What the supervisor says was used, as the sampler counts it."""
    return Moved(
        use["read_bytes"],
        use["written_bytes"],
        use.get("cancelled_bytes", 0),
        use["calls"],
        use.get("logical_bytes", 0),
    )
