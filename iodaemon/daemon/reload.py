"""Reading the configuration again while jobs run: all that it says, or nothing of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from iodaemon.config import (
    Change,
    Config,
    PolicyFile,
    check_offers,
    in_force,
    load_policy,
    policy_changes,
    setting_changes,
)
from iodaemon.core import event as ev
from iodaemon.core.platform import Device
from iodaemon.core.rule import Mode, Rules
from iodaemon.daemon.calibrating import Measured, device_changes
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.journal.record import Order
from iodaemon.daemon.preflight import policy_of
from iodaemon.daemon.telltale import set_level
from iodaemon.errors import ConfigError, IodaemonError, RequestError
from iodaemon.registry import import_again, shipped

log = logging.getLogger(__name__)

FALLBACK: Final = "none"
"""The policy that needs nothing, holds nobody and starts jobs in their order."""

Read = Callable[[], Config]
"""Reads the files again, under the options that the daemon was started with."""


class InForce:
    """The configuration and the policy as they are now; others hold this, not its contents."""

    def __init__(self, config: Config, policy: PolicyFile) -> None:
        self.config = config
        self.policy = policy


def fallback_of(rules: Rules) -> Rules:
    """What goes on where one of these rules fails: the shipped policy ``none``, at their pace."""
    pace = {"regulation": {"timeslice": rules.regulation.timeslice_s}}
    return load_policy(FALLBACK, overrides=pace, search=(shipped("policies"),)).rules


class Reloading:
    """Compares what the files say with what is in force, and brings it into force."""

    def __init__(
        self,
        driver: Driver,
        force: InForce,
        *,
        read: Read,
        offers: Callable[[], Collection[type]],
        changed: Callable[[], None] = lambda: None,
        measured: Measured | None = None,
        retried: Callable[[], None] = lambda: None,
    ) -> None:
        """Reload for this driver, whose backend performs the decisions that ``offers`` returns.

        Args:
            changed: called when something else is in force.
            measured: the calibrations of the disks. None: there are none to read.
            retried: called when rules that were set aside get another chance.
        """
        self._retried = retried
        self._driver = driver
        self._force = force
        self._read = read
        self._offers = offers
        self._changed = changed
        self._measured = measured
        self._one_at_a_time = asyncio.Lock()

    async def reload(self, by: str) -> dict[str, Any]:
        """What changed, what needs a restart, what is to be said; durable and in force.

        Raises:
            RequestError: the files are wrong; nothing was changed.
            JournalError: it cannot be made durable now; nothing was changed.
        """
        async with self._one_at_a_time:
            try:
                config, policy, devices = await asyncio.to_thread(self._look)
            except ConfigError as error:
                raise RequestError(f"{error}; nothing was changed") from error
            settings = setting_changes(self._force.config, config)
            changes = [each for each in settings if not each.remedy and each.path != "policy"]
            changes += self._policy_changes(policy)
            changes += device_changes(self._driver.state.platform.devices, devices)
            await self._bring_into_force(config, policy, changes, by, devices)
            return self._told(changes, [each for each in settings if each.remedy])

    async def heed_signal(self) -> None:
        """As asked by SIGHUP: what is wrong stands in the log alone."""
        try:
            await self.reload("SIGHUP")
        except IodaemonError as error:
            log.error('event=not_reloaded problem="%s"', error)  # noqa: TRY400 - one line

    def _look(self) -> tuple[Config, PolicyFile, tuple[Device, ...]]:
        config = self._read()
        with import_again():
            policy = policy_of(config)
            check_offers(policy.rules, self._offers(), self._force.config.backend)
        devices = self._driver.state.platform.devices
        return config, policy, self._measured.read(devices) if self._measured else devices

    def _policy_changes(self, policy: PolicyFile) -> list[Change]:
        changes = list(policy_changes(self._force.policy, policy))
        if "policy" in self._driver.controller.faults:  # it is tried again, mended or not
            back = Change(path="policy", before=f'"{FALLBACK}"', after=f'"{policy.name}"')
            return [back, *(each for each in changes if each.path != "policy")]
        return changes

    async def _bring_into_force(
        self,
        config: Config,
        policy: PolicyFile,
        changes: list[Change],
        by: str,
        devices: tuple[Device, ...],
    ) -> None:
        before = self._force.config
        controller = self._driver.controller
        slice_s = controller.rules.regulation.timeslice_s
        texts = tuple(each.text for each in changes)
        if changes:
            self._retried()
            now_s = self._driver.timeline.now_s
            event = ev.Reconfigured(
                at_s=now_s,
                by=by,
                changes=texts,
                rules=policy.rules if policy.rules != controller.rules else None,
                sharing=config.users if config.users != before.users else None,
                devices=devices if devices != self._driver.state.platform.devices else None,
                output_max_bytes=config.output_max_bytes,
                scratch_keep_s=config.scratch_keep_s,
            )
            orders: list[Order] = [event]
            if config.mode != before.mode:  # whoever writes another one into the file means it
                orders.append(ev.ModeChanged(at_s=now_s, mode=Mode(config.mode), by=by))
            await self._driver.order(*orders)
        self._force.config, self._force.policy = in_force(before, config), policy
        controller.fallback = fallback_of(policy.rules)
        self._driver.keeps_samples = config.journal_samples
        set_level(config.log_level)
        if controller.rules.regulation.timeslice_s != slice_s:
            self._driver.keep_another_pace()
        self._changed()
        for text in texts:
            log.info('event=reconfigured by=%s change="%s"', by, _quoted(text))

    def _told(self, changes: list[Change], lacking: list[Change]) -> dict[str, Any]:
        policy, state = self._force.policy, self._driver.state
        notes = list(policy.cautions(state.platform))
        for note in notes:
            log.warning('event=warned text="%s"', note)
        for each in lacking:
            log.warning('event=not_reconfigured text="%s"', _quoted(each.text))
        if self._measured is not None and self._measured.problem:
            notes.append(self._measured.problem)  # in the log since it was read
        return {
            "file": self._force.config.file,
            "changed": msgspec.to_builtins(changes),
            "needs_restart": msgspec.to_builtins(lacking),
            "notes": notes,
        }


def _quoted(text: str) -> str:
    """The text as it may stand between double quotes."""
    return text.replace('"', "'")
