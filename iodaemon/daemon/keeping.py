"""The keeper as it is configured; as a service of the system, begun, and done without.

The configuration is read here, by a process with all libraries; the keeper that takes its place
has the standard library alone.
"""

from __future__ import annotations

import os
import pwd
from typing import Final, NoReturn

from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.grip import Grip
from iodaemon.backend.linux.keeper_command import KeeperSpec, keeper_command
from iodaemon.backend.linux.means import freezer_of
from iodaemon.config import Config
from iodaemon.errors import ConfigError

SERVICE_USER: Final = "iodaemon"
"""Whom the keeper obeys (systemd/sysusers.conf)."""


def keeper_spec(config: Config) -> KeeperSpec:
    """The keeper that is configured."""
    return KeeperSpec(
        state=config.keeper_state,
        socket=config.keeper_socket,
        grace_s=config.orphan_grace_s,
        means=config.suspend_by,
        is_service=config.is_system,
    )


def become_keeper(config: Config) -> NoReturn:
    """Replace this process by the keeper.

    Raises:
        ConfigError: it could do nothing.
    """
    try:
        daemon = pwd.getpwnam(SERVICE_USER)
    except KeyError as error:
        raise ConfigError(
            f"there is no user {SERVICE_USER!r}; run systemd-sysusers, or install the service anew"
        ) from error
    if os.geteuid() != 0:
        raise ConfigError("the keeper of the system's service runs as root; systemd starts it")
    identity = (daemon.pw_uid, daemon.pw_gid, config.min_uid)
    command = keeper_command(keeper_spec(config), *identity)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def thaw_all(config: Config) -> int:
    """Let every job of this keeper run on, with no keeper's help; how many there are.

    Raises:
        ConfigError: it may not look at them.
    """
    directories = JobDirectories(keeper_spec(config).jobs)
    try:
        keys = directories.unfinished()
    except FileNotFoundError:
        return 0
    except PermissionError as error:
        raise ConfigError(f"{directories.path} may not be read; run this as root") from error
    for key in keys:
        record = directories.shim_record(key)  # also of one whose record cannot be read
        if record is not None:
            Grip(directories, freezer_of(record, directories)).thaw(key)
    return len(keys)
