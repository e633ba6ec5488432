"""Node and policy in force, as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from iodaemon.config import PolicyFile, rule_tables
from iodaemon.core.platform import Partition
from iodaemon.core.state import State
from iodaemon.daemon.host import host_metrics


def node_report(
    state: State, backend: str, means: Mapping[str, Any], sampling: Mapping[str, Any]
) -> dict[str, Any]:
    """Sockets, slots, devices, the host, and what is measured how.

    Args:
        state: for the platform, the jobs on it, the drain, and the last slice's loads.
        backend: its name.
        means: what the backend says of itself.
        sampling: whether it keeps pace with the timeslice.
    """
    return {
        "backend": backend,
        "draining": state.drain is not None,
        **({} if state.drain is None else {"drain": msgspec.to_builtins(state.drain)}),
        "sockets": [_socket(state, partition) for partition in state.platform.partitions],
        "devices": [
            {
                **msgspec.to_builtins(device),
                "load": msgspec.to_builtins(state.meter.devices.get(device.id)),
            }
            for device in state.platform.devices
        ],
        "host": host_metrics(),
        "measured": dict(means),
        "sampling": dict(sampling),
    }


def _socket(state: State, partition: Partition) -> dict[str, Any]:
    jobs = [job for job in state.live if job.partition == partition.id]
    rates = [rate for job in jobs if (rate := state.meter.bandwidth(job.id)) is not None]
    return {
        "id": partition.id,
        "cpus": sorted({cpu for slot in partition.slots for cpu in slot.cpus}),
        "slots": len(partition.slots),
        "slots_free": state.slots_free(partition.id),
        "memory_nodes": list(partition.memory_nodes),
        "near_devices": list(partition.near_devices),
        "jobs": [job.id for job in jobs],
        "read_bytes_per_s": sum(rate.read_bytes_per_s for rate in rates),
        "written_bytes_per_s": sum(rate.written_bytes_per_s for rate in rates),
    }


def policy_report(policy: PolicyFile) -> dict[str, Any]:
    """The policy in force: its rules with every parameter."""
    return {
        "name": policy.name,
        "path": str(policy.path),
        "source": policy.source,
        "max_suspend_s": policy.rules.max_suspend_s,
        **rule_tables(policy.rules),
    }
