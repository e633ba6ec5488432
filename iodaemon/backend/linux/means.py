"""Which means of holding jobs a process can have: a cgroup tree of its own, or signals.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import zlib

from iodaemon.backend.linux.delegation import NO_HIERARCHY, UNDELEGATED, find_undelegated, unusable
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
    home, problem = find_home()
    if home is None:
        return SignalFreezer(directories, f"signals: {problem}")
    name = f"iodaemon-{zlib.crc32(os.path.realpath(state).encode()):08x}"
    try:
        return _opened(os.path.join(home, name))
    except OSError as error:
        return SignalFreezer(directories, f"signals: {unusable(home, error)}")


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


def find_home() -> tuple[str | None, str]:
    """The directory of this process's cgroup v2; where there is none, None and why."""
    with open("/proc/self/cgroup") as file:
        text = file.read()
    mounts = find_mounts("cgroup2")
    if not mounts:
        return None, NO_HIERARCHY
    home = home_below(text, *mounts[0])
    if home is None or not os.path.isdir(home):
        return None, "this process is in no cgroup that can be seen from here"
    return home, ""


def home_below(text: str, mount_point: str, subtree: str) -> str | None:
    """The directory of a process's cgroup, from its /proc/PID/cgroup; None: not below the mount.

    Args:
        text: lines of ``ID:CONTROLLERS:PATH``; version 2 is ``0::PATH``.
        mount_point: of cgroup2.
        subtree: the directory of the hierarchy that is mounted there.
    """
    paths = [line[3:] for line in text.splitlines() if line.startswith("0::")]
    if not paths:
        return None
    within = os.path.relpath(paths[0], subtree)
    return None if within.startswith("..") else os.path.normpath(f"{mount_point}/{within}")


def find_hierarchy() -> str | None:
    """Where cgroup v2 is mounted; None: nowhere."""
    return next((mount_point for mount_point, _ in find_mounts("cgroup2")), None)


def find_mounts(filesystem: str) -> list[tuple[str, str]]:
    """Mount point and mounted subtree of each mount of this type (/proc/self/mountinfo)."""
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split() for line in file]
    return [(words[4], words[3]) for words in mounts if words[words.index("-") + 1] == filesystem]
