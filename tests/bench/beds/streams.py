"""Beds of files that are read once, in order, by gzip."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

from beds import spinning
from beds.bed import Bed, Maker, Size, forget, lacking, make_files, settle, shell, together

COMPRESS = 'exec gzip -1 -c "$1" >/dev/null'
TEST = 'exec gzip -t -c <"$1"'
"""Takes a fraction of the time of compressing, so that the disk and not the core is the limit."""


def packed(files: Sequence[Path]) -> None:
    """Make these files archives of gzip, each of its own content."""
    data = gzip.compress(files[0].read_bytes(), compresslevel=0)
    for file in files:
        file.write_bytes(data)
    settle(files)


@contextlib.contextmanager
def spin_streams(base: Path, size: Size) -> Iterator[Bed]:
    """Streams on a disk with one arm, which moves between those that run."""
    mib = {"small": 64, "normal": 256, "long": 1024}[size]
    jobs = 8
    room = f"{jobs * mib // 1024 + 1}G"
    with spinning.spinning_disk(base, size=room, readahead="256k") as disk:
        files = make_files(disk, mib, jobs)
        packed(files)
        specs = [shell("gzip", TEST, file) for file in files]
        about = f"{jobs} gzip -t of {mib} MiB each, spinning disk that reads 256 KiB ahead"
        yield Bed(about, together(specs), lambda: forget(files))


@contextlib.contextmanager
def plain(base: Path, size: Size) -> Iterator[Bed]:
    """Streams on this machine's own disk, with nothing to gain."""
    mib = {"small": 40, "normal": 160, "long": 640}[size]
    files = make_files(base / "plain", mib, 8)
    about = f"{len(files)} gzip -1 of a file of {mib} MiB each, this machine's own disk"
    specs = [shell("gzip", COMPRESS, file) for file in files]
    yield Bed(about, together(specs), lambda: forget(files))


BEDS = {
    "spin-streams": Maker(spin_streams, lambda: lacking("gzip") + spinning.missing()),
    "plain": Maker(plain, lambda: lacking("gzip")),
}
