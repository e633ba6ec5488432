"""Limits and abilities of processes: open files, and learning how a stranger's process ended."""

from __future__ import annotations

import os
import resource
import subprocess
from typing import Final

from iodaemon.backend.linux.condition import FEW_FILES
from iodaemon.backend.linux.pidfd import find_exit
from iodaemon.core.job import Exit
from iodaemon.doctor.finding import Finding, lacking, ok

_FILES_PER_JOB: Final = 8
"""Descriptors the daemon holds of a running job of one or two processes."""
LEAST_FILES: Final = 4096
"""Some 500 running jobs."""
_CODE: Final = 42


def probe_files() -> tuple[int, int]:
    """Soft and hard limit of open files; -1: none."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def judge_files(soft: int, hard: int) -> Finding:
    """By the hard limit, up to which the daemon raises its own."""
    is_endless = hard == resource.RLIM_INFINITY
    room = "any number of" if is_endless else f"about {hard // _FILES_PER_JOB}"
    limits = "none" if is_endless else f"{soft}, up to {hard}"
    shown = f"{limits}; room for {room} running jobs"
    values = {"soft": soft, "hard": hard}
    if is_endless or hard >= LEAST_FILES:
        return ok("open files", shown, values)
    return lacking(
        "open files",
        shown,
        values,
        cost="beyond that no job starts, and nothing is measured of those that have begun",
        remedy=FEW_FILES.cure,
    )


def probe_exit() -> Exit:
    """What the kernel tells by a pidfd of a child that somebody else has waited for already."""
    with subprocess.Popen(["/bin/sh", "-c", f"exit {_CODE}"]) as process:
        fd = os.pidfd_open(process.pid)
        process.wait()
    try:
        return find_exit(fd)
    finally:
        os.close(fd)


def judge_exit(found: Exit) -> Finding:
    """It told the code, or nothing."""
    what = "exit by pidfd"
    if found.code == _CODE:
        return ok(what, f"exit code {_CODE} was told after the process was gone")
    return lacking(
        what,
        "the kernel tells nothing of a process that is gone",
        cost="a job whose shim is killed ends as LOST, its exit unknown",
        remedy="use Linux 6.15 or newer",
    )
