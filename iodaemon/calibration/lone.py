"""How long lone requests take, by the kernel's own clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from iodaemon.calibration.beside import Moved
from iodaemon.calibration.ground import Ground
from iodaemon.calibration.record import Kind, Leaf, Pattern, Point, plain
from iodaemon.core.platform import DeviceId
from iodaemon.kernels.paced import Order, Told

LEAST_REQUESTS: Final = 5
"""Of fewer the mean says little."""


class LoneMeter:
    """Collects what lone requests took, for each disk of the ground."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._names = tuple(device.id for device in ground.devices)
        self._points: dict[DeviceId, list[Point]] = {name: [] for name in self._names}

    def take(self, order: Order, told: Told, moved: Mapping[DeviceId, Moved]) -> None:
        """The step is over, and each disk did this in it."""
        if told.ios < LEAST_REQUESTS:
            return
        kind: Kind = "write" if order.writes else "read"
        pattern: Pattern = "order" if order.seed is None else "random"
        for name, did in moved.items():
            requests, size, spent_ms = _of_kind(did, kind)
            if requests >= LEAST_REQUESTS and spent_ms > 0:
                point = Point(
                    kind=kind,
                    pattern=pattern,
                    asked_bytes=order.block,
                    size_bytes=size / requests,
                    service_s=spent_ms / 1000.0 / requests,
                    requests=requests,
                )
                self._points[name].append(point)

    def leaves(
        self,
        *,
        most: float,
        loaded: Mapping[DeviceId, float],
        loaded_together: float,
        width: float,
    ) -> tuple[Leaf, ...]:
        """The disks with all that was measured of them.

        Args:
            most: the most that was seen of all together, bytes/s.
            loaded: what each read with all sockets loaded, bytes.
            loaded_together: what the readers had then, bytes/s.
            width: how many times as much all readers had as one.
        """
        total = sum(loaded.values())
        even = 1.0 / len(self._names)
        leaves = []
        for device, identity in zip(self._ground.devices, self._ground.identities, strict=True):
            share = loaded.get(device.id, 0.0) / total if total else even
            leaf = Leaf(
                name=device.id,
                identity=plain(identity),
                model=plain(device.model),
                rotational=device.rotational,
                most_bytes_per_s=share * most,
                loaded_bytes_per_s=share * loaded_together,
                width=max(1.0, width),
                points=tuple(self._points[device.id]),
            )
            leaves.append(leaf)
        return tuple(leaves)


def _of_kind(did: Moved, kind: Kind) -> tuple[int, int, int]:
    """Requests, their bytes, and their ms."""
    if kind == "write":
        return did.writes, did.written_bytes, did.write_ms
    return did.reads, did.read_bytes, did.read_ms
