"""One start of a job as the backend knows it, from the decision to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from iodaemon.core.job import Job, JobId, Share
from iodaemon.node.sampler.proc_files import (
    find_state,
    is_executing,
    is_frozen,
    read_members,
)
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Message
from iodaemon.supervisor.reap import children_of, tree_of

Launch = Mapping[str, Any]
_MOST_LOOKS: Final = 1000
"""Each takes 26 us."""


class Attempt:
    """One start of a job.

    Attributes:
        launch: what was prepared. None if it runs or was adopted.
        may_run: whether its start is durable.
        shares: its space.
        used: the use that the supervisor reported before it reported that the job runs.
        wants_still: whether it is to stand still.
        told: the last signal that it is to get. None: no signal.
        caps: the caps that it is to have (``io.max``).
        adopted: the job as the journal had it, until the first report of the supervisor.
        runs: whether the supervisor reported that it runs.
        cgroup: its own cgroup. None without cgroups; then ``holder`` is the process that holds it.
        is_frozen: what was last posted. None for an adopted attempt of which nothing was.
    """

    def __init__(
        self, key: Key, shares: tuple[Share, ...] = (), adopted: Job | None = None
    ) -> None:
        self.key = key
        self.launch: Launch | None = None
        self.may_run = False
        self.shares = shares
        self.used: Message | None = None
        self.wants_still = False
        self.told: int | None = None
        self.caps: dict[str, str] = {}
        self.adopted = adopted
        self.runs = False
        self.cgroup: str | None = None
        self.holder: int | None = None
        self.is_frozen: bool | None = False if adopted is None else None

    @property
    def job_id(self) -> JobId:
        return JobId(self.key.job)

    def begin(self, report: Message, jobs_cgroup: str | None) -> None:
        """Take in the first report that it runs; its cgroup is a child of ``jobs_cgroup``."""
        self.runs, self.launch = True, None
        self.cgroup = None if jobs_cgroup is None else f"{jobs_cgroup}/{self.key}"
        self.holder = report.get("holder") if self.cgroup is None else None

    def pids(self) -> list[int]:
        """Its processes, parents before children."""
        if self.cgroup is not None:
            return read_members(self.cgroup)
        return [] if self.holder is None else tree_of(children_of(self.holder))

    def describe_stop(self) -> str:
        """Say what somebody else stopped or froze, of its first ``_MOST_LOOKS`` processes."""
        if self.wants_still or not self.runs:
            return ""
        if self.cgroup is not None and is_frozen(self.cgroup):
            return "its cgroup was frozen, not by iodaemon"
        stopped = next((pid for pid in self.pids()[:_MOST_LOOKS] if find_state(pid) == "T"), None)
        return "" if stopped is None else f"its process {stopped} was stopped by a signal"

    def describe_left(self) -> str:
        """Say which processes are left after a kill, and in what state."""
        pids = self.pids()
        stuck = next((pid for pid in pids if find_state(pid) == "D"), None)
        if stuck is None:
            return f"{len(pids)} processes are still ending"
        if is_executing(stuck):
            return (
                f"process {stuck} hangs in execve, where it closes a file, and ends when that "
                "returns; a hung NFS or FUSE server does this"
            )
        return (
            f"process {stuck} is in an uninterruptible I/O and ends when that returns; a hung NFS "
            "server or disk does this"
        )
