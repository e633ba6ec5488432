"""Whether systemd has handed a cgroup over, and what is lost where it has not.

systemd marks a delegated unit's cgroup with the attribute ``user.delegate`` (systemd 251, Linux
5.6; before that with ``trusted.delegate``, which only root reads). A unit without it may be
writable all the same, for root and below a user's manager. Standard library only.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

UNDELEGATED: Final = "which systemd has not delegated"
"""Behind the place in ``Freezer.detail``."""
NO_HIERARCHY: Final = "cgroup v2 is not mounted"
BY_SIGNALS: Final = (
    "jobs are suspended by SIGSTOP: a job can see that, and what leaves its tree goes on"
)
"""What it costs to do without a cgroup."""
_AS_CONFIGURED: Final = "signals, as configured"
_MARKS: Final = ("user.delegate", "trusted.delegate")
_SCOPE: Final = "iodaemon-jobs.scope"


class Lack(NamedTuple):
    """What it costs to hold jobs in this way, and what would be better."""

    cost: str
    remedy: str


def find_undelegated(directory: str, *, is_systemd: bool | None = None) -> str:
    """The unit that this cgroup is in, if systemd manages it and has not delegated it; else empty.

    Args:
        directory: of the cgroup.
        is_systemd: systemd is this machine's first process; None: look (sd_booted(3)).
    """
    if is_systemd is None:
        is_systemd = os.path.isdir("/run/systemd/system")
    while is_systemd and directory not in ("/", ""):
        if directory.endswith((".service", ".scope")):
            return "" if _is_marked(directory) else os.path.basename(directory)
        directory = os.path.dirname(directory)
    return ""


def _is_marked(directory: str) -> bool:
    """True also where this kernel has no such marks: nobody knows then."""
    for name in _MARKS:
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError as error:
            if error.errno != errno.ENODATA:
                return True
    return False


def unusable(home: str, error: OSError) -> str:
    """Why jobs get no cgroup: none can be made and used in the directory of this process's own."""
    return f"no cgroup can be used in {home} ({error.strerror or error})"


def find_lack(detail: str) -> Lack | None:
    """What is worse than it could be with this way of suspending; None: nothing, or as asked for.

    Args:
        detail: of the keeper's freezer.
    """
    if detail.startswith("signals") and detail != _AS_CONFIGURED:
        cost = BY_SIGNALS
    elif UNDELEGATED in detail:
        cost = "systemd holds the cgroup for its own, and may remove or change what is made in it"
    else:
        return None
    return Lack(cost, _remedy(detail))


def _remedy(detail: str) -> str:
    if NO_HIERARCHY in detail:
        return "boot with systemd.unified_cgroup_hierarchy=1"
    if _SCOPE in detail:
        return f"'systemctl stop {_SCOPE}' when no job runs; the keeper makes it anew, delegated"
    return (
        "write Delegate=yes into [Service] of the daemon's unit and start it again, or run it by "
        "'systemd-run --user --scope -p Delegate=yes iod daemon'"
    )
