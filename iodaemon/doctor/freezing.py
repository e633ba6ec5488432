"""Whether a job can be brought to a standstill, and goes on afterwards.

By the supervisor's two means, on a child that spins: its CPU time must stand still, then move.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from iodaemon.doctor.child import Child, a_child, cpu_s, wait_for
from iodaemon.doctor.finding import Finding, Verdict, judge, lacking
from iodaemon.doctor.scratch import scratch_cgroup
from iodaemon.node.root_side import BY_SIGNALS
from iodaemon.supervisor.cgroup import Cgroups
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Limits
from iodaemon.supervisor.reap import read_state

WITHIN_S: Final = 1.0
"""A spinning process freezes in about a millisecond, and gets the CPU again in a few."""
WATCH_S: Final = 0.06
"""How long it is watched standing still."""
MOST_CPU_S: Final = 0.001
"""Of the watched time; what a stopped task may still need to get out of the kernel's way."""
_KEY: Final = Key(1, 1)

Means = Literal["cgroup", "signals"]


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a process that was stopped and let go.

    Attributes:
        freeze_s: until it stood still, as far as the means itself knows; None: never.
        still_cpu_s: CPU time it used while it was watched standing still.
        thaw_s: from letting it go until it used the CPU; None: never.
    """

    freeze_s: float | None
    still_cpu_s: float
    thaw_s: float | None


def probe_freezing(means: Means, cgroup_home: str | None) -> Standstill | None:
    """Stop a child and let it go; None: there is no cgroup to do it with.

    Raises:
        OSError: the kernel refuses it.
    """
    if means == "signals":
        with a_child() as child:
            pid = _spin(child, None)
            hold = _Hold(
                freeze=lambda: os.kill(pid, signal.SIGSTOP),
                is_still=lambda: (read_state(pid) or "?")[0] == "T",
                thaw=lambda: os.kill(pid, signal.SIGCONT),
            )
            return _try_out(pid, hold)
    if cgroup_home is None:
        return None
    with scratch_cgroup(cgroup_home) as base, a_child() as child:
        cgroups = Cgroups(base)
        try:
            opened, _ = cgroups.prepare(_KEY, Limits())
            os.close(opened)
            hold = _Hold(
                freeze=lambda: cgroups.freeze(_KEY),
                is_still=lambda: cgroups.look(_KEY).is_frozen,
                thaw=lambda: cgroups.thaw(_KEY),
            )
            return _try_out(_spin(child, f"{cgroups.path(_KEY)}/cgroup.procs"), hold)
        finally:
            os.close(cgroups.fd)


class _Hold(NamedTuple):
    """How one process is brought to a standstill."""

    freeze: Callable[[], None]
    is_still: Callable[[], bool]
    thaw: Callable[[], None]


def _spin(child: Child, procs: str | None) -> int:
    pid: int = child.ask("spin", procs=procs)["pid"]
    _await_progress(pid)
    return pid


def _try_out(pid: int, hold: _Hold) -> Standstill:
    start_s = time.monotonic()
    hold.freeze()
    is_frozen = wait_for(hold.is_still, WITHIN_S)
    freeze_s = None if is_frozen is None else time.monotonic() - start_s
    before_s = cpu_s(pid)
    time.sleep(WATCH_S)
    still_cpu_s = cpu_s(pid) - before_s
    hold.thaw()
    return Standstill(freeze_s=freeze_s, still_cpu_s=still_cpu_s, thaw_s=_await_progress(pid))


def _await_progress(pid: int) -> float | None:
    """Until it has used the CPU, s; None: it does not get it."""
    before_s = cpu_s(pid)
    return wait_for(lambda: cpu_s(pid) > before_s, WITHIN_S)


def judge_freezing(means: Means, reading: Standstill | None) -> Finding:
    """That of the cgroup is to be had; that of signals always is."""
    what = f"freeze by {means}"
    if reading is None:
        return lacking(
            what,
            "no cgroup can be made",
            cost=BY_SIGNALS,
            remedy="see 'cgroup subtree'",
        )
    shown, works = _describe(reading)
    values = {name: getattr(reading, name) for name in Standstill.__struct_fields__}
    held = "see whether a debugger or a sandbox holds processes here"
    return judge(
        works,
        what,
        shown,
        values,
        cost="jobs cannot be suspended by it",
        remedy='set suspend_by = "signals"' if means == "cgroup" else held,
        verdict=Verdict.BROKEN,
    )


def _describe(reading: Standstill) -> tuple[str, bool]:
    if reading.freeze_s is None:
        return f"a process did not stand still within {WITHIN_S:g} s", False
    used = f"used {reading.still_cpu_s * 1000:.1f} ms of CPU in {WATCH_S * 1000:.0f} ms after that"
    stood = f"stood still after {reading.freeze_s * 1000:.1f} ms, {used}"
    if reading.thaw_s is None:
        return f"{stood}, did not go on within {WITHIN_S:g} s", False
    went = f"went on {reading.thaw_s * 1000:.1f} ms after the thaw"
    return f"{stood}, {went}", reading.still_cpu_s <= MOST_CPU_S
