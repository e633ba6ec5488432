"""Which means of holding jobs a process can have: a cgroup tree of its own, or signals.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import zlib

from iodaemon.backend.linux.delegation import UNDELEGATED, find_undelegated
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.freezer import CgroupFreezer, SignalFreezer
from iodaemon.backend.linux.protocol import Message


def choose_freezer(
    state: str, *, previous_base: str | None = None, allow_cgroup: bool = True
) -> CgroupFreezer | SignalFreezer:
    """The best freezer this process can have: a cgroup of its own, else signals (and says why).

    With a cgroup, the calling process is in it on return.

    Args:
        state: the state directory; names the tree, so that two daemons do not share one.
        previous_base: where the keeper before this one had its tree; its jobs are still there.
        allow_cgroup: False forces signals.
    """
    directories = JobDirectories(os.path.join(state, "jobs"))
    if not allow_cgroup:
        return SignalFreezer(directories, "signals, as configured")
    if previous_base is not None and os.path.isdir(os.path.join(previous_base, "jobs")):
        with contextlib.suppress(OSError):
            return _opened(previous_base)
    home = _own_cgroup_directory()
    if home is None:
        return SignalFreezer(directories, "signals: no cgroup v2 hierarchy is mounted")
    name = f"iodaemon-{zlib.crc32(os.path.realpath(state).encode()):08x}"
    try:
        return _opened(os.path.join(home, name))
    except OSError as error:
        problem = f"signals: {home} is not writable ({error.strerror})"
        return SignalFreezer(directories, problem)


def freezer_of(record: Message, directories: JobDirectories) -> CgroupFreezer | SignalFreezer:
    """The means that a job was started with, from what its shim wrote of itself."""
    cgroup = record.get("cgroup")
    if cgroup is None:
        return SignalFreezer(directories, "started without a cgroup")
    return CgroupFreezer(os.path.dirname(os.path.dirname(cgroup)))


def _opened(base: str) -> CgroupFreezer:
    freezer = CgroupFreezer(base)
    freezer.open()
    if find_undelegated(os.path.dirname(base)):
        freezer.detail += f", {UNDELEGATED}"
    return freezer


def _own_cgroup_directory() -> str | None:
    """The directory of this process's cgroup v2; None where there is no such hierarchy.

    /proc/self/cgroup line ``0::PATH`` below the cgroup2 mount of /proc/self/mountinfo.
    """
    root = find_hierarchy()
    with open("/proc/self/cgroup") as file:
        paths = [line[3:].strip() for line in file if line.startswith("0::")]
    if root is None or not paths:
        return None
    return os.path.normpath(root + "/" + paths[0])


def find_hierarchy() -> str | None:
    """Where cgroup v2 is mounted (/proc/self/mountinfo); None: nowhere."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    return next((f[4] for f in mounts if f[f.index("-") + 1] == "cgroup2"), None)
