"""What the supervisor is told to run: the job's spec, its environment, its CPUs, its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from iodaemon.core.decision import Start
from iodaemon.core.job import Job
from iodaemon.core.platform import Partition, Platform
from iodaemon.core.storage import Tier

Fence = Literal["socket", "cpus", "none"]
_MOST_PROCESSES: Final = 1 << 22
"""PID_MAX_LIMIT (include/linux/threads.h); a supervisor takes no larger number."""


def launch_record(
    job: Job,
    start: Start,
    platform: Platform,
    environment: Mapping[str, str],
    *,
    api_socket: str,
    open_files: int,
    fence: Fence = "socket",
    processes: int | None = None,
    tiers: Sequence[Tier] = (),
) -> dict[str, Any]:
    """The launch of ``supervisor.launch``, and ``scratch`` of a job with space (``node.linux``).

    Args:
        environment: as submitted; ``IOD_*`` is added.
        api_socket: so that ``iod`` inside the job finds its daemon.
        open_files: soft limit of open files, as the daemon found it.
        fence: what the job stays in, where its cgroup can be fenced.
        processes: how many it may have at once, where its cgroup can be limited.
        tiers: of the node's storage, with the disks that were found at the start.
    """
    partition = platform.partition(start.partition)
    # Those of the slots that it holds; of a job that shares cores all of its socket.
    held = (slot for slot in partition.slots if slot.id in start.slots)
    cpus = sorted({cpu for slot in held for cpu in slot.cpus})
    return {
        "command": list(job.spec.command),
        "directory": job.spec.cwd,
        "environment": {**environment, **_told(job, start, cpus, api_socket)},
        "uid": job.uid,
        "umask": job.spec.umask,
        "affinity": cpus,
        "memory_nodes": list(partition.memory_nodes),
        "limits": {
            **fence_of(partition, fence),
            "memory_bytes": job.spec.memory_bytes,
            "processes": None if processes is None else min(processes, _MOST_PROCESSES),
        },
        "stdout": _with_id(job.spec.stdout, job),
        "stderr": _with_id(job.spec.stderr, job),
        "open_files": open_files,
        **_storage(job, start, tiers),
    }


def _told(job: Job, start: Start, cpus: Sequence[int], api_socket: str) -> dict[str, str]:
    """What its command finds in its environment.

    A job that shares cores finds all CPUs of its socket in the list and is told of one: so many
    threads are its part of them. Where it runs, and what it is to read and write, is told also
    where it got no space of its own.
    """
    told = {
        "IOD_JOB_ID": str(job.id),
        "IOD_JOB_NAME": job.spec.name,
        "IOD_ATTEMPT": str(start.attempt),
        "IOD_CPU_SOCKET": str(start.partition),
        "IOD_CPUS": str(job.spec.cpus),
        "IOD_CPU_LIST": ",".join(map(str, cpus)),
        "IOD_API_SOCKET": api_socket,
    }
    if (request := job.spec.scratch) is not None:
        storage = (
            ("IOD_TIER", job.tier),
            ("IOD_INPUT", request.input_path),
            ("IOD_OUTPUT", request.output_path),
        )
        told |= {name: value for name, value in storage if value}
    return told


def _storage(job: Job, start: Start, tiers: Sequence[Tier]) -> dict[str, Any]:
    """Its space; what is copied into it before its command, and out of it afterwards."""
    request = job.spec.scratch
    if request is None or not start.shares:
        return {}
    numbers = {disk.id: disk.filesystem for tier in tiers for disk in tier.disks}
    return {
        "scratch": {
            "input": request.input_path,
            "output": request.output_path,
            "on": request.output_on,
            "filesystems": {
                share.disk: int(numbers[share.disk])
                for share in start.shares
                if numbers.get(share.disk, "").isdigit()
            },
        }
    }


def fence_of(partition: Partition, fence: Fence) -> dict[str, list[int]]:
    """What a job there stays in: all of its socket, of which it gets some CPUs to run on."""
    if fence == "none":
        return {}
    return {
        "cpus": list(partition.cpus),
        "memory_nodes": list(partition.memory_nodes) if fence == "socket" else [],
    }


def _with_id(path: str | None, job: Job) -> str | None:
    return None if path is None else path.replace("%j", str(job.id))
