"""What the kernel gives to every process: release, counters, CPUs, memory nodes, open files."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

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
    find_sources,
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


def check_progress(cgroup_home: str | None) -> Iterator[Finding]:
    """Read each counter once; the cgroup is one in whose place jobs could have theirs."""
    return judge_progress(find_sources(Path("/"), cgroup_home))


def judge_progress(found: frozenset[ProgressSource]) -> Iterator[Finding]:
    """One finding a counter."""
    for source in _COUNTERS:
        shown = source.gives if source in found else "not counted"
        yield judge(source in found, source.name, shown, cost=source.cost, remedy=source.remedy)


def check_pressure() -> Finding:
    """The stall times of the machine."""
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


class Reading(NamedTuple):
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


def check_topology(sockets: Sequence[str], slot: SlotKind) -> Iterator[Finding]:
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
    reading = Reading(
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
    yield from judge_topology(reading)


def judge_topology(reading: Reading) -> Iterator[Finding]:
    """What there is, the pinning, the memory policy."""
    of_sockets = _count(len(reading.sockets), "socket")
    sockets = ", ".join(f"{i}: CPUs {cpus}" for i, cpus in enumerate(reading.sockets))
    yield judge(
        reading.cpus >= reading.online,
        "topology",
        f"{of_sockets} ({sockets}), {_count(reading.slots, 'slot')} of up to "
        f"{_count(reading.threads, 'thread')}, {_count(reading.nodes, 'NUMA node')}, "
        f"{reading.cpus} of {reading.online} CPUs allowed",
        {
            "sockets": len(reading.sockets),
            "slots": reading.slots,
            "cpus": reading.cpus,
            "numa_nodes": reading.nodes,
        },
        cost="the other CPUs are not handed out to jobs",
        remedy="start the daemon without taskset, cpuset or AllowedCPUs=",
    )
    is_pinned = reading.pinned == reading.sockets
    yield judge(
        is_pinned,
        "pinning",
        f"a child could be pinned to each of {of_sockets}"
        if is_pinned
        else f"pinned to CPUs {reading.sockets}, found on {reading.pinned}",
        cost="jobs run on CPUs that they were not given",
        remedy="see that no CPU goes offline, and no cpuset changes, while the daemon runs",
        verdict=Verdict.BROKEN,
    )
    yield _judge_memory(reading)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _judge_memory(reading: Reading) -> Finding:
    if not reading.is_bound:
        return lacking(
            "memory policy",
            "set_mempolicy is refused, or the kernel knows no NUMA node",
            cost="memory may come from another socket" if reading.nodes > 1 else "nothing here",
            remedy="take a kernel with CONFIG_NUMA, and let a sandbox allow the call",
        )
    accepted = f"accepted for node {','.join(map(str, reading.memory_nodes))}"
    if any(policy.startswith("prefer") for policy in reading.policies):
        policies = " ".join(reading.policies)
        return ok("memory policy", f"{accepted}, /proc/PID/numa_maps has {policies}")
    return ok("memory policy", f"{accepted}; the kernel does not show it")


# -- open files ------------------------------------------------------------------------------------


def check_files() -> Finding:
    """The limits of this process, which a daemon started like it would have."""
    return judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def judge_files(soft: int, hard: int) -> Finding:
    """By the hard limit, up to which the daemon raises its own; -1: none."""
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
