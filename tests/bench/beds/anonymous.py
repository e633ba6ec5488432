"""A bed of jobs whose own memory does not fit below a limit together, and is swapped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from beds import loop, memory
from beds.bed import Bed, Maker, Size, job, limited, memory_bound, together

TOUCH = """
import sys
mib, passes = map(int, sys.argv[1:])
held = bytearray(b"x") * (mib << 20)
for number in range(passes):
    for start in range(0, len(held), 1 << 20):
        held[start : start + (1 << 20) : 4096] = bytes([number & 255]) * 256
        sum(held[start : start + (1 << 20)])
"""
"""Writes to every page and adds them up: about 8 ms of one core a MiB."""
HELD_MIB = 60
LIMIT_MIB = 160
SWAP_MIB = 1024


@contextlib.contextmanager
def anonymous(base: Path, size: Size) -> Iterator[Bed]:
    """Two fit; more of them swap each other out."""
    passes = {"small": 4, "normal": 20, "long": 90}[size]
    with loop.swap_space(base, SWAP_MIB), memory_bound(LIMIT_MIB, []) as (procs, clean):
        words = (sys.executable, "-IS", "-c", TOUCH, str(HELD_MIB), str(passes))
        specs = [limited(procs, job("touch", *words))] * 6
        about = (
            f"{len(specs)} jobs write {passes} times to {HELD_MIB} MiB of their own memory, "
            f"{LIMIT_MIB} MiB of memory for all; swap space on this machine's own disk"
        )
        yield Bed(about, together(specs), clean, procs)


BEDS = {"anon-swap": Maker(anonymous, lambda: memory.missing() or loop.missing_swap())}
