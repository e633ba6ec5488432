"""What the kernel gives to every process: release, counters, CPUs, memory nodes, open files."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from iodaemon.core.platform import Partition
from iodaemon.doctor.child import a_child
from iodaemon.doctor.report import Finding, Verdict, judge, lacking, ok
from iodaemon.node.condition import FEW_FILES
from iodaemon.node.feature import (
    AVAILABLE_MEMORY,
    COUNT_PRESSURE,
    IDLE_TIME,
    LOGICAL_BYTES,
    REFAULTS,
    USER_CPU,
    ProgressSource,
)
from iodaemon.node.root_side import BY_SIGNALS
from iodaemon.node.sampler.proc_files import known, parse_pressure
from iodaemon.node.topology import (
    SlotKind,
    format_cpu_list,
    own_limits,
    parse_cpu_list,
    read_topology,
)

_LEAST_KERNEL: Final = (5, 3)
"""pidfd_open(2); without it a process can be mistaken for a later one with its number."""
_KILL_KERNEL: Final = (5, 14)
"""cgroup.kill; without it the daemon does without cgroups."""
_COUNTERS: Final = (REFAULTS, LOGICAL_BYTES, USER_CPU, IDLE_TIME, AVAILABLE_MEMORY)
"""The stall times have a line of their own (``judge_pressure``)."""
_NODES: Final = Path("/sys/devices/system/node/online")
_FILES_PER_JOB: Final = 8
"""Descriptors the daemon holds of a running job of one or two processes."""
_LEAST_FILES: Final = 4096
"""Some 500 running jobs."""


def judge_kernel(release: str) -> Finding:
    """By its release, as ``uname -r`` shows it."""
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (0, 0) if match is None else (int(match[1]), int(match[2]))
    is_usable = version >= _LEAST_KERNEL
    return judge(
        version >= _KILL_KERNEL,
        "kernel",
        f"Linux {release}",
        {"release": release},
        cost=f"{BY_SIGNALS} (cgroup.kill is Linux 5.14)"
        if is_usable
        else "processes cannot be told apart safely (pidfd_open is Linux 5.3)",
        remedy="use Linux 5.14 or newer",
        verdict=Verdict.LACKING if is_usable else Verdict.BROKEN,
    )


# -- what it counts --------------------------------------------------------------------------------


def judge_progress(found: frozenset[ProgressSource]) -> Iterator[Finding]:
    for source in _COUNTERS:
        shown = source.gives if source in found else "not counted"
        yield judge(source in found, source.name, shown, cost=source.cost, remedy=source.remedy)


def check_pressure() -> Finding:
    read = (known(f"/proc/pressure/{each}", parse_pressure) for each in ("io", "memory"))
    return judge_pressure(*read)


def judge_pressure(io_s: float | None, memory_s: float | None) -> Finding:
    """Time lost by waiting since boot, s; None: not counted.

    A machine that has read anything has waited for it: without any wait since boot it is hidden.
    """
    if io_s == 0.0:
        shown = "/proc/pressure/io has counted no wait since boot (a container may hide it)"
    elif io_s is None or memory_s is None:
        shown = "/proc/pressure has nothing to say"
    else:
        shown = f"since boot {io_s:.1f} s for I/O, {memory_s:.1f} s for memory"
    return judge(
        bool(io_s) and memory_s is not None,
        "pressure (PSI)",
        shown,
        {"io_s": io_s, "memory_s": memory_s},
        cost="rules that wait for pressure see none",
        remedy="make the machine's /proc/pressure visible" if io_s == 0.0 else COUNT_PRESSURE,
    )


# -- CPUs and memory nodes -------------------------------------------------------------------------


def check_topology(sockets: Sequence[str], slot: SlotKind) -> Iterator[Finding]:
    """Read it, and pin a child to each socket in turn."""
    cpus, allowed_nodes = own_limits()
    partitions = read_topology(
        Path("/"), allowed_cpus=cpus, allowed_nodes=allowed_nodes, sockets=sockets, slot=slot
    )
    wanted = [sorted({c for s in partition.slots for c in s.cpus}) for partition in partitions]
    with a_child() as child:
        pinned = [child.ask("pin", cpus=each)["cpus"] for each in wanted]
        bound = child.ask("prefer", nodes=list(partitions[0].memory_nodes))
    nodes = len(parse_cpu_list(_NODES.read_text())) if _NODES.exists() else 0
    yield judge_cpus(partitions, len(cpus), os.cpu_count() or len(cpus), nodes)
    yield judge_pinning(wanted, pinned)
    accepted = partitions[0].memory_nodes if bound["done"] else None
    yield judge_memory(accepted, bound["policies"], nodes)


def judge_cpus(partitions: Sequence[Partition], cpus: int, online: int, nodes: int) -> Finding:
    """Whether this process may use all logical CPUs; no nodes: the kernel knows none."""
    slots = [slot for partition in partitions for slot in partition.slots]
    sockets = ", ".join(
        f"{number}: CPUs {format_cpu_list(cpu for slot in partition.slots for cpu in slot.cpus)}"
        for number, partition in enumerate(partitions)
    )
    threads = max(len(slot.cpus) for slot in slots)
    return judge(
        cpus >= online,
        "topology",
        f"{_count(len(partitions), 'socket')} ({sockets}), {_count(len(slots), 'slot')} of up to "
        f"{_count(threads, 'thread')}, {_count(nodes, 'NUMA node')}, "
        f"{cpus} of {online} CPUs allowed",
        {"sockets": len(partitions), "slots": len(slots), "cpus": cpus, "numa_nodes": nodes},
        cost="the other CPUs are not handed out to jobs",
        remedy="start the daemon without taskset, cpuset or AllowedCPUs=",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def judge_pinning(wanted: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> Finding:
    """Each socket's CPUs, and those that a child had after it was pinned to them."""
    is_pinned = wanted == found
    shown_wanted, shown_found = (tuple(map(format_cpu_list, each)) for each in (wanted, found))
    return judge(
        is_pinned,
        "pinning",
        f"a child could be pinned to each of {_count(len(wanted), 'socket')}"
        if is_pinned
        else f"pinned to CPUs {shown_wanted}, found on {shown_found}",
        cost="jobs run on CPUs that they were not given",
        remedy="see that no CPU goes offline, and no cpuset changes, while the daemon runs",
        verdict=Verdict.BROKEN,
    )


def judge_memory(accepted: Sequence[int] | None, policies: Sequence[str], nodes: int) -> Finding:
    """Whether a process can be told where to take memory from.

    Args:
        accepted: the nodes that a child was told to take it from; None: the call is refused.
        policies: its memory policies after that, as in /proc/PID/numa_maps.
    """
    if accepted is None:
        return lacking(
            "memory policy",
            "set_mempolicy is refused, or the kernel knows no NUMA node",
            cost="memory may come from another socket" if nodes > 1 else "nothing here",
            remedy="take a kernel with CONFIG_NUMA, and let a sandbox allow the call",
        )
    told = f"accepted for node {','.join(map(str, accepted))}"
    if any(policy.startswith("prefer") for policy in policies):
        return ok("memory policy", f"{told}, /proc/PID/numa_maps has {' '.join(policies)}")
    return ok("memory policy", f"{told}; the kernel does not show it")


# -- open files ------------------------------------------------------------------------------------


def judge_files(soft: int, hard: int) -> Finding:
    """By the hard limit of this process, to which a daemon started like it raises its own."""
    is_endless = hard == resource.RLIM_INFINITY
    room = "any number of" if is_endless else f"about {hard // _FILES_PER_JOB}"
    limits = "none" if is_endless else f"{soft}, up to {hard}"
    return judge(
        is_endless or hard >= _LEAST_FILES,
        "open files",
        f"{limits}; room for {room} running jobs",
        {"soft": soft, "hard": hard},
        cost="beyond that no job starts, and nothing is measured of those that have begun",
        remedy=FEW_FILES.cure,
    )
