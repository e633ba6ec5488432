"""Whom this daemon serves, from its configuration and the system's groups."""

from __future__ import annotations

import grp
import os
from typing import Final

from iodaemon.config import Config
from iodaemon.daemon.authorise import Rights

ADMIN_GROUP: Final = "iodaemon"
"""Its members act on all jobs (systemd/sysusers.conf)."""


def rights_of(config: Config) -> Rights:
    """A user's own daemon serves that user; the system's all, with their own rights."""
    if not config.is_system:
        return Rights(owner_uid=os.geteuid())
    try:
        admin_gid = grp.getgrnam(ADMIN_GROUP).gr_gid
    except KeyError:
        admin_gid = None
    return Rights(
        owner_uid=os.geteuid(), is_shared=True, admin_gid=admin_gid, min_uid=config.min_uid
    )
