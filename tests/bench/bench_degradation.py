"""Figure 1 of Carretero et al. on this machine's disk: what is lost when several read at once.

d = 1 - sum(BW_multi) / BW_single (section 1), of streams that read past the page cache, each its
own part of one scratch file.
"""

from __future__ import annotations

import mmap
import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench_figure import Section, Series
from bench_plan import Plan

STREAMS = (2, 4, 8)
"""The paper ran 2 and 4 applications."""
MB = 1_000_000
BLOCK_BYTES = 1 << 20
"""Read at once."""
LARGEST = max(STREAMS)


def _write(path: Path, size_bytes: int) -> None:
    """A file of random bytes, on the disk."""
    block = os.urandom(BLOCK_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(size_bytes // BLOCK_BYTES):
            file.write(block)
        os.fsync(file.fileno())


def _bandwidth(path: Path, streams: int, share_bytes: int) -> float:
    """Bytes/s of all streams together; each reads its own part, one block after the other."""
    barrier = threading.Barrier(streams + 1)
    threads = [
        threading.Thread(target=_read, args=(path, number * share_bytes, share_bytes, barrier))
        for number in range(streams)
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    began_s = time.monotonic()
    for thread in threads:
        thread.join()
    return streams * share_bytes / (time.monotonic() - began_s)


def _read(path: Path, offset: int, size_bytes: int, barrier: threading.Barrier) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, BLOCK_BYTES) as block:  # direct reads need an aligned buffer
            barrier.wait()
            for at in range(offset, offset + size_bytes, BLOCK_BYTES):
                os.preadv(fd, [block], at)
    finally:
        os.close(fd)


def degradation(single: float, together: float) -> float:
    """The part of the bandwidth that is lost. Source: Carretero et al., ICS 2020, section 1."""
    return 1.0 - together / single


def measure_degradation(plan: Plan) -> Section:
    """Figure 1; the same amount a stream, however many there are."""
    share_bytes = (8 if plan.is_quick else 64) * BLOCK_BYTES
    path = plan.base / "degradation"
    _write(path, LARGEST * share_bytes)
    found: dict[int, list[float]] = {count: [] for count in (1, *STREAMS)}
    try:
        tell = plan.tell("figure 1")
        for number in range(plan.rounds):
            tell(number)
            for count, values in found.items():
                values.append(_bandwidth(path, count, share_bytes) / MB)
    finally:
        path.unlink()
    return Section(
        title="Figure 1 of Carretero et al.: direct reads of several streams at once",
        series=[Series(_name(count), values, "MB/s") for count, values in found.items()],
        checks=[],
        notes=[_words(count, found[1], found[count]) for count in STREAMS],
    )


def _name(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _words(count: int, single: Sequence[float], together: Sequence[float]) -> str:
    """Of what was measured in the same round."""
    lost = [degradation(one, all_) for one, all_ in zip(single, together, strict=True)]
    return (
        f"{count} streams: d = {statistics.median(lost):.0%} ({min(lost):.0%} to {max(lost):.0%}); "
        "the paper measured 2 %, 16 % and 11 % for 4, 4 and 2 applications"
    )
