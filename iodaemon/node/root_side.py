"""Configures and starts the supervisor, thaws jobs without it, and says what its way of holding
jobs costs. The anchor that replaces this process imports the standard library only.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from iodaemon.config import Config
from iodaemon.errors import ConfigError
from iodaemon.node.condition import find_wrong_owner, of_error
from iodaemon.supervisor import anchor
from iodaemon.supervisor.systemd import SCOPE

SERVICE_USER: Final = "iodaemon"
"""The user whose daemon the service's supervisor obeys (systemd/sysusers.conf)."""
OUTPUT: Final = "output"
"""In the supervisor's directory, for jobs that name no output file."""
BY_SIGNALS: Final = (
    "jobs are suspended by SIGSTOP: a job can see that, and what leaves its tree goes on"
)
"""The cost of having no cgroups."""
NO_HIERARCHY, UNUSABLE, UNDELEGATED = "no_hierarchy", "unusable", "undelegated"
"""Words of ``lack`` (``supervisor.protocol``)."""
UNIFIED: Final = (
    "mount cgroup v2 without version 1 beside it (where systemd runs the machine: boot with "
    "systemd.unified_cgroup_hierarchy=1)"
)
_ANEW: Final = f"'systemctl stop {SCOPE}' when no job runs; the supervisor makes it anew, delegated"
_DELEGATE: Final = (
    "write Delegate=yes into [Service] of the daemon's unit and start it again, or run it by "
    "'systemd-run --user --scope -p Delegate=yes iod daemon'"
)


def supervisor_config(
    config: Config, *, daemon_uid: int | None = None, daemon_gid: int | None = None
) -> anchor.Config:
    """The supervisor's configuration. It obeys ``daemon_uid``, by default the caller.

    ``daemon_gid`` is the group of its socket; None for its user only.
    """
    by_signals = config.suspend_by == "signals"
    return anchor.Config(
        runtime=config.runtime_dir,
        daemon_uid=os.geteuid() if daemon_uid is None else daemon_uid,
        daemon_gid=daemon_gid,
        min_uid=config.min_uid if config.is_system else None,
        outputs=str(config.supervisor_state / OUTPUT),
        grace_s=config.orphan_grace_s,
        cgroup="none" if by_signals else "auto",
        is_service=config.is_system,
        state=config.state_dir,
    )


def become_supervisor(config: Config) -> NoReturn:
    """Replace this process by the anchor of the system's service; ConfigError if it cannot be."""
    try:
        daemon = pwd.getpwnam(SERVICE_USER)
    except KeyError as error:
        raise ConfigError(
            f"there is no user {SERVICE_USER!r}; run systemd-sysusers, or install the service anew"
        ) from error
    if os.geteuid() != 0:
        raise ConfigError("the supervisor of the system's service runs as root; systemd starts it")
    _prepare(config.supervisor_state)
    settings = supervisor_config(config, daemon_uid=daemon.pw_uid, daemon_gid=daemon.pw_gid)
    anchor.execute("anchor", [settings.dump()], [])


def _prepare(state: Path) -> None:
    """Make the supervisor's directory, which the daemon may enter and only root may change."""
    try:
        state.mkdir(mode=0o711, parents=True, exist_ok=True)
        wrong = find_wrong_owner(state, 0, (OUTPUT,), may_be_link=False)
        if wrong is None:
            state.chmod(state.stat().st_mode & 0o777 | 0o111)
    except OSError as error:
        raise ConfigError(f"{of_error(state, error)}, and start the supervisor again") from error
    if wrong is not None:
        raise ConfigError(f"{wrong}, and start the supervisor again")


def thaw_all(config: Config) -> int:
    """Thaw all jobs without a supervisor; returns how many. ConfigError without the right to."""
    try:
        return anchor.thaw_all(supervisor_config(config))
    except PermissionError as error:
        where = error.filename or config.runtime_dir
        raise ConfigError(f"{where} may not be used; run this as root") from error


class Lack(NamedTuple):
    """The cost of a way of holding jobs, and how to get a better one."""

    cost: str
    remedy: str


def find_lack(said: Mapping[str, Any]) -> Lack | None:
    """The cost of the supervisor's way of holding jobs, by its hello; None if there is none or it
    is configured so.
    """
    lack, better = said.get("lack"), _ANEW if said.get("unit") == SCOPE else _DELEGATE
    if lack == UNDELEGATED:
        cost = "systemd holds the cgroup for its own, and may remove or change what is made in it"
        return Lack(cost, better)
    if lack in (NO_HIERARCHY, UNUSABLE):
        return Lack(BY_SIGNALS, UNIFIED if lack == NO_HIERARCHY else better)
    return None
