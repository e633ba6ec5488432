"""Whom this daemon serves, from its configuration and the system's groups."""

from __future__ import annotations

import os
from typing import Final

from iodaemon.config import Config
from iodaemon.daemon.account import find_gid
from iodaemon.daemon.authorise import Rights

ADMIN_GROUP: Final = "iodaemon"
"""Its members act on all jobs (systemd/sysusers.conf)."""


def rights_of(config: Config) -> Rights:
    """A user's own daemon serves that user; the system's all, with their own rights."""
    if not config.is_system:
        return Rights(owner_uid=os.geteuid())
    return Rights(
        owner_uid=os.geteuid(),
        is_shared=True,
        admin_gid=find_gid(ADMIN_GROUP),
        min_uid=config.min_uid,
    )
