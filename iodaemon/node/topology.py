"""The machine's CPU sockets as partitions, from sysfs.

/sys/devices/system/cpu/{online,cpuN/topology/{physical_package_id,thread_siblings_list}}
(Linux 2.6.16; Documentation/admin-guide/cputopology.rst) and /sys/devices/system/node/
{has_memory,nodeN/cpulist} (Linux 2.6.18, has_memory since 2.6.24;
Documentation/ABI/stable/sysfs-devices-node).

A socket is not a NUMA node: with sub-NUMA clustering a package holds several nodes, and memory
behind CXL is a node without CPUs, which belongs to no socket.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from iodaemon.core.platform import Partition, PartitionId, Slot, SlotId
from iodaemon.errors import ConfigError
from iodaemon.node.devices import device_numa_node, leaf_names
from iodaemon.supervisor.reap import read_status

_CPU: Final = "sys/devices/system/cpu"
_NODE: Final = "sys/devices/system/node"
_KEY: Final = "[topology] sockets"
_CPU_LIMIT: Final = 65536
"""Above any CPU number; the largest NR_CPUS of a Linux 6.18 configuration is 8192."""

SlotKind = Literal["core", "thread"]


def parse_cpu_list(text: str) -> frozenset[int]:
    """The numbers in a list in the kernel's form, ``0-3,8``; ValueError if it has another form."""
    numbers: set[int] = set()
    for word in text.split(",") if text.strip() else ():
        first, hyphen, last = (part.strip() for part in word.partition("-"))
        if not (first.isdecimal() and (last.isdecimal() if hyphen else not last)):
            raise ValueError(f"{text.strip()!r} is not a list like 0-3,8")
        low, high = int(first), int(last or first)
        if not low <= high < _CPU_LIMIT:
            raise ValueError(f"{word.strip()!r} is not a range of numbers below {_CPU_LIMIT}")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def format_cpu_list(numbers: Iterable[int]) -> str:
    """The numbers in the kernel's form, ``0-3,8``."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def own_limits() -> tuple[frozenset[int], frozenset[int] | None]:
    """CPUs and NUMA nodes that this process may use, by taskset and cpusets; nodes None if unknown
    (Mems_allowed_list of /proc/self/status, Linux 2.6.24).
    """
    listed = read_status("self").get(b"Mems_allowed_list", b"").decode()
    return frozenset(os.sched_getaffinity(0)), parse_cpu_list(listed) if listed else None


def read_topology(
    root: Path,
    *,
    allowed_cpus: frozenset[int],
    allowed_nodes: frozenset[int] | None,
    sockets: Sequence[str] = (),
    slot: SlotKind = "core",
) -> tuple[Partition, ...]:
    """The partitions, numbered from 0 in the order of their package, of online and allowed CPUs.

    A machine without the sysfs files is one socket of single-threaded cores.

    Args:
        allowed_nodes: NUMA nodes whose memory may be used; None for all.
        sockets: CPU lists by which the machine is divided instead, in this order.
        slot: a slot is a core with all its allowed threads, or one thread.

    Raises:
        ConfigError: ``sockets`` does not fit the machine.
    """
    online = _find_list(root / _CPU / "online")
    usable = allowed_cpus if online is None else allowed_cpus & online
    groups = _divide(sockets, usable, online) if sockets else _packages(root, usable)
    numbers = _find_list(root / _NODE / "online") or frozenset()  # none on a kernel without NUMA
    nodes = {node: _find_list(root / _NODE / f"node{node}/cpulist") for node in sorted(numbers)}
    with_memory = _find_list(root / _NODE / "has_memory")
    with_memory = frozenset(nodes) if with_memory is None else with_memory
    with_memory &= with_memory if allowed_nodes is None else allowed_nodes
    devices = {name: device_numa_node(root, name) for name in leaf_names(root)}
    own = [{node for node, cpus in nodes.items() if cpus and cpus & group} for group in groups]
    return tuple(
        Partition(
            id=PartitionId(number),
            slots=_slots(root, cpus, slot),
            memory_nodes=tuple(sorted(own[number] & with_memory)),
            near_devices=tuple(name for name, node in devices.items() if node in own[number]),
        )
        for number, cpus in enumerate(groups)
    )


def _packages(root: Path, cpus: frozenset[int]) -> list[frozenset[int]]:
    """The CPUs of each package, ordered by its number (-1 or 0 if the kernel knows none)."""
    packages: dict[int, set[int]] = {}
    for cpu in sorted(cpus):
        number = _find_text(root / _CPU / f"cpu{cpu}/topology/physical_package_id")
        packages.setdefault(int(number or 0), set()).add(cpu)
    return [frozenset(packages[number]) for number in sorted(packages)]


def _slots(root: Path, cpus: frozenset[int], kind: SlotKind) -> tuple[Slot, ...]:
    slots: dict[int, tuple[int, ...]] = {}
    for cpu in sorted(cpus):
        threads = frozenset({cpu})
        if kind == "core":
            path = root / _CPU / f"cpu{cpu}/topology/thread_siblings_list"
            threads = (_find_list(path) or threads) & cpus
        slots.setdefault(min(threads), tuple(sorted(threads)))
    return tuple(Slot(id=SlotId(number), cpus=slots[number]) for number in sorted(slots))


def _divide(
    sockets: Sequence[str], usable: frozenset[int], online: frozenset[int] | None
) -> list[frozenset[int]]:
    """The CPU lists of the configuration, checked against the machine."""
    groups: list[frozenset[int]] = []
    cure = f"write CPUs of {format_cpu_list(usable)}"
    for text in sockets:
        try:
            cpus = parse_cpu_list(text)
        except ValueError as error:
            raise ConfigError(f"{_KEY}: {error}; {cure}") from error
        if not cpus:
            raise ConfigError(f"{_KEY}: {text!r} is an empty list; {cure}, or leave it out")
        for earlier, other in zip(groups, sockets, strict=False):
            if common := cpus & earlier:
                raise ConfigError(
                    f"{_KEY}: {text!r} has CPU {format_cpu_list(common)} in common with "
                    f"{other!r}; name each CPU once"
                )
        wrong, why = cpus - usable, "may not be used by this daemon"
        if online is not None and cpus - online:
            wrong, why = cpus - online, "does not exist or is offline"
        if wrong:
            raise ConfigError(f"{_KEY}: {text!r}: CPU {format_cpu_list(wrong)} {why}; {cure}")
        groups.append(cpus)
    return groups


def _find_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def _find_list(path: Path) -> frozenset[int] | None:
    text = _find_text(path)
    return None if text is None else parse_cpu_list(text)
