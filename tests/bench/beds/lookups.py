"""Beds of random lookups in databases that together are larger than the memory they may use."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from beds import loop, memory
from beds.bed import HERE, MIB, Bed, Maker, Size, job, limited, memory_bound, settle, together

SHAPES = {"small": (40, 120, 120_000), "normal": (160, 420, 400_000), "long": (160, 420, 3_000_000)}
"""MiB of a database, MiB of memory for all jobs, lookups of each. Two databases fit, three do not:
the interpreters count as well, 8 MiB each."""
MAPPED_SHARE = 0.3
"""Of these lookups where no read calls are made: each page fault reads 128 KiB around it."""
ROW_BYTES = 950
"""Four rows a page of 4 KiB."""


def make_databases(directory: Path, size_mib: int, count: int) -> list[Path]:
    """Tables of random rows, of this size; on the disk, not in the page cache."""
    directory.mkdir(exist_ok=True)
    files = [directory / f"data{number}.db" for number in range(count)]
    database = sqlite3.connect(files[0])
    database.execute("PRAGMA journal_mode = off")
    database.execute("PRAGMA synchronous = off")
    database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
    rows = size_mib * MIB // 4096 * 4
    database.executemany(
        "INSERT INTO item (data) VALUES (?)", ((os.urandom(ROW_BYTES),) for _ in range(rows))
    )
    database.commit()
    database.close()
    for file in files[1:]:
        shutil.copyfile(files[0], file)
    settle(files)
    return files


@contextlib.contextmanager
def lookups(base: Path, size: Size, *, mapped: bool) -> Iterator[Bed]:
    """Jobs that look up rows, by read calls or in mapped memory."""
    size_mib, limit_mib, count = SHAPES[size]
    count = int(count * MAPPED_SHARE) if mapped else count
    with contextlib.ExitStack() as made:
        place = base
        if mapped:
            place = made.enter_context(loop.file_system(base, 8 * size_mib))
        files = make_databases(place / "databases", size_mib, 6)
        procs, clean = made.enter_context(memory_bound(limit_mib, files))
        mapped_bytes = 2 * size_mib * MIB if mapped else 0
        words = (sys.executable, "-IS", HERE / "lookup.py")
        specs = [
            job("lookup", *words, file, str(count), str(seed), str(mapped_bytes))
            for seed, file in enumerate(files)
        ]
        about = (
            f"{len(files)} jobs, {count:,} random lookups in an SQLite database of {size_mib} "
            f"MiB {'mapped into memory' if mapped else 'by read calls'}, {limit_mib} MiB of "
            f"memory for all; this machine's own disk{', 128 KiB readahead' if mapped else ''}"
        )
        yield Bed(about, together([limited(procs, spec) for spec in specs]), clean, procs)


BEDS = {
    "lookups-read": Maker(lambda base, size: lookups(base, size, mapped=False), memory.missing),
    "lookups-mmap": Maker(
        lambda base, size: lookups(base, size, mapped=True),
        lambda: memory.missing() + loop.missing(),
    ),
}
