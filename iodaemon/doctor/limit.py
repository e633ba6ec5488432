"""How many files a process may open."""

from __future__ import annotations

import resource
from typing import Final

from iodaemon.doctor.finding import Finding, judge
from iodaemon.node.condition import FEW_FILES

_FILES_PER_JOB: Final = 8
"""Descriptors the daemon holds of a running job of one or two processes."""
LEAST_FILES: Final = 4096
"""Some 500 running jobs."""


def probe_files() -> tuple[int, int]:
    """Soft and hard limit of open files; -1: none."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def judge_files(soft: int, hard: int) -> Finding:
    """By the hard limit, up to which the daemon raises its own."""
    is_endless = hard == resource.RLIM_INFINITY
    room = "any number of" if is_endless else f"about {hard // _FILES_PER_JOB}"
    limits = "none" if is_endless else f"{soft}, up to {hard}"
    shown = f"{limits}; room for {room} running jobs"
    return judge(
        is_endless or hard >= LEAST_FILES,
        "open files",
        shown,
        {"soft": soft, "hard": hard},
        cost="beyond that no job starts, and nothing is measured of those that have begun",
        remedy=FEW_FILES.cure,
    )
