"""What will be measured, from what the user asks for and what the machine is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iodaemon.calibration import plan
from iodaemon.calibration.busy import look
from iodaemon.calibration.ground import Ground, survey
from iodaemon.calibration.measure import Setup
from iodaemon.errors import RequestError
from iodaemon.node.topology import SlotKind, own_limits, read_topology
from iodaemon.units import format_bytes, format_duration


def prepare(
    path: str,
    *,
    seconds: float,
    size_bytes: int | None,
    sockets: Sequence[str],
    slot: SlotKind,
    forced: bool,
    may_be_busy: bool,
) -> Setup:
    """Look at everything, for two seconds; make nothing.

    Args:
        path: a directory on the disk to measure.
        seconds: the whole may take about so long.
        size_bytes: of the test file. None: what is sensible.
        sockets: the machine's, as configured; empty: as detected.
        slot: likewise.
        forced: a busy machine is no reason to refuse.
        may_be_busy: nor is it here, because nothing will be measured.

    Raises:
        RequestError: it is not to be measured, in one line.
        ConfigError: ``sockets`` does not fit the machine.
    """
    if not plan.LEAST_S <= seconds <= plan.MOST_S:
        what = "is more than a day" if seconds > plan.MOST_S else "says too little"
        longest = format_duration(plan.MOST_S)
        raise RequestError(f"--time {what}; write {plan.LEAST_S:g} s to {longest}")
    ground = survey(path)
    parts, divided = find_sockets(sockets, slot)
    readers = len(parts) * plan.readers_per_socket(len(parts))
    size = plan.file_bytes(ground.free_bytes, readers, size_bytes)
    if size == 0:
        raise RequestError(_too_little(ground, readers, size_bytes))
    why = "; ".join(look([device.id for device in ground.devices]).why)
    if why and not (forced or may_be_busy):
        raise RequestError(
            f"the machine is busy: {why}; wait until it is quiet, or --force to measure beside that"
        )
    return Setup(
        ground=ground,
        sockets=parts,
        divided=divided,
        file_bytes=size,
        seconds=seconds,
        busy=why,
        forced=forced,
    )


def _too_little(ground: Ground, readers: int, asked: int | None) -> str:
    least = max(plan.LEAST_BYTES, readers * plan.WRITE_BLOCK)
    if asked is not None and asked < least:
        return f"--size {format_bytes(asked)} is too little for {readers} readers; {_least(least)}"
    needed = format_bytes(int(least / plan.ROOM_SHARE))
    return (
        f"{ground.path} has {format_bytes(ground.free_bytes)} left and {needed} are needed, of "
        "which the test file takes half; free some space, or name another directory"
    )


def _least(size: int) -> str:
    return f"write {format_bytes(size)} or more"


def find_sockets(
    sockets: Sequence[str] = (), slot: SlotKind = "core"
) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """The CPUs of each socket; and whether they are parts of the machine's only one.

    Raises:
        ConfigError: ``sockets`` does not fit the machine.
    """
    cpus, nodes = own_limits()
    partitions = read_topology(
        Path("/"), allowed_cpus=cpus, allowed_nodes=nodes, sockets=sockets, slot=slot
    )
    with_slots = [partition for partition in partitions if partition.slots]
    if len(with_slots) > 1:
        every = (tuple(cpu for s in p.slots for cpu in s.cpus) for p in with_slots)
        return tuple(every), False
    return plan.divide_cores([s.cpus for p in with_slots for s in p.slots]), True


def describe(setup: Setup) -> list[tuple[str, str]]:
    """What will be done, in pairs of words."""
    ground, times = setup.ground, setup.times
    disks = ", ".join(device.id for device in ground.devices)
    parts = len(setup.sockets)
    size, free = format_bytes(setup.file_bytes), format_bytes(ground.free_bytes)
    places = f"{parts} parts of the machine's only socket" if setup.divided else f"{parts} sockets"
    return [
        ("directory", f"{ground.path} ({ground.description})"),
        ("disks", disks),
        ("readers", f"{setup.per_socket} on each of {places}"),
        ("test file", f"at most {size} of {free} free; it has no name, and is gone at the end"),
        ("steps", f"{times.steps} of at most {format_duration(round(times.step_s, 2))}"),
        ("time", f"about {format_duration(round(times.total_s))}"),
        ("beside it", _beside(setup)),
    ]


def _beside(setup: Setup) -> str:
    if not setup.busy:
        return "the machine is quiet"
    return setup.busy if setup.forced else f"{setup.busy}: it would be refused without --force"
