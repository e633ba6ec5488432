"""What a bed is: jobs, the files that they use, and what they are made of."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple

from beds import memory

from iodaemon.api.model import JobSpec

HERE = Path(__file__).parent
MIB = 1 << 20

Size = Literal["small", "normal", "long"]
SIZES: tuple[Size, ...] = ("small", "normal", "long")
"""About 5 to 10 s, about 30 s and over 120 s under the best fixed concurrency."""


class Work(NamedTuple):
    """One job of a bed, and how long after the first one it arrives."""

    spec: JobSpec
    arrival_s: float = 0.0


class Bed(NamedTuple):
    """One bed, made.

    Attributes:
        about: what runs there, for the report.
        work: in the order of submission, which is the order of arrival.
        clean: called before each run; leaves nothing of an earlier one in a cache or on the disk.
        procs: of the group whose memory all jobs share, to which the daemon belongs; None: none.
    """

    about: str
    work: Sequence[Work]
    clean: Callable[[], None]
    procs: Path | None = None

    @property
    def launcher(self) -> tuple[str, ...]:
        """The words before the command of a daemon."""
        if self.procs is None:
            return ()
        return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.procs))


class Maker(NamedTuple):
    """How a bed is made.

    Attributes:
        make: prepares it below a directory; whatever it made is gone when the context ends.
        missing: returns what this machine lacks for it: tools, devices, rights.
        oracle: the numbers of concurrent jobs that are tried, beside all at once; empty: no oracle.
    """

    make: Callable[[Path, Size], AbstractContextManager[Bed]]
    missing: Callable[[], list[str]]
    oracle: Sequence[int] = (1, 2, 3, 4)


def job(name: str, *command: str | Path) -> JobSpec:
    """One job as ``iod submit`` submits it; its output is not kept."""
    words = [str(word) for word in command]
    where: JobSpec = {"cwd": "/", "stdout": "/dev/null"}
    return {"name": name, "command": words, "shares_cores": True, **where}


def shell(name: str, script: str, *arguments: str | Path) -> JobSpec:
    """A job that runs a shell script, whose ``$1`` is the first argument."""
    return job(name, "/bin/sh", "-c", script, "sh", *arguments)


def limited(procs: Path, spec: JobSpec) -> JobSpec:
    """The same job below a memory limit (memory.py)."""
    enter = f'echo $$ > {procs} && exec "$@"'
    return {**spec, "command": ["/bin/sh", "-c", enter, "sh", *spec["command"]]}


def together(specs: Sequence[JobSpec]) -> list[Work]:
    """Jobs that all arrive at once."""
    return [Work(spec) for spec in specs]


def nothing() -> None:
    """Clean a bed that leaves nothing."""


def lacking(*tools: str) -> list[str]:
    """Those programs that are not installed."""
    return [tool for tool in tools if shutil.which(tool) is None]


@contextlib.contextmanager
def memory_bound(
    limit_mib: int, files: Sequence[Path]
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A memory limit, and what empties the caches of these files and of all that is below it."""
    with memory.memory_limit(limit_mib * MIB) as procs:

        def clean() -> None:
            memory.forget_cache(procs)
            forget(files)

        yield procs, clean


def make_files(directory: Path, size_mib: int, count: int) -> list[Path]:
    """Files that neither a drive nor gzip can compress, on the disk and not in the page cache.

    They are copies of one another: random bytes are slow to make.
    """
    directory.mkdir(exist_ok=True)
    files = [directory / f"data{number}" for number in range(count)]
    with files[0].open("wb") as out:
        for _ in range(size_mib):
            out.write(os.urandom(MIB))
    for file in files[1:]:
        shutil.copyfile(files[0], file)
    settle(files)
    return files


def settle(files: Sequence[Path]) -> None:
    """Write these files to their disk and take them out of the page cache."""
    for file in files:
        with file.open("rb") as written:
            os.fsync(written.fileno())
    forget(files)


def forget(files: Sequence[Path]) -> None:
    """Take these files, and no others, out of the page cache."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def compiled(name: str, base: Path) -> Path:
    """The program of this source file beside this module, compiled."""
    program = base / name
    subprocess.run(["gcc", "-O2", "-o", str(program), str(HERE / f"{name}.c")], check=True)
    return program
