"""The machine around the daemon, by psutil: figures for people and checks at the start.

Not in the sampling loop, which reads the kernel's files itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from iodaemon.daemon.account import user_name
from iodaemon.node.condition import NO_PROCESS_IO, judge_free
from iodaemon.supervisor.reap import read_state


def host_metrics() -> dict[str, Any]:
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


def describe_process(pid: int) -> str:
    """Who a process is, for a message: number, command and user; the number alone when gone."""
    state = read_state(pid)
    return f"pid {pid}" if state is None else f"pid {pid}, {state.name} of {user_name(state.uid)}"


def startup_warnings(state: Path) -> Iterator[str]:
    """What will go wrong sooner or later, one line each, with what to do."""
    if (short := judge_free(state, psutil.disk_usage(str(state)).free)) is not None:
        yield str(short)
    if psutil.swap_memory().total and psutil.virtual_memory().percent > 90:
        yield "memory is over 90 % used; jobs will swap, which is I/O that no job is charged for"
    if not Path("/proc/self/io").exists():
        fact, cure = NO_PROCESS_IO
        yield f"{fact}, so every job's I/O is unknown, and none is regulated; {cure}"
