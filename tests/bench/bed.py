"""Where the same jobs are run under every regulation: three beds that differ in what they give.

- ``thrash``: jobs that read their files again and again, all together more than the memory they
  may use, on a spinning disk.
- ``spin``: jobs that read a file of their own once, in order, on a spinning disk.
- ``plain``: readers and writers past the page cache on this machine's own disk.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from beds import memory, spinning

from iodaemon.api.model import JobSpec
from iodaemon.kernels.builtin import read

HERE = Path(__file__).parent
MIB = 1 << 20
JOBS = 8


class Bed(NamedTuple):
    """One bed, made.

    Attributes:
        name: of the bed.
        about: what is run there, for the report.
        jobs: in the order of submission.
        clean: before a run, so that nothing is left in a cache.
    """

    name: str
    about: str
    jobs: list[JobSpec]
    clean: Callable[[], None]


def missing(name: str) -> list[str]:
    """What this machine lacks for the bed."""
    lacks = [] if name == "plain" else spinning.missing()
    return lacks + (memory.missing() if name == "thrash" else [])


@contextlib.contextmanager
def make(name: str, base: Path, *, is_small: bool) -> Iterator[Bed]:
    """The bed; whatever it was made of is gone afterwards."""
    with {"thrash": thrash, "spin": spin, "plain": plain}[name](base, is_small=is_small) as bed:
        yield bed


@contextlib.contextmanager
def thrash(base: Path, *, is_small: bool) -> Iterator[Bed]:
    """Files that do not fit into memory together, read again and again."""
    size_mib, limit_mib, passes, cpu_us = (16, 50, 5, 1000) if is_small else (48, 150, 4, 1000)
    with (
        spinning.spinning_disk(base, readahead="512k") as disk,
        memory.memory_limit(limit_mib * MIB) as procs,
    ):
        files = make_files(disk, size_mib)

        def clean() -> None:
            memory.forget_cache(procs)
            forget(files)

        reader = compile_reader(base)
        enter = f'echo $$ > {procs} && exec "$@"'
        jobs = [
            job("reread", "/bin/sh", "-c", enter, "sh", reader, str(file), str(passes), str(cpu_us))
            for file in files
        ]
        about = (
            f"{JOBS} jobs read a file of {size_mib} MiB of their own {passes} times and compute "
            f"{cpu_us / 1000:g} ms a MiB; together they may use {limit_mib} MiB of memory, page "
            f"cache included; spinning disk that reads 512 KiB ahead"
        )
        yield Bed(name="thrash", about=about, jobs=jobs, clean=clean)


@contextlib.contextmanager
def spin(base: Path, *, is_small: bool) -> Iterator[Bed]:
    """Sequential streams on one arm."""
    size_mib = 64 if is_small else 128
    with spinning.spinning_disk(base, readahead="256k") as disk:
        files = make_files(disk, size_mib)
        reader = compile_reader(base)
        jobs = [job("read", reader, str(file), "1", "0") for file in files]
        about = (
            f"{JOBS} jobs read a file of {size_mib} MiB of their own once, in order, through the "
            f"page cache; spinning disk that reads 256 KiB ahead"
        )
        yield Bed(name="spin", about=about, jobs=jobs, clean=lambda: forget(files))


@contextlib.contextmanager
def plain(base: Path, *, is_small: bool) -> Iterator[Bed]:
    """Readers and writers past the page cache where nothing is to be gained."""
    busy_s, file_mib = (4.0, 64) if is_small else (15.0, 256)
    place = base / "plain"
    place.mkdir()
    files = make_files(place, file_mib, count=JOBS // 2)
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(lambda file: read(str(file), 4 * file_mib * MIB), files))
    rate = 4 * file_mib * MIB * len(files) / (time.monotonic() - began_s)
    each = int(rate * busy_s / JOBS) // MIB * MIB
    jobs: list[JobSpec] = []
    for number, file in enumerate(files):
        words = (sys.executable, "-m", "iodaemon.kernels.builtin")
        jobs.append(job("read", *words, "read", str(file), "--size", str(each)))
        output = str(place / f"out{number}")
        jobs.append(job("write", *words, "write", output, "--size", str(each // 2)))
    about = (
        f"{JOBS // 2} jobs read {each // MIB} MiB and {JOBS // 2} write {each // 2 // MIB} MiB, "
        "in order, 1 MiB at a time past the page cache; this machine's own disk"
    )
    yield Bed(name="plain", about=about, jobs=jobs, clean=lambda: None)


def job(name: str, *command: str) -> JobSpec:
    """One job as it is submitted; its output is not kept."""
    return {"name": name, "command": list(command), "cwd": "/", "stdout": "/dev/null"}


def make_files(directory: Path, size_mib: int, *, count: int = JOBS) -> list[Path]:
    """Files that no drive can compress, on the disk and not in the page cache."""
    files = [directory / f"data{number}" for number in range(count)]
    for file in files:
        with file.open("wb") as out:
            for _ in range(size_mib):
                out.write(os.urandom(MIB))
            out.flush()
            os.fsync(out.fileno())
    forget(files)
    return files


def forget(files: list[Path]) -> None:
    """Take these files, and no others, out of the page cache."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def compile_reader(base: Path) -> str:
    """The program reader.c."""
    program = base / "reader"
    source = str(HERE / "beds/reader.c")
    subprocess.run(["gcc", "-O2", "-o", str(program), source], check=True)
    return str(program)
