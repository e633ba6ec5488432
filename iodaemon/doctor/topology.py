"""Sockets, NUMA nodes and CPUs, and whether a process can be kept on them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from iodaemon.doctor.child import a_child
from iodaemon.doctor.finding import Finding, broken, judge, lacking, ok
from iodaemon.node.topology import (
    SlotKind,
    format_cpu_list,
    own_limits,
    parse_cpu_list,
    read_topology,
)

_NODES = Path("/sys/devices/system/node/online")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has, and what a child could be made to do.

    Attributes:
        sockets: the CPUs of each, as a list such as ``0-15``.
        slots: what is handed out, all sockets together.
        cpus: logical CPUs that this process may use.
        online: logical CPUs of the machine.
        threads: of the slot that has most.
        nodes: NUMA nodes of the machine; 0: its kernel knows none.
        pinned: each socket's CPUs as the child had them after it was pinned to them.
        memory_nodes: the nodes that the child was told to take memory from; empty: none known.
        policies: its memory policies after that, as in /proc/PID/numa_maps.
        is_bound: the call was accepted.
    """

    sockets: tuple[str, ...]
    slots: int
    cpus: int
    online: int
    threads: int
    nodes: int
    pinned: tuple[str, ...]
    memory_nodes: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()
    is_bound: bool = False


def probe_topology(sockets: Sequence[str], slot: SlotKind) -> Reading:
    """Read it, and pin a child to each socket in turn.

    Args:
        sockets: as configured; empty: as detected.
        slot: what is handed out.

    Raises:
        ConfigError: the configured sockets do not fit the machine.
        OSError: the child cannot be pinned.
    """
    cpus, allowed_nodes = own_limits()
    partitions = read_topology(
        Path("/"), allowed_cpus=cpus, allowed_nodes=allowed_nodes, sockets=sockets, slot=slot
    )
    wanted = [sorted({c for s in partition.slots for c in s.cpus}) for partition in partitions]
    memory_nodes = partitions[0].memory_nodes
    with a_child() as child:
        pinned = [child.ask("pin", cpus=each)["cpus"] for each in wanted]
        bound = child.ask("prefer", nodes=list(memory_nodes))
    return Reading(
        sockets=tuple(map(format_cpu_list, wanted)),
        slots=sum(len(partition.slots) for partition in partitions),
        cpus=len(cpus),
        online=os.cpu_count() or len(cpus),
        threads=max(len(s.cpus) for partition in partitions for s in partition.slots),
        nodes=len(parse_cpu_list(_NODES.read_text())) if _NODES.exists() else 0,
        pinned=tuple(map(format_cpu_list, pinned)),
        memory_nodes=memory_nodes,
        policies=tuple(bound["policies"]),
        is_bound=bound["done"],
    )


def judge_topology(reading: Reading) -> Iterator[Finding]:
    """What there is, the pinning, the memory policy."""
    yield _judge_sockets(reading)
    yield _judge_pinning(reading)
    yield _judge_memory(reading)


def _judge_sockets(reading: Reading) -> Finding:
    sockets = ", ".join(f"{i}: CPUs {cpus}" for i, cpus in enumerate(reading.sockets))
    threads = f"{reading.threads} threads" if reading.threads > 1 else "1 thread"
    shown = (
        f"{_count(len(reading.sockets), 'socket')} ({sockets}), "
        f"{_count(reading.slots, 'slot')} of up to {threads}, "
        f"{_count(reading.nodes, 'NUMA node')}, {reading.cpus} of {reading.online} CPUs allowed"
    )
    values = {
        "sockets": len(reading.sockets),
        "slots": reading.slots,
        "cpus": reading.cpus,
        "numa_nodes": reading.nodes,
    }
    return judge(
        reading.cpus >= reading.online,
        "topology",
        shown,
        values,
        cost="the other CPUs are not handed out to jobs",
        remedy="start the daemon without taskset, cpuset or AllowedCPUs=",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _judge_pinning(reading: Reading) -> Finding:
    if reading.pinned == reading.sockets:
        shown = f"a child could be pinned to each of {_count(len(reading.sockets), 'socket')}"
        return ok("pinning", shown)
    return broken(
        "pinning",
        f"pinned to CPUs {reading.sockets}, found on {reading.pinned}",
        cost="jobs run on CPUs that they were not given",
        remedy="see that no CPU goes offline, and no cpuset changes, while the daemon runs",
    )


def _judge_memory(reading: Reading) -> Finding:
    nodes = ",".join(map(str, reading.memory_nodes))
    is_followed = any(policy.startswith("prefer") for policy in reading.policies)
    if reading.is_bound and is_followed:
        shown = f"accepted for node {nodes}, /proc/PID/numa_maps has {' '.join(reading.policies)}"
        return ok("memory policy", shown)
    if reading.is_bound:
        return ok("memory policy", f"accepted for node {nodes}; the kernel does not show it")
    return lacking(
        "memory policy",
        "set_mempolicy is refused, or the kernel knows no NUMA node",
        cost="memory may come from another socket" if reading.nodes > 1 else "nothing here",
        remedy="take a kernel with CONFIG_NUMA, and let a sandbox allow the call",
    )
