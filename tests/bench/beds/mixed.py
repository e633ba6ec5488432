"""A bed of streams, small random readers and computing jobs beside each other on one arm."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from beds import spinning
from beds.bed import Bed, Maker, Size, forget, job, lacking, make_files, shell, together
from beds.compute import spin

TAR = 'tar -C "$1" -cf - "$2" | cat >/dev/null'
BLOCK = 4096
SMALL_MIB = 64
"""In which the random blocks are read."""


@contextlib.contextmanager
def mixed(base: Path, size: Size) -> Iterator[Bed]:
    """Jobs that use different things, so best beside each other."""
    mib, reads, millions = {
        "small": (128, 80, 25),
        "normal": (512, 400, 125),
        "long": (2048, 1800, 550),
    }[size]
    with spinning.spinning_disk(base, size=f"{3 * mib // 1024 + 2}G", readahead="512k") as disk:
        streams = make_files(disk / "streams", mib, 3)
        smalls = make_files(disk / "small", SMALL_MIB, 3)
        words = (sys.executable, "-m", "iodaemon.kernels.builtin", "random")
        count = ("--size", str(reads * BLOCK), "--block", str(BLOCK))
        specs = []
        for stream, small in zip(streams, smalls, strict=True):
            specs += [
                shell("tar", TAR, stream.parent, stream.name),
                job("random", *words, small, *count),
                spin(millions),
            ]
        about = (
            f"3 tar of a file of {mib} MiB, 3 jobs that read {reads} random blocks of 4 KiB and 3 "
            f"that compute ({millions} million steps of Python), spinning disk"
        )
        yield Bed(about, together(specs), lambda: forget([*streams, *smalls]))


BEDS = {"mixed": Maker(mixed, lambda: lacking("tar") + spinning.missing(), oracle=(2, 3, 4, 6))}
