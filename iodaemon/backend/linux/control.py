"""What a kernel may offer besides, in words: what is gained by it, and what is done without."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from iodaemon.supervisor.cgroup import CAP, PRESSURE


class Control(NamedTuple):
    """One thing that jobs' cgroups may have.

    Attributes:
        name: of the controller, or ``pressure``.
        what: what it is about; a stable name.
        gives: what is done with it.
        instead: what is done without it.
        cost: what that costs.
    """

    name: str
    what: str
    gives: str
    instead: str
    cost: str


CONTROLS: Final = (
    Control(
        "cpuset",
        "socket fence",
        "cpuset of the job's cgroup: it stays in what [topology] fence says, but by a scope of its "
        "user's own systemd",
        "none: a job is put on its socket, and may leave it",
        "a job can move to other sockets' CPUs and memory (taskset, numactl)",
    ),
    Control(
        "io",
        "job disk bytes",
        "io.stat of the job's cgroup, leaf disks: written back and swapped pages included",
        "not counted",
        "what reaches the disks later than it was written (write-back, swap) is nobody's",
    ),
    Control(
        "memory",
        "memory limit",
        "memory.max of the job's cgroup, as --mem says; memory.events tell OUT_OF_MEMORY",
        "none: --mem limits nothing, and a job that is killed for memory has FAILED",
        "one job can take the memory of all, and its end does not say why",
    ),
    Control(
        "pids",
        "process limit",
        "pids.max of the job's cgroup, as max_processes says; at most a quarter of the machine's",
        "none: a job may have as many processes as its user",
        "one job that forks without end leaves other jobs no process",
    ),
    Control(
        PRESSURE,
        "job pressure",
        "io.pressure and memory.pressure of the job's cgroup",
        "not counted",
        "how long a job waits for its disk is not known",
    ),
    Control(
        CAP,
        "job disk cap",
        "io.max of the job's cgroup: a job with --no-suspend that is one too many for a disk is "
        "slowed down",
        "none: a job with --no-suspend is not regulated",
        "such a job keeps all it can get of a disk that others wait for",
    ),
)


COUNT_PRESSURE: Final = "boot with psi=1 (Linux 4.20 or newer, CONFIG_PSI)"
"""What makes the kernel count the stall times, of the machine and of each cgroup."""


def words_of(controls: Collection[str]) -> dict[str, str]:
    """What is done about each, by its stable name with underscores.

    Args:
        controls: names of those that jobs' cgroups have.
    """
    return {
        control.what.replace(" ", "_"): control.gives
        if control.name in controls
        else control.instead
        for control in CONTROLS
    }


def flags_of(controls: Collection[str]) -> dict[str, bool]:
    """Whether each is there, by its name."""
    return {control.name: control.name in controls for control in CONTROLS}
