"""Node and policy in force, as the API shows them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import psutil

from iodaemon.config import PolicyFile, rule_tables
from iodaemon.core.explain import text_of
from iodaemon.core.job import DiskId
from iodaemon.core.platform import Partition, Platform
from iodaemon.core.rule import Mode
from iodaemon.core.rule_error import RuleFault
from iodaemon.core.state import State
from iodaemon.core.storage import Tier
from iodaemon.daemon.account import user_name
from iodaemon.daemon.calibrating import shown
from iodaemon.daemon.http.record import condition, pick
from iodaemon.registry import rule_name
from iodaemon.systemd import is_unit

_STOP_USER_UNIT: Final = "systemctl --user stop iodaemon"


def node_report(
    state: State,
    backend: str,
    means: Mapping[str, Any],
    sampling: Mapping[str, Any],
    measured: Sequence[Mapping[str, Any]] = (),
    *,
    calibration_problem: str = "",
    faults: Mapping[str, RuleFault] = MappingProxyType({}),
    is_system: bool = False,
    mode: Mode = Mode.ON,
) -> dict[str, Any]:
    """Sockets, slots, devices, the host, and what is measured how.

    Args:
        backend: its name.
        means: what the backend says of itself.
        sampling: whether it keeps pace with the timeslice.
        measured: what is used of each disk's calibration.
        calibration_problem: why nothing of what is kept could be read; empty: it could.
        is_system: the daemon is the service of the system.
    """
    return {
        "backend": backend,
        "stopped_by": _stop_command(is_system=is_system),
        "condition": condition(state, mode),
        "draining": state.drain is not None,
        "limits": [msgspec.to_builtins(limit) for limit in state.limits],
        **({} if state.drain is None else {"drain": msgspec.to_builtins(state.drain)}),
        "sockets": [_socket(state, partition) for partition in state.platform.partitions],
        "devices": [
            {
                **shown(device),
                "load": msgspec.to_builtins(state.meter.devices.get(device.id)),
            }
            for device in state.platform.devices
        ],
        **({"calibration": list(measured)} if measured else {}),
        **({"calibration_problem": calibration_problem} if calibration_problem else {}),
        **({"set_aside": _faults(faults)} if faults else {}),
        **_storage(state),
        "host": _host(),
        "measured": dict(means),
        "sampling": dict(sampling),
    }


def _host() -> dict[str, Any]:
    """Load, memory, swap and uptime of the whole machine, in base units."""
    memory = psutil.virtual_memory()
    swap = psutil.swap_memory()
    return {
        "load_average": list(os.getloadavg()),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "swap_bytes": swap.total,
        "swap_used_bytes": swap.used,
        "boot_s": psutil.boot_time(),
    }


def _stop_command(*, is_system: bool) -> str:
    """What ends this daemon and is not undone by who keeps it up."""
    if not is_unit():
        return "iod stop"
    return "systemctl stop iodaemon.socket iodaemon" if is_system else _STOP_USER_UNIT


def _socket(state: State, partition: Partition) -> dict[str, Any]:
    jobs = [job for job in state.live if job.partition == partition.id]
    rates = [rate for job in jobs if (rate := state.meter.bandwidth(job.id)) is not None]
    return {
        "id": partition.id,
        "cpus": partition.cpus,
        "slots": partition.size,
        "slots_free": state.slots_idle(partition.id),
        **_sharing(state, partition),
        "memory_nodes": list(partition.memory_nodes),
        "near_devices": list(partition.near_devices),
        "jobs": [job.id for job in jobs],
        "read_bytes_per_s": sum(rate.read_bytes_per_s for rate in rates),
        "written_bytes_per_s": sum(rate.written_bytes_per_s for rate in rates),
    }


def _sharing(state: State, partition: Partition) -> dict[str, int]:
    """Who has cores for its own and who shares them; nothing where no jobs share any."""
    if partition.cores is None:
        return {}
    limit = state.start_limit
    return {
        "cores_taken": partition.cores - state.cores_free(partition.id),
        "jobs_sharing": state.sharing(partition.id),
        "more_than_cores": 0 if limit is None else limit.above_cores.get(partition.id, 0),
    }


def _storage(state: State) -> dict[str, Any]:
    """Tiers, their disks, and what is allocated to whom; nothing where there are no tiers."""
    stock, holders = state.stock, state.stock.holders.items()
    if not stock.tiers:
        return {}
    free = stock.free_bytes()
    return {
        "tiers": [_tier(tier, free) for tier in stock.tiers],
        "disks": [
            {
                "tier": tier.name,
                "path": disk.id,
                "kind": disk.kind or None,
                **pick(disk, "capacity_bytes", "read_bytes_per_s", "write_bytes_per_s"),
                "free_bytes": free[disk.id],
                "taken_by_others_bytes": disk.others_bytes,
                "problem": f"not usable: {problem}" if problem else "",
                "jobs": [
                    i for i, shares in sorted(holders) if any(s.disk == disk.id for s in shares)
                ],
            }
            for tier in stock.tiers
            for disk in tier.disks
            for problem in [stock.unusable.get(disk.id)]
        ],
        "allocated": [
            {
                "job_id": job_id,
                "user": user_name(state.jobs[job_id].uid),
                "state": str(state.jobs[job_id].state),
                **pick(share, "tier", "disk", "size_bytes"),
                "over": text_of(state.jobs[job_id].scratch_over),
            }
            for job_id, shares in sorted(holders)
            for share in shares
        ],
    }


def _tier(tier: Tier, free: Mapping[DiskId, int]) -> dict[str, Any]:
    is_slowest = math.isinf(tier.staging_bytes_per_s)
    has_disks = tier.storage is not None
    return {
        "name": tier.name,
        "disks": len(tier.disks),
        "rule": rule_name(tier.rule) if has_disks and tier.rule is not None else None,
        "split_bytes": tier.split_bytes,
        "bandwidth_bytes_per_s": tier.bandwidth_bytes_per_s,
        "staging_bytes_per_s": None if is_slowest else tier.staging_bytes_per_s,
        "capacity_bytes": int(tier.capacity_bytes) if has_disks else None,
        "free_bytes": sum(free[disk.id] for disk in tier.disks) if has_disks else None,
    }


def _faults(faults: Mapping[str, RuleFault]) -> list[dict[str, Any]]:
    return [
        {
            "part": part,
            **pick(fault, "kind", "rule", "place", "problem"),
            "since_s": fault.at_s,
        }
        for part, fault in sorted(faults.items())
    ]


def policy_report(
    policy: PolicyFile,
    platform: Platform,
    faults: Mapping[str, RuleFault] = MappingProxyType({}),
) -> dict[str, Any]:
    cautions = policy.cautions(platform)
    return {
        **({"set_aside": _faults(faults)} if faults else {}),
        "name": policy.name,
        "path": str(policy.path),
        "source": policy.source,
        "max_suspend_s": policy.rules.max_suspend_s,
        **rule_tables(policy.rules),
        **({"cautions": cautions} if cautions else {}),
    }


def running_config(document: dict[str, Any], mode: Mode) -> dict[str, Any]:
    """The configuration in force, with the mode that somebody switched to."""
    for row in document["settings"]:
        if (row["table"], row["key"]) == ("", "mode") and row["value"] != f'"{mode}"':
            row.update(value=f'"{mode}"', origin=f"iod mode (configured: {row['value']})")
    return document
