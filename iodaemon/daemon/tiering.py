"""The tiers of the configuration as they are on this machine, when the daemon starts."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from iodaemon.config import Config
from iodaemon.config.tier import build_tiers, describe_disk, find_shortage
from iodaemon.core.job import Job
from iodaemon.core.tier import DiskFacts, Tier

log = logging.getLogger(__name__)


def live_tiers(config: Config, jobs: Iterable[Job]) -> tuple[Tier, ...]:
    """Fastest first; of the simulated backend nothing is looked at.

    What a disk has not that is promised of it is told.

    Args:
        config: in force.
        jobs: as the journal has them.

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
    promised = _promised(jobs)
    tiers = build_tiers(config.tier, facts, promised)
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
    _warn(config, facts, promised)
    return tiers


def _promised(jobs: Iterable[Job]) -> dict[str, int]:
    """What jobs hold of each disk, bytes."""
    held: dict[str, int] = {}
    for share in (share for job in jobs for share in job.shares):
        held[share.disk] = held.get(share.disk, 0) + share.size_bytes
    return held


def _warn(config: Config, facts: Mapping[str, DiskFacts], promised: Mapping[str, int]) -> None:
    """In the words of ``iod doctor``."""
    for name, table in config.tier.items():
        for disk in table.disk:
            held, found = promised.get(os.path.normpath(disk.path), 0), facts[disk.path]
            if (lack := find_shortage(disk, found, held)) is not None:
                shown = f"tier {name}: {describe_disk(disk, found)}"
                log.warning('event=warned text="%s: %s; %s"', shown, lack.cost, lack.remedy)
