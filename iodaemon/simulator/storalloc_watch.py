"""The disks while a replay runs, in virtual time: a frame a step, with the most of each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from iodaemon.core.scratch import DiskId
from iodaemon.core.storage import Storage

FRAMES: Final = 200
"""Of a whole run, unless another number is wanted."""
WIDTH: Final = 40
"""Characters of a full disk."""


class Watch:
    """Told of every instant of a replay; calls back with the lines of each frame."""

    def __init__(
        self, storage: Storage, begin_s: float, end_s: float, show: Callable[[list[str]], None]
    ) -> None:
        self._storage = storage
        self._begin_s = begin_s
        self._step_s = max(1.0, (end_s - begin_s) / FRAMES)
        self._next_s = begin_s + self._step_s
        self._show = show
        self._used: dict[DiskId, int] = {}
        self._count: dict[DiskId, int] = {}

    def __call__(
        self, now_s: float, used: Mapping[DiskId, int], counts: Mapping[DiskId, int]
    ) -> None:
        """What is in use now; a frame of what was is shown when a step is over."""
        if now_s >= self._next_s and self._used:
            self._show(self.lines())
            self._used, self._count = {}, {}
            steps = (now_s - self._begin_s) // self._step_s + 1
            self._next_s = self._begin_s + steps * self._step_s
        for disk, size in used.items():
            self._used[disk] = max(size, self._used.get(disk, 0))
            self._count[disk] = max(counts[disk], self._count.get(disk, 0))

    def lines(self) -> list[str]:
        """The most in use of each disk in this step."""
        when = datetime.fromtimestamp(self._next_s - self._step_s, UTC)
        name = max(len(disk.id) for disk in self._storage.disks)
        found = [f"{when:%Y-%m-%d %H:%M}  {sum(self._count.values())} allocations at most"]
        for disk in self._storage.disks:
            part = self._used.get(disk.id, 0) / disk.capacity_bytes
            bar = ("#" * round(part * WIDTH)).ljust(WIDTH, ".")
            count = self._count.get(disk.id, 0)
            found.append(f"{disk.id:<{name}}  {bar} {100 * part:5.1f} %  {count:4d}")
        return found
