"""Our simulation held to what the published simulator of StorAlloc printed for the same requests.

What it prints is YAML: counts, sizes in GB, and of every disk the mean and most allocations and the
mean and most used, rounded to three digits. Nodes are compared in their order; their names are
random there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Disk, Storage, StorageNode
from iodaemon.errors import RequestError
from iodaemon.simulator.plain_yaml import parse_yaml
from iodaemon.simulator.storalloc import (
    GB,
    NETWORK_BYTES_PER_S,
    READ_BYTES_PER_S,
    WRITE_BYTES_PER_S,
    Placing,
)
from iodaemon.simulator.storalloc_file import read_text
from iodaemon.simulator.storalloc_replay import Outcome
from iodaemon.simulator.storalloc_run import placing_of

DIGITS: Final = 3
_DISK: Final = (
    *("last_alloc_time", "max_cap_utilisation", "max_nb_alloc"),
    *("mean_capacity_utilisation", "mean_nb_alloc"),
)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that is not the same."""

    figure: str
    theirs: float
    ours: float


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Both, figure by figure.

    Attributes:
        figures: how many were compared.
        differences: those that differ in any digit.
        mean_alloc_most: the largest difference of a disk's mean allocations.
        mean_use_most: of its mean use, percent.
    """

    figures: int
    differences: tuple[Difference, ...]
    mean_alloc_most: float
    mean_use_most: float

    @property
    def is_same(self) -> bool:
        """Whether all are the same, digit for digit."""
        return not self.differences

    def document(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {**msgspec.to_builtins(self), "agrees": self.is_same}

    def lines(self) -> list[str]:
        """For people."""
        if self.is_same:
            return [f"{self.figures} figures: the same, digit for digit"]
        most = f"{self.mean_alloc_most:g} allocations and {self.mean_use_most:g} % of the capacity"
        return [
            f"{self.figures} figures: {len(self.differences)} differ; of means at most {most}",
            *(f"  {d.figure}: {d.theirs:g} there, {d.ours:g} here" for d in self.differences),
        ]


def read_printed(path: Path) -> dict[str, Any]:
    """What the published simulator printed.

    Raises:
        NotFound: there is no such file.
        RequestError: it is no such file.
    """
    printed = parse_yaml(read_text(path), str(path))
    try:
        for node in printed["nodes"]:
            for disk in node["disks"]:
                [float(disk[key]) for key in (*_DISK, "capacity")]
    except (TypeError, KeyError, ValueError) as error:
        raise RequestError(
            f"{path}: this is not what StorAlloc's simulator prints: nodes with disks, each with "
            f"{', '.join(_DISK)}"
        ) from error
    found: dict[str, Any] = printed
    return found


def setup_of(printed: Mapping[str, Any], rule: str) -> tuple[Storage, Placing]:
    """The platform that was printed, and how requests were placed on it.

    Bandwidths are not printed: they are those of table 3's disks.

    Raises:
        ConfigError: there is no such rule.
        RequestError: the figures make no platform.
    """
    try:
        nodes = tuple(
            StorageNode(
                id=f"node{number}",
                disks=tuple(
                    Disk(
                        id=DiskId(f"node{number}:{place}"),
                        capacity_bytes=round(float(disk["capacity"]) * GB),
                        read_bytes_per_s=READ_BYTES_PER_S,
                        write_bytes_per_s=WRITE_BYTES_PER_S,
                    )
                    for place, disk in enumerate(node["disks"])
                ),
                network_bytes_per_s=NETWORK_BYTES_PER_S,
            )
            for number, node in enumerate(printed["nodes"])
        )
        storage = Storage(nodes=nodes)
        placing = placing_of(
            rule,
            {},
            block_bytes=round(float(printed["split_threshold_gb"]) * GB),
            bookkeeping="artefact",
            retries=printed["retries_allowed"] == "yes",
        )
    except (KeyError, ValueError, TypeError) as error:
        raise RequestError(f"the printed results name no platform: {error}") from error
    return storage, placing


def compare(printed: Mapping[str, Any], ours: Outcome) -> Agreement:
    """All figures that both have, disk by disk in the order of nodes and disks.

    Raises:
        RequestError: they are of different platforms.
    """
    theirs: dict[str, float] = {}
    mine = _of_run(ours)
    for key in mine:
        if key in printed:
            theirs[key] = float(printed[key])
    disks = [disk for node in printed["nodes"] for disk in node["disks"]]
    if len(disks) != len(ours.disks):
        raise RequestError(f"there are {len(disks)} disks there, {len(ours.disks)} here")
    for there, here in zip(disks, ours.disks, strict=True):
        values = (
            here.last_s,
            here.max_disk_use,
            here.max_alloc,
            here.mean_disk_use,
            here.mean_alloc,
        )
        for key, value in zip(_DISK, values, strict=True):
            theirs[f"{here.disk} {key}"] = float(there[key])
            mine[f"{here.disk} {key}"] = round(float(value), DIGITS)
    for there, (node, most) in zip(printed["nodes"], ours.node_max_alloc.items(), strict=True):
        theirs[f"{node} max_nb_alloc"] = float(there["max_nb_alloc"])
        mine[f"{node} max_nb_alloc"] = float(most)
    differences = tuple(
        Difference(figure=key, theirs=value, ours=mine[key])
        for key, value in theirs.items()
        if value != mine[key]
    )
    return Agreement(
        figures=len(theirs),
        differences=differences,
        mean_alloc_most=_most(differences, "mean_nb_alloc"),
        mean_use_most=_most(differences, "mean_capacity_utilisation"),
    )


def _most(differences: tuple[Difference, ...], key: str) -> float:
    of_key = (abs(d.theirs - d.ours) for d in differences if d.figure.endswith(key))
    return round(max(of_key, default=0.0), DIGITS)


def _of_run(ours: Outcome) -> dict[str, float]:
    """Figures of the whole run, under the names that they have there."""
    return {
        "delayed_requests_count": float(ours.delayed),
        "failed_requests_count": float(ours.failed),
        "failed_split_requests_count": float(ours.failed_split),
        "max_concurrent_allocations": float(ours.max_concurrent),
        "refused_requests_count": float(ours.refused_parts),
        "refused_split_requests_count": float(ours.refused_split),
        "requests_count": float(ours.parts),
        "split_requests_count": float(ours.split),
        "sim_duration": ours.duration_s,
        "sim_first_ts": ours.first_s,
        "sim_last_ts": ours.last_s,
        "tt_allocated_gb": ours.allocated_bytes / GB,
        "tt_delay_time_minutes": ours.delay_s * 60.0,
    }
