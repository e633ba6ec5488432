"""Real work for the demo: reads and writes that truly reach the disk, and some that hardly do.

    python examples/work.py LEDGER read FILE BYTES
    python examples/work.py LEDGER write FILE BYTES
    python examples/work.py LEDGER random FILE COUNT
    python examples/work.py LEDGER compute FILE ROUNDS
    python examples/work.py LEDGER fork FILE COUNT

Each run appends "start ID" and "done ID" to the ledger, so that somebody who trusts nobody can
count how often every job ran and whether it finished.
"""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys

BLOCK = 1 << 20
PAGE = 4096
FORK_BYTES = 2 << 20
"""What each short child of ``fork`` reads."""
COMPUTE_STEPS = 400_000
"""Of the generator in one round of ``compute``: about 0.03 s of one core."""


def note(ledger: str, word: str) -> None:
    """Append a line in one write, which O_APPEND keeps whole."""
    fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{word} {os.environ.get('IOD_JOB_ID', '0')}\n".encode())
    os.close(fd)


def read(path: str, total: int) -> None:
    """Read this many bytes in order past the page cache, from the beginning again at the end."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, BLOCK)
    size = os.fstat(fd).st_size
    for done in range(0, total, BLOCK):
        os.preadv(fd, [buffer], done % (size - size % BLOCK))
    os.close(fd)


def write(path: str, total: int) -> None:
    """Write this many bytes in order past the page cache and see them on the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    buffer = mmap.mmap(-1, BLOCK)
    buffer.write(os.urandom(BLOCK))
    for done in range(0, total, BLOCK):
        os.pwritev(fd, [buffer], done % (256 * BLOCK))
    os.fsync(fd)
    os.close(fd)


def read_at_random(path: str, count: int) -> None:
    """Read this many single pages at random places past the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, PAGE)
    pages = os.fstat(fd).st_size // PAGE
    places = random.Random(count)
    for _ in range(count):
        os.preadv(fd, [buffer], places.randrange(pages) * PAGE)
    os.close(fd)


def compute(path: str, rounds: int) -> None:
    """Compute, and save a page after every round, as a program with checkpoints does."""
    state = 1
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    for _ in range(rounds):
        for _ in range(COMPUTE_STEPS):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        os.pwrite(fd, state.to_bytes(4, "little") * (PAGE // 4), 0)
        os.fdatasync(fd)
    os.close(fd)


def fork(path: str, count: int) -> None:
    """Start this many short children, each of which reads a little past the page cache."""
    places = os.stat(path).st_size // FORK_BYTES
    for number in range(count):
        subprocess.run(
            [
                *("dd", f"if={path}", "of=/dev/null", f"bs={FORK_BYTES}", "count=1"),
                *(f"skip={number % places}", "iflag=direct", "status=none"),
            ],
            check=True,
        )


KINDS = {
    "read": read,
    "write": write,
    "random": read_at_random,
    "compute": compute,
    "fork": fork,
}


def main() -> None:
    """Do one piece of work and keep the ledger."""
    ledger, kind, path, amount = sys.argv[1:5]
    note(ledger, "start")
    KINDS[kind](path, int(amount))
    note(ledger, "done")


if __name__ == "__main__":
    main()
