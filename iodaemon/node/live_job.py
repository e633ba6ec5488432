"""What the backend knows of one attempt that runs: what the supervisor said of it."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from iodaemon.core.job import JobId
from iodaemon.node.sampler.proc_files import descendants_of, find_state, is_executing
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Message

_MOST_CGROUPS: Final = 64
"""Of one job: its own, and those that it made below that."""


class Reaped(NamedTuple):
    """What processes of a job used that the supervisor, or another, has waited for.

    ``written_bytes`` and ``cancelled_bytes`` are as in ``ledger.Use``.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    operations: int = 0
    logical_bytes: int = 0
    cancelled_bytes: int = 0


class LiveJob:
    """One attempt of one job, running when this was made.

    Attributes:
        pid: of its first process.
        holder: of the process that holds it; None: it has a cgroup.
        cgroup: its own; None: there is none.
        is_frozen: as it was last posted.
        is_stopped: its first process was stopped by a signal, its own or somebody's.
        reaped: what its processes used that were waited for; None: the supervisor has not said.
    """

    def __init__(
        self, key: Key, report: Message, jobs_cgroup: str | None, *, is_adopted: bool = False
    ) -> None:
        self.key = key
        self.pid: int = report["pid"]
        self.holder: int | None = report.get("holder")
        self.cgroup = None if jobs_cgroup is None else f"{jobs_cgroup}/{key}"
        self.is_frozen = self.is_stopped = False
        self.reaped = None if is_adopted else Reaped()

    @property
    def job_id(self) -> JobId:
        """The job."""
        return JobId(self.key.job)

    @property
    def attempt(self) -> int:
        """Which start of it."""
        return self.key.attempt

    def take_use(self, use: Message) -> None:
        """Take in what the supervisor says was used."""
        self.reaped = Reaped(
            use["read_bytes"],
            use["written_bytes"],
            use["calls"],
            use.get("logical_bytes", 0),
            use.get("cancelled_bytes", 0),
        )

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


def read_members(cgroup: str) -> list[int]:
    """The processes of a cgroup and of those that the job made below it; none if it is gone."""
    pids: list[int] = []
    directories = [cgroup]
    for _ in range(_MOST_CGROUPS):
        if not directories:
            break
        directory = directories.pop(0)
        try:
            with open(f"{directory}/cgroup.procs", "rb") as file:
                pids += (int(word) for word in file.read().split() if word != b"0")
            with open(f"{directory}/cgroup.stat", "rb") as file:
                has_others = b"nr_descendants 0\n" not in file.read()
            if has_others:
                with os.scandir(directory) as entries:
                    directories += [entry.path for entry in entries if entry.is_dir()]
        except OSError:  # it is gone
            continue
    return pids
