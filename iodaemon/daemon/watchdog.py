"""Tells systemd that the event loop still turns; a daemon that hangs is ended and begun anew."""

from __future__ import annotations

import asyncio

from iodaemon.systemd import find_watchdog_s, notify


async def feed_watchdog() -> None:
    """Until cancelled, twice in the time that systemd waits; without a watchdog, nothing."""
    limit_s = find_watchdog_s()
    while limit_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(limit_s / 2)
