"""A cgroup that limits memory, page cache included: version 1 or 2, whichever the machine has."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


def missing() -> list[str]:
    """What this machine lacks; empty: a limit can be had."""
    if os.geteuid() != 0:
        return ["root"]
    if (V1 / "memory.limit_in_bytes").exists():
        return []
    return [] if "memory" in (V2 / "cgroup.subtree_control").read_text() else ["memory controller"]


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Path]:
    """The ``cgroup.procs`` of a group with this limit; whoever writes its pid there is bound.

    Whatever still runs in it is killed at the end.
    """
    is_v1 = V1.is_dir()
    group = (V1 if is_v1 else V2) / f"iodaemon-bench-{os.getpid()}"
    group.mkdir()
    try:
        limit = group / ("memory.limit_in_bytes" if is_v1 else "memory.max")
        limit.write_text(str(limit_bytes))
        yield group / "cgroup.procs"
    finally:
        remove(group)


def forget_cache(procs: Path) -> None:
    """Give back the page cache charged to the group, where nothing runs in it."""
    with contextlib.suppress(OSError):
        (procs.parent / "memory.force_empty").write_text("0")
    with contextlib.suppress(OSError):
        (procs.parent / "memory.reclaim").write_text("64G")


def remove(group: Path) -> None:
    """Kill what is in it and remove it."""
    for _ in range(100):
        pids = [int(word) for word in (group / "cgroup.procs").read_text().split()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            break
        time.sleep(0.05)
    group.rmdir()
