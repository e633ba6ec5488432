"""What was measured of the disks, as the daemon uses it: read, watched, told."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from iodaemon.calibration.record import (
    Calibration,
    Fit,
    Kept,
    Leaf,
    calibrated,
    find_problem,
    judge,
    known_leaves,
)
from iodaemon.calibration.store import AGAIN, load, why_unread
from iodaemon.config.change import Change
from iodaemon.core.meter import DeviceLoad
from iodaemon.core.platform import Device, DeviceId, ServiceTimes
from iodaemon.errors import ConfigError
from iodaemon.units import format_rate

log = logging.getLogger(__name__)


class Measured:
    """The calibrations in force, and whether what is seen fits them.

    ``identities`` are of the devices of this machine; what is not among them has no calibration.

    Attributes:
        problem: why nothing of what is kept could be read, and what to do; empty: it could.
    """

    def __init__(self, state_dir: Path, identities: Mapping[DeviceId, str]) -> None:
        self._state_dir = state_dir
        self._identities = identities
        self._known: Mapping[DeviceId, tuple[Calibration, Leaf]] = {}
        self._services: Mapping[DeviceId, ServiceTimes | None] = {}
        self._fits: dict[DeviceId, Fit] = {}
        self._kernel = os.uname().release
        self.problem = ""

    def read(self, devices: Iterable[Device]) -> tuple[Device, ...]:
        """The devices with what was measured of them, as it is kept now; blocks.

        What cannot be read is told and left out: it is an aid, no reason not to run.
        """
        kept, self.problem = Kept(), ""
        try:
            kept = load(self._state_dir)
        except (ConfigError, OSError) as error:
            self.problem = why_unread(self._state_dir, error)
            log.warning('event=warned text="%s"', self.problem.replace('"', "'"))
        self._known = known = known_leaves(kept, self._identities)
        self._services = {name: leaf.service for name, (_, leaf) in known.items()}
        self._fits = {}
        for name, (made, _) in known.items():
            if problem := find_problem(made, self._kernel):
                log.warning('event=warned text="calibration of %s: %s; %s"', name, problem, AGAIN)
        return calibrated(devices, known)

    def watch(self, loads: Mapping[DeviceId, DeviceLoad]) -> None:
        """One more slice; the first time that something does not fit it is told."""
        for name, (_, leaf) in self._known.items():
            before = self._fits.get(name, Fit())
            if name not in loads or before.problem:
                continue
            most, service = leaf.most_bytes_per_s, self._services[name]
            now = judge(before, loads[name], most_bytes_per_s=most, service=service)
            self._fits[name] = now
            if now.problem:
                text = f"calibration of {name}: {now.problem}; {AGAIN}"
                log.warning('event=warned text="%s"', text)

    def report(self) -> list[dict[str, Any]]:
        """For ``iod node``: what is used of each disk, and what does not fit."""
        return [
            {
                "device": name,
                "measured_s": made.at_s,
                "sequential_bytes_per_s": made.sequential_bytes_per_s,
                "loaded_bytes_per_s": made.loaded_bytes_per_s,
                "random_bytes_per_s": made.random_bytes_per_s,
                "io_bound_bytes_per_s": made.io_bound_bytes_per_s,
                "problem": self._problem(name, made),
            }
            for name, (made, _) in self._known.items()
        ]

    def _problem(self, name: DeviceId, made: Calibration) -> str:
        return self._fits.get(name, Fit()).problem or find_problem(made, self._kernel)


def find_identities(devices: Iterable[Device]) -> dict[DeviceId, str]:
    """Of the disks of this machine."""
    from iodaemon.node.devices import find_identity

    return {device.id: find_identity(device.id) for device in devices}


def device_changes(before: Iterable[Device], after: Iterable[Device]) -> list[Change]:
    """What a calibration that is read again changes."""
    return [
        Change(path=f"calibration of {old.id}", before=_told(old), after=_told(new))
        for old, new in zip(before, after, strict=True)
        if old != new
    ]


def _told(device: Device) -> str:
    if device.service is None and device.capacity_bytes_per_s is None:
        return "none"
    told = f"{format_rate(device.capacity_bytes_per_s or 0.0)} by all readers"
    if device.service is None:
        return told
    times = (device.service.reads, device.service.writes)
    spent_s = [s for each in times for _, s in (*each.in_order, *each.at_random)]
    low, high = 1000.0 * min(spent_s), 1000.0 * max(spent_s)
    return f"{told}, lone requests of {low:.3g} to {high:.3g} ms ({len(spent_s)} times)"


def shown(device: Device) -> dict[str, Any]:
    """A device for the API: the times of lone requests are for rules, not for people."""
    told: dict[str, Any] = msgspec.to_builtins(device)
    del told["service"]
    return told
