"""What a daemon looks up before it makes, locks or opens anything.

``iod config check`` does the same, and tells all that is wrong; the daemon ends with the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

import psutil

from iodaemon.config import Config, PolicyFile, check_offers, load_policy, policy_search
from iodaemon.config.tier import find_obstacles, find_problems, find_tier_rule
from iodaemon.core.platform import Platform
from iodaemon.core.storage import DiskFacts
from iodaemon.daemon.backends import linux_platform
from iodaemon.daemon.tiering import look_at_disks
from iodaemon.errors import ConfigError
from iodaemon.model.node import SimulatedNode, default_platform
from iodaemon.node.condition import NO_PROCESS_IO, judge_free


def policy_of(config: Config) -> PolicyFile:
    """The policy that a configuration names, with what it replaces.

    For the service of the system no home directory is searched: root's is not the daemon's.

    Raises:
        ConfigError: it cannot be had.
    """
    return load_policy(
        config.policy,
        overrides=config.policy_overrides,
        search=policy_search({} if config.is_system else os.environ),
        overrides_from=config.file,
    )


class Preflight:
    """What a configuration means on this machine. Each part is looked up once, when it is read.

    Without ``sees_disks`` nothing is looked up of tiers' disks: a sandbox hides them.
    """

    def __init__(self, config: Config, *, sees_disks: bool = True) -> None:
        self._config = config
        self._is_simulated = config.backend == "simulated"
        self._sees_disks = sees_disks

    @cached_property
    def policy(self) -> PolicyFile:
        """The policy; raises ConfigError where there is none that the backend can carry out."""
        from iodaemon.node.linux import LinuxNode

        policy = policy_of(self._config)
        offers = SimulatedNode.offers if self._is_simulated else LinuxNode.offers
        check_offers(policy.rules, offers, self._config.backend)
        return policy

    @cached_property
    def platform(self) -> Platform:
        """The machine; raises ConfigError where it has not the sockets that are configured."""
        return default_platform() if self._is_simulated else linux_platform(self._config)

    @cached_property
    def disks(self) -> Mapping[str, DiskFacts] | None:
        """What is found at the path of each disk of a tier; None: all of them are pretended, or
        none is seen.
        """
        return look_at_disks(self._config) if self._sees_disks and not self._is_simulated else None

    def check(self) -> None:
        """Raises ConfigError with the first problem."""
        for problem in self.find_problems():
            raise ConfigError(problem)

    def find_problems(self) -> Iterator[str]:
        """Each reason not to start: one line that says what to do."""
        tables = self._config.tier
        yield from _refusal(lambda: self.policy)
        yield from _refusal(lambda: self.platform)
        if self.disks is not None:
            yield from (problem for _, problem in find_problems(tables, self.disks))
        for name, table in tables.items():
            yield from _refusal(partial(find_tier_rule, name, table))

    def find_obstacles(self, promised: Mapping[str, int] = MappingProxyType({})) -> Iterator[str]:
        """What keeps jobs from using disks with which the daemon starts; ``promised`` in bytes."""
        if self.disks is not None:
            found = find_obstacles(self._config.tier, self.disks, promised)
            yield from (line for _, line in found)


def startup_warnings(state: Path) -> Iterator[str]:
    """What will go wrong sooner or later, one line each, with what to do."""
    if (short := judge_free(state, psutil.disk_usage(str(state)).free)) is not None:
        yield str(short)
    if psutil.swap_memory().total and psutil.virtual_memory().percent > 90:
        yield "memory is over 90 % used; jobs will swap, which is I/O that no job is charged for"
    if not Path("/proc/self/io").exists():
        fact, cure = NO_PROCESS_IO
        yield f"{fact}, so every job's I/O is unknown, and none is regulated; {cure}"


def _refusal(look: Callable[[], object]) -> Iterator[str]:
    try:
        look()
    except ConfigError as error:
        yield str(error)
