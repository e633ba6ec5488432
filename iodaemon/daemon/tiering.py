"""The tiers of the configuration as they are on this machine, when the daemon starts.

Later a disk is looked at again where it was found to be of no use, until it works.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from operator import ne
from pathlib import Path
from types import MappingProxyType
from typing import Final

from iodaemon.config import Config
from iodaemon.config.tier import (
    SHORTAGE,
    build_tiers,
    describe_disk,
    find_obstacles,
    find_problems,
    find_shortage,
)
from iodaemon.core import event as ev
from iodaemon.core.job import DiskId, Job, JobState
from iodaemon.core.storage import DiskFacts, Tier
from iodaemon.daemon.driver import Driver
from iodaemon.supervisor.disk_trouble import REPLACED, sentence
from iodaemon.supervisor.protocol import Message
from iodaemon.text import quoted

log = logging.getLogger(__name__)

_FIRST_LOOK_S: Final = 2.0
_LONG_START_S: Final = 5.0
_LAST_LOOK_S: Final = 60.0
Ask = Callable[..., Awaitable[Message]]
"""Asks the supervisor's helpers (wish ``scratch``)."""


def live_tiers(
    config: Config, facts: Mapping[str, DiskFacts] | None, jobs: Iterable[Job]
) -> tuple[Tier, ...]:
    """Fastest first. What a disk has not that is promised of it is told.

    ``facts`` are what was found at each disk's path; None: all of them are pretended.

    Raises:
        ConfigError: a disk cannot be used: one line that says what to do.
    """
    promised: Counter[str] = Counter()
    for share in (share for job in jobs for share in job.shares):
        promised[share.disk] += share.size_bytes
    tiers = build_tiers(config.tier, facts, promised)
    if facts is None:
        return tiers
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
    for name, table in config.tier.items():  # in the words of ``iod doctor``
        for seen in table.disk:
            found = facts[seen.path]
            if remedy := find_shortage(seen, found, promised[os.path.normpath(seen.path)]):
                shown = f"tier {name}: {describe_disk(seen, found)}"
                log.warning('event=warned text="%s: %s; %s"', shown, SHORTAGE, remedy)
    return tiers


async def watch_disks(config: Config, driver: Driver, ask: Ask) -> None:
    """Tell of disks that come to be of no use, and have them used again once they work.

    A disk that works is looked at once at the beginning, and where a job has been starting on it
    for long. Of the simulated backend there are none.
    """
    if not config.tier or config.backend == "simulated":
        return
    stock, known = driver.state.stock, dict[DiskId, str]()
    looks = _Looks(driver.timeline.now_s)
    asked = {disk.id for tier in stock.tiers for disk in tier.disks}
    while True:
        if asked:
            try:
                facts = await ask_for_disks(config, ask)
            except Exception:  # of one look; the next may succeed
                log.exception("event=disk_look_failed")
            else:
                found = find_unusable(config, stock.tiers, facts, stock.promised_bytes())
                for disk in asked:
                    problem = found.get(disk, "")  # empty: it works
                    if problem != stock.unusable.get(disk, ""):
                        at_s = driver.timeline.now_s
                        driver.post(ev.DiskSeen(at_s=at_s, disk=disk, problem=problem))
        pause_s = looks.pause_s(driver.timeline.now_s)
        if await driver.watch.until(partial(ne, stock.unusable, known), pause_s):
            _tell_of(known, stock.unusable)
            known = dict(stock.unusable)
            looks.follow({*known}, driver.timeline.now_s)
        starting = _where_starts_are_long(driver) - known.keys()
        asked = looks.take(starting, driver.timeline.now_s)


class _Looks:
    """When which disk is looked at.

    One that is out: after 2 s, and then each time after twice as long, a minute at most; where it
    is out again within a minute of its return, that goes on. One on which a job has been starting
    for long: every 5 s.
    """

    def __init__(self, now_s: float) -> None:
        self._starts_s = now_s + _LONG_START_S
        self._due_s: dict[DiskId, float] = {}
        self._wait_s: dict[DiskId, float] = {}
        self._back_s: dict[DiskId, float] = {}

    def follow(self, unusable: set[DiskId], now_s: float) -> None:
        """These are out now."""
        for disk in unusable - self._due_s.keys():
            if now_s - self._back_s.get(disk, -math.inf) > _LAST_LOOK_S:
                self._wait_s[disk] = _FIRST_LOOK_S
            self._due_s[disk] = now_s + self._wait_s[disk]
        for disk in self._due_s.keys() - unusable:
            del self._due_s[disk]
            self._back_s[disk] = now_s

    def take(self, starting: set[DiskId], now_s: float) -> set[DiskId]:
        """Which are looked at now, of those that are out and of these."""
        due = {disk for disk, at_s in self._due_s.items() if at_s <= now_s}
        for disk in due:
            self._wait_s[disk] = min(2.0 * self._wait_s[disk], _LAST_LOOK_S)
            self._due_s[disk] = now_s + self._wait_s[disk]
        if now_s < self._starts_s:
            return due
        self._starts_s = now_s + _LONG_START_S
        return due | starting

    def pause_s(self, now_s: float) -> float:
        """Until the next look."""
        return max(0.0, min([self._starts_s, *self._due_s.values()]) - now_s)


def _where_starts_are_long(driver: Driver) -> set[DiskId]:
    """A disk that hangs gives no error: what makes a job's directory waits for it."""
    before_s = driver.timeline.now_s - _LONG_START_S
    jobs = (job for job in driver.state.live if job.state is JobState.STARTING)
    return {share.disk for job in jobs if job.since_s < before_s for share in job.shares}


def find_unusable(
    config: Config,
    tiers: Iterable[Tier],
    facts: Mapping[str, DiskFacts],
    promised: Mapping[str, int] = MappingProxyType({}),
) -> dict[DiskId, str]:
    """Why a disk is of no use, as far as a look can tell, of each that is not.

    Args:
        tiers: as they were when the daemon started.
        facts: what is found at each disk's path.
        promised: what jobs were promised of each disk, bytes.
    """
    at = {DiskId(os.path.normpath(path)): seen.filesystem for path, seen in facts.items()}
    replaced = [
        (disk.id, sentence(disk.id, REPLACED, tier.name))
        for tier in tiers
        for disk in tier.disks
        if at[disk.id] not in ("", disk.filesystem)
    ]
    found: dict[DiskId, str] = {}
    problems = find_problems(config.tier, facts)
    obstacles = find_obstacles(config.tier, facts, promised)
    for path, line in chain(replaced, problems, obstacles):
        found.setdefault(DiskId(os.path.normpath(path)), line)
    return found


def _tell_of(known: Mapping[DiskId, str], unusable: Mapping[DiskId, str]) -> None:
    """In the log, what is out, or back, or out for another reason than is known."""
    for disk in sorted(unusable):
        if unusable[disk] != known.get(disk):
            log.warning("event=disk_out disk=%s text=%s", disk, quoted(unusable[disk]))
    for disk in sorted(known.keys() - unusable.keys()):
        log.warning("event=disk_back disk=%s", disk)


def look_at_disks(config: Config) -> dict[str, DiskFacts]:
    """What is found at each disk's path, as this process sees it."""
    from iodaemon.node.tier_disk import probe_disks

    return probe_disks(_paths(config), is_shared=config.is_system)


async def ask_for_disks(config: Config, ask: Ask) -> dict[str, DiskFacts]:
    """What is found at each disk's path, as the supervisor sees it."""
    from iodaemon.node.tier_disk import read_answer

    paths = _paths(config)
    answers = await asyncio.gather(*(ask(do="look", disk=path) for path in paths))
    return {path: read_answer(path, each) for path, each in zip(paths, answers, strict=True)}


async def ask_at_the_start(config: Config) -> dict[str, DiskFacts]:
    """As ``ask_for_disks``, before there is a backend, by a line of its own.

    Raises:
        BackendError: no supervisor answers.
    """
    from iodaemon.node.root_side import supervisor_config
    from iodaemon.node.supervisor_client import SupervisorClient

    client = SupervisorClient(
        supervisor_config(config),
        Path(config.state_dir) / "supervisor.log",
        on_connected=lambda: None,
        on_message=lambda _: None,
        on_used=lambda _: None,
        on_trouble=lambda _: None,
    )
    await client.open()
    try:
        return await ask_for_disks(config, client.ask_scratch)
    finally:
        await client.hang_up()


def _paths(config: Config) -> list[str]:
    return [disk.path for table in config.tier.values() for disk in table.disk]
