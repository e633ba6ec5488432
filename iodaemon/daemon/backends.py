"""The two backends the daemon can have, each behind the same small door."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from iodaemon.config import Config
from iodaemon.core import event as ev
from iodaemon.core.backend import Timeline
from iodaemon.core.decision import Start
from iodaemon.core.job import Exit, IoTotals, Job, JobId
from iodaemon.core.platform import Platform, oversubscribe, share_cores
from iodaemon.daemon.outputs import find_old_outputs
from iodaemon.supervisor.protocol import Message

log = logging.getLogger(__name__)

Post = Callable[[ev.Event], None]


class LinuxDoor:
    """This server."""

    def __init__(
        self,
        config: Config,
        platform: Platform,
        timeline: Timeline,
        post: Post,
        launch_of: Callable[[Start], Mapping[str, Any]],
        job_of: Callable[[JobId], Job | None],
        record_of: Callable[[JobId], Job | None],
    ) -> None:
        from iodaemon.node.linux import LinuxNode
        from iodaemon.node.root_side import supervisor_config

        self._state = config.supervisor_state
        self._record_of = record_of
        self.backend = LinuxNode(
            platform=platform,
            timeline=timeline,
            post=post,
            launch_of=launch_of,
            job_of=job_of,
            supervisor=supervisor_config(config),
            state_dir=Path(config.state_dir),
        )
        self.backend.scratch.ends_over = config.scratch_over == "end"

    async def open(self) -> None:
        """Reach or start the supervisor; say once what it has to do without.

        Raises:
            BackendError: it cannot be reached.
        """
        from iodaemon.node.root_side import find_lack

        await self.backend.open()
        hello = self.backend.client.hello
        if lack := find_lack(hello):
            text = f"suspends by {hello['detail']}: {lack.cost}; {lack.remedy}"
            log.warning('event=warned text="%s"', text)

    async def adopt(self, jobs: Iterable[Job], *, same_boot: bool, ledger: str) -> None:
        """Post what became of jobs that were live when the journal was last written."""
        await self.backend.adopt(jobs, same_boot=same_boot, ledger=ledger)

    @property
    def ledger(self) -> str:
        """The identity of the supervisor's records; empty: there are none."""
        return str(self.backend.client.hello.get("ledger", ""))

    async def close(self) -> str:
        """Let go; nothing is left standing still, or the answer says what is, and the cure."""
        return await self.backend.close()

    async def retire(self, before_s: float) -> None:
        """Remove what is left of jobs that ended before this time: output is the supervisor's."""
        outputs, record_of = self.backend.outputs, self._record_of
        for key in await asyncio.to_thread(find_old_outputs, outputs, before_s, record_of):
            self.backend.discard_output(JobId(key.job), key.attempt)

    def describe(self) -> Mapping[str, Any]:
        """What is measured and done, and by which means: for ``iod node``."""
        from iodaemon.node.devices import find_device, unaccounted_devices
        from iodaemon.node.feature import find_sources, words_of, words_of_sources

        client = self.backend.client
        by = "cgroup.procs" if client.jobs_cgroup else "the holder's process tree"
        return {
            "suspend": client.hello["detail"],
            "job_io": f"/proc/PID/io over {by}, reaped children included",
            "devices": "/proc/diskstats",
            **words_of_sources(find_sources(Path("/"), client.jobs_cgroup)),
            "pinning": "sched_setaffinity and set_mempolicy (preferred)",
            "state_dir": f"{self._state} on {find_device(self._state).description}",
            "controls": dict(self.controls()),
            **words_of(client.controls),
            **{name: client.hello.get(name) for name in ("lack", "unit", "protected")},
            "supervisor_pid": client.pid,
            "supervisor_problem": client.problem,
            "unaccounted": list(unaccounted_devices()),
        }

    def controls(self) -> Mapping[str, bool]:
        """What else the kernel may offer for jobs, and whether it does."""
        from iodaemon.node.feature import flags_of

        return flags_of(self.backend.client.controls)

    def pids(self, job_id: JobId) -> list[int]:
        return self.backend.pids(job_id)

    def job_of(self, pid: int) -> JobId | None:
        return self.backend.job_of(pid)

    async def ask_scratch(self, **fields: object) -> Message:
        """What the supervisor's helpers answer (wish ``scratch``)."""
        return await self.backend.client.ask_scratch(**fields)

    @property
    def samples_skipped(self) -> int:
        """Readings that were skipped because the last one was still under way."""
        return self.backend.samples_skipped

    @property
    def problem(self) -> str:
        """Why nothing that is asked of jobs is done now; empty: it is."""
        return self.backend.client.problem

    @property
    def is_protected(self) -> bool:
        """Whether how jobs end is known also if what keeps them is killed."""
        return bool(self.backend.client.hello.get("protected", True))


class SimulatedDoor:
    """A pretended server in wall time: no processes, no root, the same controller."""

    samples_skipped = 0
    problem = ""
    is_protected = True
    ledger = ""

    def __init__(
        self,
        platform: Platform,
        timeline: Timeline,
        post: Post,
        command_of: Callable[[JobId], tuple[str, ...]],
    ) -> None:
        from iodaemon.model.node import SimulatedNode
        from iodaemon.model.profile import parse_profile

        self._timeline = timeline
        self._post = post
        self.backend = SimulatedNode(
            platform, timeline, post, lambda job_id: parse_profile(command_of(job_id))
        )

    async def open(self) -> None:
        pass

    async def adopt(self, jobs: Iterable[Job], **_: object) -> None:
        """A pretended job ends with the daemon that pretended it."""
        for job in jobs:
            self._post(
                ev.JobExited(
                    at_s=self._timeline.now_s,
                    job_id=job.id,
                    attempt=job.attempt,
                    exit=Exit(),
                    io=IoTotals(),
                    note="the simulated node was restarted while it ran",
                )
            )

    async def close(self) -> str:
        return ""

    async def retire(self, _: float) -> None:
        pass

    def describe(self) -> Mapping[str, Any]:
        return dict.fromkeys(("suspend", "job_io", "devices", "pinning"), "simulated")

    def controls(self) -> Mapping[str, bool]:
        return {}

    def pids(self, _: JobId) -> list[int]:
        return []

    def job_of(self, _: int) -> JobId | None:
        return None

    async def ask_scratch(self, **_: object) -> Message:
        return {}


Door = LinuxDoor | SimulatedDoor
"""A backend as the daemon opens and closes it."""


def linux_platform(config: Config) -> Platform:
    """This server's sockets and disks, as configured or detected.

    Raises:
        ConfigError: ``[topology] sockets`` names CPUs that cannot be used.
    """
    from iodaemon.node.devices import leaf_devices
    from iodaemon.node.topology import own_limits, read_topology

    cpus, nodes = own_limits()
    partitions = read_topology(
        Path("/"),
        allowed_cpus=cpus,
        allowed_nodes=nodes,
        sockets=config.topology.sockets,
        slot=config.topology.slot,
    )
    times = config.topology.oversubscribe
    divided = (
        share_cores(partition) if times == "auto" else oversubscribe(partition, times)
        for partition in partitions
    )
    return Platform(partitions=tuple(divided), devices=leaf_devices())


def raise_open_files() -> int:
    """Allow this process as many files as it may have; returns the soft limit it had before.

    Each connection of a client costs one, and each file that is read for it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft
