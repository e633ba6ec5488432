"""Beds of jobs that write."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from beds import memory, spinning
from beds.bed import (
    MIB,
    Bed,
    Maker,
    Size,
    lacking,
    limited,
    memory_bound,
    settle,
    shell,
    together,
)

SORT = 'LC_ALL=C exec sort --parallel=1 -S "$3M" -T "$2" "$1" >/dev/null'
BUFFER_SHARE = 0.1
"""Of the memory limit: what each sort may hold itself."""


def make_texts(directory: Path, size_mib: int, count: int) -> list[Path]:
    """Files of random lines of 64 characters, on the disk and not in the page cache."""
    directory.mkdir()
    files = [directory / f"text{number}" for number in range(count)]
    with files[0].open("w") as out:
        for _ in range(size_mib):
            out.write(os.urandom(MIB // 65 * 32).hex("\n", 32) + "\n")
    for file in files[1:]:
        shutil.copyfile(files[0], file)
    settle(files)
    return files


@contextlib.contextmanager
def sort(base: Path, size: Size) -> Iterator[Bed]:
    """External sort: runs are written to temporary files and merged."""
    size_mib, limit_mib = {"small": (150, 120), "normal": (600, 480), "long": (2400, 1920)}[size]
    files = make_texts(base / "plain", size_mib, 6)
    temporary = base / "temporary"
    with memory_bound(limit_mib, files) as (procs, forget_all):

        def clean() -> None:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            forget_all()

        buffer_mib = int(limit_mib * BUFFER_SHARE)
        specs = [shell("sort", SORT, file, temporary, str(buffer_mib)) for file in files]
        about = (
            f"{len(files)} sort -S {buffer_mib}M of a file of {size_mib} MiB each, {limit_mib} MiB "
            "of memory for all, temporary files on this machine's own disk"
        )
        yield Bed(about, together([limited(procs, spec) for spec in specs]), clean, procs)


@contextlib.contextmanager
def fsync_writers(base: Path, size: Size) -> Iterator[Bed]:
    """Files that are written as a whole and then to the disk, and others block by block."""
    mib = {"small": 64, "normal": 320, "long": 1200}[size]
    blocks = mib
    with spinning.spinning_disk(base, size=f"{8 * mib // 1024 + 2}G", readahead="256k") as disk:
        out = disk / "out"

        def clean() -> None:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()

        specs = []
        for number in range(4):
            whole = f"exec dd if=/dev/zero of={out}/whole{number} bs=1M count={mib} conv=fsync"
            each = f"exec dd if=/dev/zero of={out}/each{number} bs=256k count={blocks} oflag=dsync"
            specs += [shell("dd-fsync", whole), shell("dd-dsync", each)]
        about = (
            f"4 dd conv=fsync of {mib} MiB and 4 dd oflag=dsync of {blocks} blocks of 256 KiB, "
            "spinning disk"
        )
        yield Bed(about, together(specs), clean)


BEDS = {
    "sort": Maker(sort, lambda: lacking("sort") + memory.missing()),
    "fsync-writers": Maker(fsync_writers, lambda: lacking("dd") + spinning.missing()),
}
