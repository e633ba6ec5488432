"""Looks at the disks and the memory while jobs run, from a thread of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from iodaemon.core.platform import DeviceId
from iodaemon.node.devices import read_disks
from iodaemon.node.sampler.proc_files import known, parse_meminfo
from iodaemon.trial.latency import Look

INTERVAL_S: Final = 0.5
"""Between two looks."""


@contextlib.contextmanager
def watched(
    devices: Sequence[DeviceId], looks: list[Look], *, interval_s: float = INTERVAL_S
) -> Iterator[None]:
    """Look now, at the end, and at every interval in between; what is seen is appended.

    Args:
        devices: whose counters; none: the memory alone.
        looks: where to put it; to be read when this has ended.
        interval_s: between two looks.
    """
    is_over = threading.Event()

    def look() -> None:
        counters = read_disks(devices)
        looks.append(Look(at_s=time.monotonic(), devices=counters, used_ratio=_used()))

    def run() -> None:
        while not is_over.wait(interval_s):
            look()

    look()
    thread = threading.Thread(target=run, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        look()


def _used() -> float | None:
    read = known("/proc/meminfo", parse_meminfo)
    if read is None or read.available_bytes is None:
        return None
    return 1.0 - read.available_bytes / read.total_bytes
