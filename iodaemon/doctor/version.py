"""Whether the kernel is new enough, and whether users can run our Python."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from iodaemon.doctor.finding import Finding, Verdict, broken, judge, lacking, ok
from iodaemon.install.program import find_flaw
from iodaemon.node import staging
from iodaemon.node.condition import Condition
from iodaemon.node.root_side import BY_SIGNALS

LEAST_KERNEL: Final = (5, 3)
"""pidfd_open(2); without it a process can be mistaken for a later one with its number."""
KILL_KERNEL: Final = (5, 14)
"""cgroup.kill; without it the daemon does without cgroups."""

Version = tuple[int, int]


def judge_kernel(release: str) -> Finding:
    """By its release, as ``uname -r`` shows it."""
    version = parse_version(release) or (0, 0)
    is_usable = version >= LEAST_KERNEL
    return judge(
        version >= KILL_KERNEL,
        "kernel",
        f"Linux {release}",
        {"release": release},
        cost=f"{BY_SIGNALS} (cgroup.kill is Linux 5.14)"
        if is_usable
        else "processes cannot be told apart safely (pidfd_open is Linux 5.3)",
        remedy="use Linux 5.14 or newer",
        verdict=Verdict.LACKING if is_usable else Verdict.BROKEN,
    )


def find_flaw_of_python() -> Condition | None:
    """Why not all users can run what jobs begin with that have space of a tier (``staging``)."""
    package = Path(staging.__file__).parents[1]
    return find_flaw((sys.executable, os.__file__, str(package)))


def judge_python_of_users(flaw: Condition | None, *, has_tiers: bool) -> Finding:
    """Whether they can, and nobody else can change it.

    Args:
        flaw: why not; None: they can.
        has_tiers: there are jobs that need it.
    """
    what = "Python for users"
    if flaw is None:
        return ok(what, f"all users may run {sys.executable}", {"path": sys.executable})
    cost = "jobs with --scratch or --fast fail: they begin with this program, as their users"
    tell = broken if has_tiers else lacking
    return tell(what, flaw.fact, {"path": sys.executable}, cost=cost, remedy=flaw.cure)


def parse_version(text: str) -> Version | None:
    """The first two numbers; None: it does not begin with them."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return None if match is None else (int(match[1]), int(match[2]))
