"""The test file: room for it, and as much of it as there is time to write, on the disk."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from iodaemon.calibration import plan
from iodaemon.errors import RequestError
from iodaemon.kernels.paced import Order, Told

CHUNK_BYTES: Final = 64 << 20
"""Made durable before the next: writing shall last as long as it says."""
LEAST_CHUNK_S: Final = 2.0
"""A chunk ends after so long, so that a slow disk is not taken for one that does not answer."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def reserve(descriptor: int, size_bytes: int) -> None:
    """Room in one piece, and refused at once where there is none; some file systems have no way.

    Raises:
        RequestError: it does not fit.
    """
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise RequestError(
                f"the test file of {size_bytes >> 20} MiB does not fit: {error.strerror}; "
                "ask for less with --size, or free some space"
            ) from error
    os.ftruncate(descriptor, size_bytes)


def write_file(
    write: Callable[[Mapping[int, Order]], Mapping[int, Told]],
    descriptor: int,
    size_bytes: int,
    for_s: float,
) -> tuple[int, float]:
    """Write for so long, but no less than the least that can be measured with.

    Args:
        write: has the first reader write.
        descriptor: of the file, cut off behind what was written.
        size_bytes: at most.
        for_s: about.

    Returns:
        Bytes, and bytes/s with all of them on the disk.

    Raises:
        RequestError: nothing can be written.
        OSError: likewise.
    """
    written = 0
    begun_s = time.monotonic()
    while written < size_bytes:
        left_s = for_s - (time.monotonic() - begun_s)
        if left_s <= 0.0 and written >= plan.LEAST_BYTES:
            break
        order = Order(
            offset=written,
            length=min(CHUNK_BYTES, size_bytes - written),
            block=plan.WRITE_BLOCK,
            seconds=max(LEAST_CHUNK_S, left_s),
            writes=True,
        )
        moved = write({0: order})[0].bytes
        os.fdatasync(descriptor)
        if moved <= 0:
            raise RequestError("the test file cannot be written: the disk takes nothing")
        written += moved
    os.ftruncate(descriptor, written)
    return written, written / (time.monotonic() - begun_s)
