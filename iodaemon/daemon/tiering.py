"""The tiers of the configuration as they are on this machine, when the daemon starts."""

from __future__ import annotations

import logging

from iodaemon.config import Config
from iodaemon.config.tier import build_tiers
from iodaemon.core.tier import Tier

log = logging.getLogger(__name__)


def live_tiers(config: Config) -> tuple[Tier, ...]:
    """Fastest first; of the simulated backend nothing is looked at.

    Raises:
        ConfigError: a disk cannot be used: one line that says what to do.
    """
    if not config.tier:
        return ()
    if config.backend == "simulated":
        return build_tiers(config.tier, None)
    from iodaemon.backend.linux.tier_disk import find_witness, probe_disk

    witness = find_witness(config.keeper_state) if config.is_system else None
    sees = not config.is_system or witness is not None
    facts = {
        disk.path: probe_disk(disk.path, by_mount=sees, seen_by=witness)
        for table in config.tier.values()
        for disk in table.disk
    }
    tiers = build_tiers(config.tier, facts)
    for tier in tiers:
        disks = () if tier.storage is None else tier.storage.disks
        for disk in disks:
            log.info(
                "event=disk tier=%s path=%s kind=%s capacity_bytes=%d",
                tier.name,
                disk.id,
                disk.kind,
                disk.capacity_bytes,
            )
    return tiers
