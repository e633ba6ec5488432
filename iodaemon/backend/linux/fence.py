"""What cgroup v2's controllers add to a job: a fence, a limit, and how it met them.

Documentation/admin-guide/cgroup-v2.rst: cpuset (Linux 5.0), io (4.5), memory (4.5; memory.oom.group
4.19), pids (4.5). Without a controller a job runs as well: it then keeps to its socket because it
was put there, and may take all memory and all processes. ``io.pressure`` and ``memory.pressure``
(4.20) need none.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from iodaemon.backend.linux.io_cap import CAP, can_cap
from iodaemon.backend.linux.process_limit import limit_processes
from iodaemon.backend.linux.protocol import Message

CONTROLLERS: Final = ("cpuset", "io", "pids", "memory")
"""Those that are handed down to the jobs where they can be had."""
PRESSURE: Final = "pressure"
"""Stands beside the controllers where the kernel counts the stall times of a cgroup."""
LEAST_MEMORY_BYTES: Final = 16 << 20
"""No lower limit is set: in less no process can be made that could say what is wrong."""


def hand_down(base: str) -> tuple[str, ...]:
    """Give the jobs' cgroups all controllers that ``base`` itself has; which those are now.

    No process may be in ``base`` itself, nor in its ``jobs``.

    Args:
        base: the tree's top; jobs are in ``base/jobs/<key>``.
    """
    jobs = os.path.join(base, "jobs")
    for controller in CONTROLLERS:
        with contextlib.suppress(OSError):  # it is not there, or somebody is in the way
            for directory in (base, jobs):
                _write(directory, "cgroup.subtree_control", f"+{controller}")
    given = _read(jobs, "cgroup.subtree_control").split()
    controls: list[str] = [controller for controller in CONTROLLERS if controller in given]
    if _read(jobs, "io.pressure") and _read(jobs, "memory.pressure"):
        controls.append(PRESSURE)
    if "io" in controls and can_cap(jobs):
        controls.append(CAP)
    return tuple(controls)


def confine(cgroup: str, controls: Collection[str], launch: Message) -> list[str]:
    """Set a new job's fence and limit; what could not be set, in words.

    Over its limit a job is ended, all of it: it does not begin to swap, which would only move
    its memory to the disk that everybody waits for.

    Args:
        cgroup: the job's, without a process.
        controls: as ``hand_down`` said.
        launch: its ``fence`` (``cpus`` and ``memory_nodes``), ``memory_bytes`` and ``processes``,
            if any.
    """
    return [
        f"{name} is not set to {value}: {problem}"
        for name, value in _settings(controls, launch)
        if (problem := _find_problem(cgroup, name, value))
    ]


def _settings(controls: Collection[str], launch: Message) -> Iterator[tuple[str, str]]:
    fence = launch.get("fence") or {}
    if "cpuset" in controls:
        for name, numbers in (("cpus", fence.get("cpus")), ("mems", fence.get("memory_nodes"))):
            if numbers:
                yield f"cpuset.{name}", _list(numbers)
    if "memory" in controls and launch.get("memory_bytes"):
        yield "memory.oom.group", "1"
        yield "memory.swap.max", "0"
        yield "memory.max", str(max(LEAST_MEMORY_BYTES, int(launch["memory_bytes"])))
    if "pids" in controls and launch.get("processes"):
        yield "pids.max", str(limit_processes(int(launch["processes"])))


def _list(numbers: Iterable[object]) -> str:
    return ",".join(str(int(str(number))) for number in numbers)


def _find_problem(cgroup: str, name: str, value: str) -> str:
    """Why the file could not be written; empty: it was. Without swap there is nothing to limit."""
    try:
        _write(cgroup, name, value)
    except FileNotFoundError as error:
        return "" if name == "memory.swap.max" else str(error.strerror)
    except OSError as error:
        return str(error.strerror)
    return ""


def parse_memory_events(text: str) -> dict[str, int]:
    """The counts in a memory.events (or .local); what is no count is left out."""
    pairs = (line.partition(" ") for line in text.split("\n")[:-1])
    return {name: int(digits) for name, _, digits in pairs if digits.isdecimal()}


def counts_memory_ends(cgroup: str | None) -> bool:
    """Whether the kernel tells of this cgroup alone what it killed in it for want of memory."""
    if cgroup is None:
        return False
    return "memory" in _read(os.path.dirname(cgroup), "cgroup.subtree_control").split()


def find_memory_end(cgroup: str | None) -> Message | None:
    """How the kernel ended processes of the job for want of memory; None: it did not, or unknown.

    Args:
        cgroup: the job's; its processes may all be gone.

    Returns:
        ``killed``: how many; ``at_limit``: how often it could get no more below its own limit;
        ``limit_bytes``: that limit, None where there is none; ``nodes``: the NUMA nodes it was
        fenced into, empty: all.
    """
    if cgroup is None:
        return None
    counts = parse_memory_events(_read(cgroup, "memory.events"))
    if not counts.get("oom_kill"):
        return None
    limit = _read(cgroup, "memory.max").strip()
    return {
        "killed": counts["oom_kill"],
        "at_limit": counts.get("oom", 0),
        "limit_bytes": int(limit) if limit.isdecimal() else None,
        "nodes": _read(cgroup, "cpuset.mems").strip(),
    }


def _read(directory: str, name: str) -> str:
    """The file's text; empty where there is none, or the kernel does not answer."""
    try:
        with open(os.path.join(directory, name)) as file:
            return file.read()
    except OSError:
        return ""


def _write(directory: str, name: str, text: str) -> None:
    fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
