"""Beds of jobs that read a file again and again, together more than the memory they may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from beds import memory
from beds.bed import (
    Bed,
    Maker,
    Size,
    Work,
    lacking,
    limited,
    make_files,
    memory_bound,
    shell,
    together,
)
from beds.compute import spin

from iodaemon.api.model import JobSpec

REREAD = 'for pass in $(seq "$2"); do wc -l "$1" || exit 1; done'
"""wc reads some GB/s, more than most disks; md5sum would hardly be slower from the disk."""
FILE_MIB = 150
LIMIT_MIB = 400
"""Two of the files fit, three do not."""
PASSES = {"small": 60, "normal": 240, "long": 1200}


def reread(file: Path, passes: int) -> JobSpec:
    """A job that reads this file so many times."""
    return shell("wc", REREAD, file, str(passes))


@contextlib.contextmanager
def rereads(base: Path, size: Size) -> Iterator[Bed]:
    """As many as fit together are fastest; one more makes all of them read from the disk."""
    passes = PASSES[size]
    files = make_files(base / "plain", FILE_MIB, 6)
    with memory_bound(LIMIT_MIB, files) as (procs, clean):
        specs = [limited(procs, reread(file, passes)) for file in files]
        about = (
            f"{len(files)} jobs, {passes} times wc -l of a file of {FILE_MIB} MiB, {LIMIT_MIB} "
            "MiB of memory for all, page cache included; this machine's own disk"
        )
        yield Bed(about, together(specs), clean, procs)


@contextlib.contextmanager
def arrivals(base: Path, size: Size) -> Iterator[Bed]:
    """Re-readers that arrive one second apart, short and long ones in turn."""
    passes = PASSES[size]
    files = make_files(base / "plain", FILE_MIB, 6)
    with memory_bound(LIMIT_MIB, files) as (procs, clean):
        lengths = [passes * 5 // 2 if number % 2 == 0 else passes for number in range(6)]
        work = [
            Work(limited(procs, reread(file, length)), float(number))
            for number, (file, length) in enumerate(zip(files, lengths, strict=True))
        ]
        about = (
            f"as reread, in turns {lengths[0]} and {lengths[1]} passes, one job arriving each "
            "second"
        )
        yield Bed(about, work, clean, procs)


@contextlib.contextmanager
def spinners(base: Path, size: Size) -> Iterator[Bed]:
    """Computing jobs that came first and have nothing to do with the contention of the others."""
    passes = PASSES[size]
    millions = {"small": 60, "normal": 240, "long": 1000}[size]
    files = make_files(base / "plain", FILE_MIB, 4)
    with memory_bound(LIMIT_MIB, files) as (procs, clean):
        readers = [limited(procs, reread(file, passes)) for file in files]
        about = (
            f"2 jobs that compute ({millions} million steps of Python) before "
            f"{len(files)} jobs as in reread"
        )
        yield Bed(about, together([spin(millions), spin(millions), *readers]), clean, procs)


def missing() -> list[str]:
    """What this machine lacks."""
    return lacking("wc", "seq") + memory.missing()


BEDS = {
    "reread": Maker(rereads, missing),
    "arrivals": Maker(arrivals, missing),
    "spinners": Maker(spinners, missing),
}
