"""What cgroup v2 gives to this process: where it is, what may be made there, what is counted.

Documentation/admin-guide/cgroup-v2.rst; the mark ``user.delegate`` is systemd's (systemd.exec(5),
"Delegate").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.doctor.child import a_child
from iodaemon.doctor.finding import Finding, Values, lacking, ok
from iodaemon.doctor.scratch import scratch_cgroup
from iodaemon.errors import NoData
from iodaemon.sampler import mountinfo

GIVES: Final = {
    "io": "bytes that reach the disk, job by job (io.stat)",
    "cpuset": "a fence of CPUs that a job stays in",
    "memory": "the memory of a job, and its limit",
    "pids": "a limit of a job's processes",
}
"""What each controller would give."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Where this process stands in the hierarchy.

    Attributes:
        mount: where cgroup v2 is mounted; None: nowhere.
        has_v1: hierarchies of version 1 are mounted as well, and hold controllers.
        home: directory of this process's cgroup; None where there is none to be seen.
        problem: why a child could not be put into a cgroup made there; empty: it could.
        controllers: those that a cgroup made there has; of a home in which none can be made,
            those that it has itself.
        is_delegated: systemd marked it as delegated.
        owner_uid: of the directory; None: there is none.
        is_systemd: systemd is this machine's first process, and manages the tree.
    """

    mount: str | None = None
    has_v1: bool = False
    home: str | None = None
    problem: str = ""
    controllers: tuple[str, ...] = ()
    is_delegated: bool = False
    owner_uid: int | None = None
    is_systemd: bool = False

    @property
    def usable_home(self) -> str | None:
        """Where a cgroup may be made; None: nowhere."""
        return None if self.problem else self.home


def probe_cgroups() -> Reading:
    """Look at the hierarchy, and try to make a cgroup and to put a child into it."""
    try:
        mounts = mountinfo.Sampler(Path("/")).read()
    except NoData:
        mounts = ()
    v2 = [mount for mount in mounts if mount.filesystem == "cgroup2"]
    has_v1 = any(mount.filesystem == "cgroup" for mount in mounts)
    is_systemd = os.path.isdir("/run/systemd/system")  # sd_booted(3)
    if not v2:
        return Reading(has_v1=has_v1, is_systemd=is_systemd)
    with open("/proc/self/cgroup") as file:
        home = find_home(file.read(), v2[0].mount_point, v2[0].subtree)
    if home is None or not os.path.isdir(home):
        return Reading(mount=v2[0].mount_point, has_v1=has_v1, is_systemd=is_systemd)
    problem, controllers = _try_out(home)
    return Reading(
        mount=v2[0].mount_point,
        has_v1=has_v1,
        home=home,
        problem=problem,
        controllers=controllers,
        is_delegated=_is_delegated(home),
        owner_uid=os.stat(home).st_uid,
        is_systemd=is_systemd,
    )


def find_home(text: str, mount_point: str, subtree: str) -> str | None:
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


def _try_out(home: str) -> tuple[str, tuple[str, ...]]:
    """Why no child can be put into a cgroup made here, and which controllers there are."""
    try:
        with scratch_cgroup(home) as base, a_child() as child:
            child.ask("enter", procs=f"{base}/jobs/cgroup.procs")
            return "", _controllers(base)
    except OSError as error:
        return error.strerror or str(error), _controllers(home)


def _controllers(directory: str) -> tuple[str, ...]:
    with open(f"{directory}/cgroup.controllers") as file:
        return tuple(file.read().split())


def _is_delegated(home: str) -> bool:
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(home, name) == b"1":
                return True
    return False


def judge_cgroups(reading: Reading) -> Iterator[Finding]:
    """The hierarchy, the own subtree, whose it is, and the controllers in it."""
    yield _judge_mount(reading)
    yield _judge_subtree(reading)
    if not reading.problem and reading.home is not None:
        yield _judge_delegation(reading)
    yield _judge_controllers(reading)


def _judge_mount(reading: Reading) -> Finding:
    if reading.mount is None:
        return lacking(
            "cgroup v2",
            "it is not mounted",
            cost="jobs are suspended by signals, and what they fork is found by its parents",
            remedy="boot with systemd.unified_cgroup_hierarchy=1",
        )
    beside = ", beside version 1" if reading.has_v1 else ""
    return ok("cgroup v2", f"mounted at {reading.mount}{beside}", {"mount": reading.mount})


def _judge_subtree(reading: Reading) -> Finding:
    what = "cgroup subtree"
    if reading.home is None:
        shown = "this process is in no cgroup that can be seen from here"
    elif reading.problem:
        shown = f"no child can be put into a cgroup made in {reading.home} ({reading.problem})"
    else:
        return ok(what, f"a child was put into a cgroup made in {reading.home}")
    return lacking(
        what,
        shown,
        cost="jobs are suspended by signals, which a job can see",
        remedy="run the daemon as a systemd service with Delegate=yes, or try "
        "'systemd-run --user --scope -p Delegate=yes iod doctor'",
    )


def _judge_delegation(reading: Reading) -> Finding:
    what = "cgroup delegation"
    values = {"is_delegated": reading.is_delegated, "owner_uid": reading.owner_uid}
    owner = f"{reading.home} belongs to uid {reading.owner_uid}"
    if reading.is_delegated:
        return ok(what, f"{owner} and is marked as delegated", values)
    if not reading.is_systemd:
        return ok(what, f"{owner}; no systemd here that would want it marked", values)
    return lacking(
        what,
        f"{owner} and is not marked as delegated",
        values,
        cost="systemd may move what is made there",
        remedy="run the daemon as a systemd service with Delegate=yes",
    )


def _judge_controllers(reading: Reading) -> Finding:
    what = "cgroup controllers"
    there = [name for name in GIVES if name in reading.controllers]
    missing = [name for name in GIVES if name not in reading.controllers]
    values: Values = {name: name in there for name in GIVES}
    if not missing:
        return ok(what, " ".join(there), values)
    v1 = "; version 1 has them" if reading.has_v1 else ""
    return lacking(
        what,
        f"{' '.join(there) or 'none'} of {' '.join(GIVES)}{v1}",
        values,
        cost="missing: " + ", ".join(f"{name} ({GIVES[name]})" for name in missing),
        remedy=(
            "boot with systemd.unified_cgroup_hierarchy=1"
            if reading.has_v1
            else f"systemd: Delegate={' '.join(GIVES)}"
        ),
    )
