"""What systemd has to do with the root side. Without systemd there is nothing of it.

The jobs of a service are in a scope of their own, ``iodaemon-jobs.scope``, delegated and never
restarted: a unit with live cgroups below it and controllers handed down cannot be started again,
for systemd finds its own place taken (EBUSY). The scope lives while a process is in it: one that
sleeps, the placeholder, makes sure of that. Its death is the sign that the scope is being stopped.
``systemctl stop iodaemon-jobs.scope`` ends all jobs.

systemd marks the cgroup of a unit that it has handed over with the attribute ``user.delegate``
(systemd 251, Linux 5.6; before that with ``trusted.delegate``, which only root reads). A unit
without it may be writable all the same, for root and below a user's manager.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from typing import Final

from iodaemon.supervisor.syscalls import has_ended

SCOPE: Final = "iodaemon-jobs.scope"
SLICE: Final = "iodaemon.slice"
"""Where an administrator can limit all jobs together."""
_PROPERTIES: Final = (
    "Delegate=yes",
    "Before=iodaemon.service",  # stopped after it: at a shutdown the daemon sees no job die
    "TimeoutStopSec=30s",
)
_START_WITHIN_S: Final = 30.0
_LOOK_S: Final = 0.01
_NOTIFY_S: Final = 0.2
"""For which systemd may leave its queue full."""
_MARKS: Final = ("user.delegate", "trusted.delegate")
_PERCENT_OF_ALL: Final = 80
"""For all jobs together: the rest is the system's, so that root can still log in."""
_OF_THE_MACHINE: Final = ("kernel/pid_max", "kernel/threads-max")
"""/proc/sys: numbers that there are, and tasks that the memory is thought to suffice for."""


def is_booted() -> bool:
    """Whether systemd is this machine's first process (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def find_unit(directory: str) -> str | None:
    """The cgroup of the unit that a cgroup is in or is, by its name; None: it is in none."""
    while directory not in ("/", ""):
        if directory.endswith((".service", ".scope")):
            return directory
        directory = os.path.dirname(directory)
    return None


def is_delegated(unit: str) -> bool:
    """Whether systemd has handed it over; True where this kernel has no such marks."""
    for name in _MARKS:
        try:
            if os.getxattr(unit, name) == b"1":
                return True
        except OSError as error:
            if error.errno != errno.ENODATA:
                return True
    return False


# -- sd_notify(3) --------------------------------------------------------------------------------


def is_heard() -> bool:
    """Whether systemd waits for word of this unit, and so keeps it running (Restart=always)."""
    return os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@"))


def notify(*words: str) -> bool:
    """Tell systemd, for example ``READY=1``; False: it takes nothing now, or is not there."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not is_heard():
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(_NOTIFY_S)
            line.connect("\0" + address[1:] if address[0] == "@" else address)
            line.sendall("\n".join(words).encode())
    except OSError:
        return False
    return True


# -- the scope of all jobs -----------------------------------------------------------------------


class Scope:
    """The scope, by its cgroup, as one process of the root side has it."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._home = os.path.join(base, "placeholder")
        self._placeholder = -1

    def _is_there(self) -> bool:
        with contextlib.suppress(OSError), open(f"{self._base}/cgroup.events") as file:
            return "populated 1\n" in file.readlines()
        return False

    def make(self) -> None:
        """Have it made, unless a process is in it. Raises OSError: it cannot be."""
        if self._is_there():
            return
        starter = os.pidfd_open(_start())
        until_s = time.monotonic() + _START_WITHIN_S
        while not self._is_there():
            if has_ended(starter, _LOOK_S) or time.monotonic() > until_s:
                os.close(starter)
                raise OSError(errno.ESRCH, f"{SCOPE} cannot be started")
        os.close(starter)

    def settle(self) -> None:
        """Move the placeholder to a cgroup of its own: none may be where controllers are given on.

        Raises OSError: the cgroup cannot be used.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._home)
        for pid in _pids(self._base):
            with (
                contextlib.suppress(ProcessLookupError),
                open(f"{self._home}/cgroup.procs", "w") as file,
            ):
                file.write(str(pid))

    def watch(self) -> None:
        """From now on it is seen whether the placeholder dies."""
        for pid in _pids(self._home)[:1]:
            with contextlib.suppress(ProcessLookupError):
                self._placeholder = os.pidfd_open(pid)

    def is_being_stopped(self) -> bool | None:
        """None: nobody knows."""
        return None if self._placeholder < 0 else has_ended(self._placeholder)


def _start() -> int:
    """The process that becomes the placeholder, a child of the caller's."""
    words = [word for text in (*_PROPERTIES, _tasks_max()) for word in ("-p", text)]
    command = ["systemd-run", "--scope", "--collect", "--quiet", f"--unit={SCOPE}"]
    command += [f"--slice={SLICE}", "--description=Jobs of iodaemon", *words, "sleep", "infinity"]
    null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)
    actions = [null, (os.POSIX_SPAWN_DUP2, 0, 1)]
    return os.posix_spawnp(
        command[0], command, os.environ, file_actions=actions, setsid=True, setsigmask=()
    )


def _tasks_max() -> str:
    """More than systemd's own default, 15 % of the machine: one job may have more than that.

    A number: of ``80%``, 8 % were left on systemd 252 in a run with several daemon-reloads.
    """
    count = count_tasks()
    return f"TasksMax={'infinity' if count is None else max(1, count * _PERCENT_OF_ALL // 100)}"


def count_tasks() -> int | None:
    """How many processes and threads the machine can have; None: it does not say."""
    numbers = []
    for name in _OF_THE_MACHINE:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/sys/{name}") as file:
            numbers.append(int(file.read()))
    return min(numbers, default=None)


def _pids(cgroup: str) -> list[int]:
    try:
        with open(f"{cgroup}/cgroup.procs") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
