"""Real work of a known kind, to be run as a job: I/O that truly reaches the disk, and computing.

    python -m iodaemon.kernels.builtin read FILE --size 268435456 [--rate 40000000]
    python -m iodaemon.kernels.builtin write FILE --size 268435456
    python -m iodaemon.kernels.builtin mmap FILE --size 268435456
    python -m iodaemon.kernels.builtin random FILE --size 819200 --block 4096
    python -m iodaemon.kernels.builtin compute FILE --rounds 60 --block 4096
    python -m iodaemon.kernels.builtin fork FILE --size 314572800

Files are read and written past the page cache, except by ``mmap``, which goes through it by nature,
and with ``--cached``. Standard library alone: a job starts as fast as Python does.

The paced reader of Lv et al. is ``read`` with a rate and blocks of 128 KiB.
"""

from __future__ import annotations

import argparse
import functools
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

BLOCK: Final = 1 << 20
PAGE: Final = 4096
"""What O_DIRECT asks of offsets and lengths on every disk sold (open(2))."""
FORK_BYTES: Final = 2 << 20
"""What each short child of ``fork`` reads."""
WRAP_BLOCKS: Final = 256
"""``write`` goes over its first blocks again after so many."""
COMPUTE_STEPS: Final = 400_000
"""Of the generator in one round of ``compute``: about 0.03 s of one core."""
_CAUGHT_UP_S: Final = (0.05, 0.25)
"""The least and the most of a delay that a program with a rate makes up for."""


def steps(total_bytes: int, block: int, rate: float | None) -> Iterator[int]:
    """The bytes done before each block, each at the time that the rate gives it.

    Small delays are caught up, because a disk serves blocks in no even time and a busy CPU wakes a
    program late: two blocks, at least 0.05 s. All of a longer one is lost, as for a program that
    computes between its blocks: one that caught up would lose nothing by being suspended. Whatever
    a block takes, 0.25 s is a longer one: that is less than any timeslice.

    Args:
        total_bytes: of all blocks; a last one that is not whole is left out.
        block: bytes.
        rate: bytes/s. None: as fast as it goes.
    """
    begun_s = time.monotonic()
    for done in range(0, total_bytes - total_bytes % block, block):
        if rate is not None:
            late_s = time.monotonic() - begun_s - done / rate
            if late_s < 0:
                time.sleep(-late_s)
            elif late_s > min(max(_CAUGHT_UP_S[0], 2.0 * block / rate), _CAUGHT_UP_S[1]):
                begun_s += late_s
        yield done


def read(
    path: str,
    total: int,
    block: int = BLOCK,
    rate: float | None = None,
    *,
    cached: bool = False,
    at_random: bool = False,
) -> None:
    """Read this many bytes, in order and from the beginning again at the end, or at random."""
    fd = os.open(path, os.O_RDONLY | (0 if cached else os.O_DIRECT))
    buffer = mmap.mmap(-1, block)
    places = os.fstat(fd).st_size // block
    chosen = random.Random(total)  # noqa: S311 - no secret; the same places every time
    for done in steps(total, block, rate):
        place = chosen.randrange(places) if at_random else done // block % places
        os.preadv(fd, [buffer], place * block)
    os.close(fd)


def write(
    path: str, total: int, block: int = BLOCK, rate: float | None = None, *, cached: bool = False
) -> None:
    """Write this many bytes in order, over and over a short file, and see them on the disk."""
    flags = os.O_WRONLY | os.O_CREAT | (0 if cached else os.O_DIRECT)
    fd = os.open(path, flags, 0o600)
    buffer = mmap.mmap(-1, block)
    buffer.write(os.urandom(block))
    for done in steps(total, block, rate):
        os.pwritev(fd, [buffer], done % (WRAP_BLOCKS * block))
    os.fsync(fd)
    os.close(fd)


def read_mapped(
    path: str, total: int, block: int = BLOCK, rate: float | None = None, *, cached: bool = True
) -> None:
    """Touch this many bytes of a mapped file, page by page, from the beginning again at the end.

    The kernel reads what is touched and not in memory: I/O of a program that asks for none.
    """
    del cached  # a mapping is the page cache
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        size = len(mapped) - len(mapped) % block
        for done in steps(total, block, rate):
            at = done % size
            sum(mapped[at : at + block : PAGE])


def hold(size: int) -> mmap.mmap:
    """Memory of one's own, in use from its first byte to its last while it is referred to."""
    held = mmap.mmap(-1, size)
    for at in range(0, size, PAGE):
        held[at] = 1
    return held


def compute(path: str, rounds: int, block: int = PAGE) -> None:
    """Compute, and save a block after every round, as a program with checkpoints does."""
    state = 1
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    for _ in range(rounds):
        for _ in range(COMPUTE_STEPS):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        os.pwrite(fd, state.to_bytes(4, "little") * (block // 4), 0)
        os.fdatasync(fd)
    os.close(fd)


def fork(path: str, total: int, *, cached: bool = False) -> None:
    """Read this many bytes by short children, each of which reads a little."""
    places = os.stat(path).st_size // FORK_BYTES
    for number in range(total // FORK_BYTES):
        subprocess.run(
            [
                *("dd", f"if={path}", "of=/dev/null", f"bs={FORK_BYTES}", "count=1"),
                *(f"skip={number % places}", "status=none"),
                *([] if cached else ["iflag=direct"]),
            ],
            check=True,
        )


MOVERS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {
        "read": read,
        "write": write,
        "mmap": read_mapped,
        "random": functools.partial(read, at_random=True),
    }
)
"""The kernels that move bytes block by block."""

KINDS: Final = (*MOVERS, "compute", "fork")


def least_block(kind: str) -> int:
    """The block that a kernel moves when none is given, bytes."""
    return PAGE if kind in ("random", "compute") else BLOCK


def main() -> None:
    """Do one piece of work."""
    asked = _options()
    block = asked.block or least_block(asked.kind)
    if block % PAGE:
        sys.exit(f"--block {block}: write a multiple of {PAGE}")
    held = hold(asked.hold) if asked.hold else None
    if asked.kind == "compute":
        compute(asked.file, asked.rounds, block)
    elif asked.kind == "fork":
        fork(asked.file, asked.size, cached=asked.cached)
    else:
        MOVERS[asked.kind](asked.file, asked.size, block, asked.rate, cached=asked.cached)
    if held is not None:
        held.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m iodaemon.kernels.builtin")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file")
    parser.add_argument("--size", type=int, default=0, help="bytes to move in all")
    parser.add_argument("--block", type=int, default=0, help="bytes at a time")
    parser.add_argument("--rate", type=float, help="bytes/s at most")
    parser.add_argument("--rounds", type=int, default=0, help="of compute")
    parser.add_argument("--hold", type=int, default=0, help="bytes of memory in use meanwhile")
    parser.add_argument("--cached", action="store_true", help="through the page cache")
    return parser.parse_args()


if __name__ == "__main__":
    main()
