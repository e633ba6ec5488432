"""What cgroup v2 gives to this process, and whether a job can be brought to a standstill.

Documentation/admin-guide/cgroup-v2.rst; the mark ``user.delegate`` is systemd's (systemd.exec(5),
"Delegate").
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from iodaemon.doctor.child import Child, a_child
from iodaemon.doctor.report import Finding, Verdict, judge, lacking, ok
from iodaemon.doctor.scratch import scratch_cgroup
from iodaemon.node.feature import CONTROLS
from iodaemon.node.root_side import (
    BY_SIGNALS,
    NO_HIERARCHY,
    UNDELEGATED,
    UNIFIED,
    UNUSABLE,
    find_lack,
)
from iodaemon.node.sampler.proc_files import find_state, read_mounts
from iodaemon.supervisor import cgroup, systemd
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Limits

_CONTROLLERS: Final = tuple(each for each in CONTROLS if each.name in cgroup.CONTROLLERS)
"""What each would give, and what it costs to do without."""
_WITHIN_S: Final = 1.0
"""A spinning process freezes in about a millisecond, and gets the CPU again in a few."""
_LOOK_S: Final = 0.0005
_WATCH_S: Final = 0.06
"""How long it is watched standing still."""
_MOST_CPU_S: Final = 0.001
"""Of the watched time; what a stopped task may still need to get out of the kernel's way."""
_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED of a whole process; the clock's id is ``~pid << 3 | 2`` (clock_getcpuclockid)."""
_KEY: Final = Key(1, 1)


class Reading(NamedTuple):
    """Where this process stands in the hierarchy.

    Attributes:
        mount: where cgroup v2 is mounted; None: nowhere.
        has_v1: hierarchies of version 1 are mounted as well, and hold controllers.
        home: directory of this process's cgroup; None where there is none to be seen.
        problem: why there is none, or no child could be put into one made there; empty: it could.
        controllers: those that a cgroup made there has; of a home in which none can be made,
            those that it has itself.
        undelegated: the unit that it is in, where systemd has not delegated that; else empty.
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
        owner_uid = os.stat(home).st_uid
    except OSError as error:
        return Reading(mount, has_v1, problem=error.strerror or str(error))
    problem = ""
    try:
        with scratch_cgroup(home) as base, a_child() as child:
            child.ask("enter", procs=f"{base}/jobs/cgroup.procs")
            controllers = _controllers(base)
    except OSError as error:
        problem = f"no cgroup can be used in {home} ({error.strerror or error})"
        controllers = _controllers(home)
    unit = systemd.find_unit(home) if systemd.is_booted() else None
    undelegated = "" if unit is None or systemd.is_delegated(unit) else os.path.basename(unit)
    return Reading(mount, has_v1, home, problem, controllers, undelegated, owner_uid)


def _controllers(directory: str) -> tuple[str, ...]:
    try:
        return tuple(Path(directory, "cgroup.controllers").read_text().split())
    except OSError:  # it is gone, or hidden
        return ()


def judge_cgroups(reading: Reading) -> Iterator[Finding]:
    home = reading.home
    if reading.mount is None:
        yield _lacking("cgroup v2", reading.problem, NO_HIERARCHY)
    else:
        beside = ", beside version 1" if reading.has_v1 else ""
        yield ok("cgroup v2", f"mounted at {reading.mount}{beside}", {"mount": reading.mount})
    if reading.problem:
        code = NO_HIERARCHY if reading.mount is None else UNUSABLE
        yield _lacking("cgroup subtree", reading.problem, code)
    else:
        yield ok("cgroup subtree", f"a child was put into a cgroup made in {home}")
        yield _judge_delegation(reading)
    there = [each.name for each in _CONTROLLERS if each.name in reading.controllers]
    missing = [each for each in _CONTROLLERS if each.name not in there]
    names = " ".join(each.name for each in _CONTROLLERS)
    v1 = "; version 1 has them" if reading.has_v1 else ""
    yield judge(
        not missing,
        "cgroup controllers",
        f"{' '.join(there) or 'none'} of {names}{v1}" if missing else names,
        {each.name: each.name in there for each in _CONTROLLERS},
        cost="; ".join(f"no {each.name}: {each.cost}" for each in missing),
        remedy=UNIFIED if reading.has_v1 else f"systemd: Delegate={names}",
    )


def _judge_delegation(reading: Reading) -> Finding:
    what, home, unit = "cgroup delegation", reading.home, reading.undelegated
    values = {"is_delegated": not unit, "owner_uid": reading.owner_uid}
    if unit:
        told = f"{home} is in {unit}, which systemd has not delegated"
        return _lacking(what, told, UNDELEGATED, unit)._replace(values=values)
    owner = f"{home} belongs to uid {reading.owner_uid}"
    return ok(what, f"{owner}; systemd does not hold it for its own", values)


def _lacking(what: str, told: str, code: str, unit: str | None = None) -> Finding:
    """With the advice for a supervisor that is begun here."""
    lack = find_lack({"lack": code, "unit": unit})
    assert lack is not None
    return lacking(what, told, cost=lack.cost, remedy=lack.remedy)


# -- a standstill ----------------------------------------------------------------------------------


def check_freezing_by_signals() -> Finding:
    """Stop a child that spins and let it go: its CPU time must stand still, then move."""
    with a_child() as child:
        pid = child.pid
        return _try_out(
            child,
            "freeze by signals",
            freeze=lambda: os.kill(pid, signal.SIGSTOP),
            is_still=lambda: find_state(pid) == "T",
            thaw=lambda: os.kill(pid, signal.SIGCONT),
            instead="see whether a debugger or a sandbox holds processes here",
        )


def check_freezing_by_cgroup(home: str | None) -> Finding:
    """Likewise, as the supervisor does it, in a cgroup made here."""
    what = "freeze by cgroup"
    if home is None:
        remedy = "see 'cgroup subtree'"
        return lacking(what, "no cgroup can be made", cost=BY_SIGNALS, remedy=remedy)
    with scratch_cgroup(home) as base, a_child() as child:
        cgroups = cgroup.Cgroups(base)
        try:
            opened, _ = cgroups.prepare(_KEY, Limits())
            os.close(opened)
            child.ask("enter", procs=f"{cgroups.path(_KEY)}/cgroup.procs")
            return _try_out(
                child,
                what,
                freeze=lambda: cgroups.freeze(_KEY),
                is_still=lambda: cgroups.look(_KEY).is_frozen,
                thaw=lambda: cgroups.thaw(_KEY),
                instead='set suspend_by = "signals"',
            )
        finally:
            os.close(cgroups.fd)


def _try_out(
    child: Child,
    what: str,
    *,
    freeze: Callable[[], None],
    is_still: Callable[[], bool],
    thaw: Callable[[], None],
    instead: str,
) -> Finding:
    child.ask("spin")
    _await_progress(child.pid)
    start_s = time.monotonic()
    freeze()
    is_frozen = _wait_for(is_still, _WITHIN_S)
    freeze_s = None if is_frozen is None else time.monotonic() - start_s
    before_s = _cpu_s(child.pid)
    time.sleep(_WATCH_S)
    still_cpu_s = _cpu_s(child.pid) - before_s
    thaw()
    return judge_freezing(what, freeze_s, still_cpu_s, _await_progress(child.pid), instead)


def _await_progress(pid: int) -> float | None:
    """Until it has used the CPU, s; None: it does not get it."""
    before_s = _cpu_s(pid)
    return _wait_for(lambda: _cpu_s(pid) > before_s, _WITHIN_S)


def _cpu_s(pid: int) -> float:
    """CPU time that a process has used (its own clock, to the ns)."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def _wait_for(holds: Callable[[], bool], within_s: float) -> float | None:
    """How long it took until it held, s; None: it did not within this time."""
    start_s = time.monotonic()
    while not holds():
        if time.monotonic() - start_s > within_s:
            return None
        time.sleep(_LOOK_S)
    return time.monotonic() - start_s


def judge_freezing(
    what: str, freeze_s: float | None, still_cpu_s: float, thaw_s: float | None, instead: str
) -> Finding:
    """Whether it stood still, and went on.

    Args:
        freeze_s: until it stood still, as far as the means itself knows; None: never.
        still_cpu_s: CPU time it used while it was watched standing still.
        thaw_s: from letting it go until it used the CPU; None: never.
        instead: what to do where that does not work.
    """
    if freeze_s is None:
        shown = f"a process did not stand still within {_WITHIN_S:g} s"
    else:
        used = f"used {still_cpu_s * 1000:.1f} ms of CPU in {_WATCH_S * 1000:.0f} ms after that"
        shown = f"stood still after {freeze_s * 1000:.1f} ms, {used}, "
        if thaw_s is None:
            shown += f"did not go on within {_WITHIN_S:g} s"
        else:
            shown += f"went on {thaw_s * 1000:.1f} ms after the thaw"
    return judge(
        freeze_s is not None and thaw_s is not None and still_cpu_s <= _MOST_CPU_S,
        what,
        shown,
        {"freeze_s": freeze_s, "still_cpu_s": still_cpu_s, "thaw_s": thaw_s},
        cost="jobs cannot be suspended by it",
        remedy=instead,
        verdict=Verdict.BROKEN,
    )
