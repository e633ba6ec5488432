"""What cgroup v2 gives to this process: where it is, what may be made there, what is counted.

Documentation/admin-guide/cgroup-v2.rst; the mark ``user.delegate`` is systemd's (systemd.exec(5),
"Delegate").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import msgspec

from iodaemon.doctor.child import a_child
from iodaemon.doctor.finding import NO_VALUES, Finding, Values, lacking, ok
from iodaemon.doctor.scratch import scratch_cgroup
from iodaemon.node.feature import CONTROLS
from iodaemon.node.root_side import NO_HIERARCHY, UNDELEGATED, UNIFIED, UNUSABLE, find_lack
from iodaemon.node.sampler.proc_files import read_mounts
from iodaemon.supervisor import cgroup, systemd

CONTROLLERS: Final = tuple(each for each in CONTROLS if each.name in cgroup.CONTROLLERS)
"""What each would give, and what it costs to do without."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Where this process stands in the hierarchy.

    Attributes:
        mount: where cgroup v2 is mounted; None: nowhere.
        has_v1: hierarchies of version 1 are mounted as well, and hold controllers.
        home: directory of this process's cgroup; None where there is none to be seen.
        problem: why there is none, or no child could be put into one made there; empty: it could.
        controllers: those that a cgroup made there has; of a home in which none can be made,
            those that it has itself.
        undelegated: the unit that it is in, where systemd has not delegated that.
        owner_uid: of the directory; None: there is none.
    """

    mount: str | None = None
    has_v1: bool = False
    home: str | None = None
    problem: str = ""
    controllers: tuple[str, ...] = ()
    undelegated: str = ""
    owner_uid: int | None = None

    @property
    def usable_home(self) -> str | None:
        """Where a cgroup may be made; None: nowhere."""
        return None if self.problem else self.home


def probe_cgroups() -> Reading:
    """Look at the hierarchy, and try to make a cgroup and to put a child into it."""
    has_v1, mount = any(each.filesystem == "cgroup" for each in read_mounts()), None
    try:
        mount, _ = cgroup.find_mount()
        home = cgroup.find_own_cgroup()
    except OSError as error:
        return Reading(mount=mount, has_v1=has_v1, problem=error.strerror or str(error))
    problem, controllers = _try_out(home)
    return Reading(
        mount=mount,
        has_v1=has_v1,
        home=home,
        problem=problem,
        controllers=controllers,
        undelegated=_find_undelegated(home),
        owner_uid=os.stat(home).st_uid,
    )


def _find_undelegated(home: str) -> str:
    """The unit that it is in, where systemd has not handed that over; else empty."""
    unit = systemd.find_unit(home) if systemd.is_booted() else None
    return "" if unit is None or systemd.is_delegated(unit) else os.path.basename(unit)


def _try_out(home: str) -> tuple[str, tuple[str, ...]]:
    """Why no child can be put into a cgroup made here, and which controllers there are."""
    try:
        with scratch_cgroup(home) as base, a_child() as child:
            child.ask("enter", procs=f"{base}/jobs/cgroup.procs")
            return "", _controllers(base)
    except OSError as error:
        problem = f"no cgroup can be used in {home} ({error.strerror or error})"
        return problem, _controllers(home)


def _controllers(directory: str) -> tuple[str, ...]:
    try:
        with open(f"{directory}/cgroup.controllers") as file:
            return tuple(file.read().split())
    except OSError:  # it is gone, or hidden
        return ()


def judge_cgroups(reading: Reading) -> Iterator[Finding]:
    """The hierarchy, the own subtree, whose it is, and the controllers in it."""
    yield _judge_mount(reading)
    yield _judge_subtree(reading)
    if reading.usable_home is not None:
        yield _judge_delegation(reading)
    yield _judge_controllers(reading)


def _judge_mount(reading: Reading) -> Finding:
    if reading.mount is None:
        return _lacking("cgroup v2", reading.problem, NO_HIERARCHY)
    beside = ", beside version 1" if reading.has_v1 else ""
    return ok("cgroup v2", f"mounted at {reading.mount}{beside}", {"mount": reading.mount})


def _judge_subtree(reading: Reading) -> Finding:
    what = "cgroup subtree"
    if reading.problem:
        code = NO_HIERARCHY if reading.mount is None else UNUSABLE
        return _lacking(what, reading.problem, code)
    return ok(what, f"a child was put into a cgroup made in {reading.home}")


def _judge_delegation(reading: Reading) -> Finding:
    what = "cgroup delegation"
    values = {"is_delegated": not reading.undelegated, "owner_uid": reading.owner_uid}
    if reading.undelegated:
        told = f"{reading.home} is in {reading.undelegated}, which systemd has not delegated"
        return _lacking(what, told, UNDELEGATED, values, unit=reading.undelegated)
    owner = f"{reading.home} belongs to uid {reading.owner_uid}"
    return ok(what, f"{owner}; systemd does not hold it for its own", values)


def _lacking(
    what: str, told: str, code: str, values: Values = NO_VALUES, *, unit: str | None = None
) -> Finding:
    """What a supervisor that is begun here would lack."""
    lack = find_lack({"lack": code, "unit": unit})
    assert lack is not None
    return lacking(what, told, values, cost=lack.cost, remedy=lack.remedy)


def _judge_controllers(reading: Reading) -> Finding:
    what = "cgroup controllers"
    names = [controller.name for controller in CONTROLLERS]
    there = [name for name in names if name in reading.controllers]
    missing = [each for each in CONTROLLERS if each.name not in there]
    values: Values = {name: name in there for name in names}
    if not missing:
        return ok(what, " ".join(there), values)
    v1 = "; version 1 has them" if reading.has_v1 else ""
    return lacking(
        what,
        f"{' '.join(there) or 'none'} of {' '.join(names)}{v1}",
        values,
        cost="; ".join(f"no {each.name}: {each.cost}" for each in missing),
        remedy=(UNIFIED if reading.has_v1 else f"systemd: Delegate={' '.join(names)}"),
    )
