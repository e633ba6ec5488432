"""The jobs' own systemd scope: a delegated cgroup that outlives the keeper's unit.

A unit with live cgroups below it and controllers handed down cannot be started again: systemd
finds its own place taken (EBUSY). So the jobs are in no unit that is ever restarted. The scope
lives while a process is in it; one that sleeps makes sure of that, and the idle shims.
``systemctl stop iodaemon-jobs.scope`` ends all jobs. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Final

from iodaemon.backend.linux.delegation import UNDELEGATED, find_undelegated
from iodaemon.backend.linux.freezer import CgroupFreezer
from iodaemon.backend.linux.process_limit import most_of_all

UNIT: Final = "iodaemon-jobs.scope"
SLICE: Final = "iodaemon.slice"
"""Where an administrator can limit all jobs together."""
_OPEN_WITHIN_S: Final = 30.0
_LOOK_S: Final = 0.01
_PROPERTIES: Final = (
    "Delegate=yes",
    "Before=iodaemon.service",  # stopped after it: at a shutdown the daemon sees no job die
    "TimeoutStopSec=30s",
)


def open_scope(hierarchy: str) -> CgroupFreezer:
    """The freezer that has the scope for its tree; the scope is made if there is none.

    Args:
        hierarchy: where cgroup v2 is mounted.

    Raises:
        OSError: it cannot be made; says why.
    """
    base = os.path.join(hierarchy, SLICE, UNIT)
    if not is_populated(base):
        _start(base)
    freezer = CgroupFreezer(base, hosts_keeper=False)
    freezer.open()
    for pid in _pids(base):  # no process may stay where controllers are handed down
        with contextlib.suppress(ProcessLookupError):
            _move(pid, os.path.join(base, "keeper"))
    freezer.take_controls()
    if find_undelegated(base):
        freezer.detail += f", {UNDELEGATED}"
    return freezer


def is_populated(base: str) -> bool:
    """True while a process is in the cgroup or below it (``cgroup.events``)."""
    try:
        with open(os.path.join(base, "cgroup.events")) as file:
            return "populated 1" in file.read().split("\n")
    except OSError:
        return False


def _start(base: str) -> None:
    words = [word for text in (*_PROPERTIES, _tasks_max()) for word in ("-p", text)]
    command = ["systemd-run", "--scope", "--collect", "--quiet", f"--unit={UNIT}"]
    command += [f"--slice={SLICE}", "--description=Jobs of iodaemon", *words, "sleep", "infinity"]
    starter = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until_s = time.monotonic() + _OPEN_WITHIN_S
    while starter.pid not in _pids(base):
        if starter.poll() is not None or time.monotonic() > until_s:
            starter.kill()
            _, said = starter.communicate()
            raise OSError(f"{UNIT} cannot be started: {said.decode(errors='replace').strip()}")
        time.sleep(_LOOK_S)
    assert starter.stderr is not None
    starter.stderr.close()
    starter.returncode = 0  # it stays, as a child that the keeper's pool collects in the end


def _tasks_max() -> str:
    """More than systemd's own default, 15 % of the machine: one job may have more than that.

    A number: of ``80%``, 8 % were left on systemd 252 in a run with several daemon-reloads.
    """
    most = most_of_all()
    return f"TasksMax={'infinity' if most is None else most}"


def _pids(cgroup: str) -> list[int]:
    try:
        with open(os.path.join(cgroup, "cgroup.procs")) as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _move(pid: int, cgroup: str) -> None:
    with open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
        file.write(str(pid))
