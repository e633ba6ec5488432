"""A workload file: which jobs are compared; commands, or the built-in kernels.

    [[job]]
    kernel = "read"
    size = "256 MiB"
    count = 4

    [[job]]
    command = ["./solve", "--input", "case7", "--out", "{scratch}/out{copy}"]
    cpus = 2

Keys are those of ``iod submit``: ``cpus``, ``mem``, ``time``, ``io_rate``, ``io_share``,
``no_suspend``, ``cwd``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iodaemon.api.model import JobSpec
from iodaemon.config.settings import Scalar, Topology
from iodaemon.config.table import decode_table, read_toml
from iodaemon.errors import ConfigError, NoData, NotFound, RequestError
from iodaemon.kernels import builtin, paced
from iodaemon.node.sampler.proc_files import parse_meminfo, read_file
from iodaemon.node.topology import own_limits, read_topology
from iodaemon.registry import nearest
from iodaemon.units import format_bytes

_FILE_BYTES: Final = 256 << 20
"""Of the file whose places a kernel chooses itself."""
_MOST_COUNT: Final = 10_000
PROGRAMS: Final = (*builtin.KINDS, "paced")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}")
_READERS: Final = frozenset({"read", "paced", "mmap", "random", "fork"})
_OF_KERNELS: Final = (
    "size_bytes",
    "block_bytes",
    "rate_bytes_per_s",
    "rounds",
    "hold_bytes",
    "cached",
)


class JobTable(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[job]]``: a command or a kernel, so many times.

    Attributes:
        name: for the tables. Empty: the program's, or the kernel.
        count: copies of it.
        command: program and arguments; in them {scratch} is a directory that is empty before every
            run, {file} the copy's own file, {copy} its number from 0.
        cwd: where it runs. None: the directory of the workload file.
        kernel: one of ``PROGRAMS``.
        size_bytes: what the kernel moves in all.
        file_bytes: of a file of the copy's own, to read. None: ``size_bytes``; 256 MiB of random
            and fork.
        block_bytes: at a time. None: 1 MiB; 128 KiB of paced, 4 KiB of random and compute.
        rate_bytes_per_s: at most; paced needs it. None: as fast as it goes.
        rounds: of compute, about 0.03 s each.
        hold_bytes: memory of its own that the kernel has in use meanwhile.
        cached: through the page cache, not past it.
    """

    name: str = ""
    count: Annotated[int, Meta(ge=1, le=_MOST_COUNT)] = 1
    command: tuple[str, ...] = ()
    cwd: str | None = None
    kernel: str | None = None
    size_bytes: int = 0
    file_bytes: int | None = None
    block_bytes: int | None = None
    rate_bytes_per_s: float | None = None
    rounds: Annotated[int, Meta(ge=0)] = 0
    hold_bytes: Annotated[int, Meta(ge=0)] = 0
    cached: bool = False
    cpus: Annotated[int, Meta(ge=1)] = 1
    mem_bytes: int | None = None
    time_s: float | None = None
    io_rate_bytes_per_s: float | None = None
    io_share: float | None = None
    no_suspend: bool = False

    def __post_init__(self) -> None:
        if bool(self.command) == (self.kernel is not None):
            raise ValueError("write either command or kernel")
        if self.name and not _NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; write up to 40 letters, digits and _ . + -")
        if self.io_share is not None and not 0.0 <= self.io_share <= 1.0:
            raise ValueError(f"io_share is {self.io_share}; write 0 to 1")
        if self.command:
            _check_command(self)
        else:
            _check_kernel(self)

    @property
    def step_bytes(self) -> int:
        """What the kernel moves at a time."""
        if self.kernel == "fork":
            return builtin.FORK_BYTES
        if self.kernel == "paced":
            return self.block_bytes or paced.BLOCK
        return self.block_bytes or builtin.least_block(self.kernel or "read")

    @property
    def own_file_bytes(self) -> int:
        """Of the file that is made for each copy to read; 0: none is."""
        if self.file_bytes is not None:
            return self.file_bytes
        if self.kernel not in _READERS:
            return 0
        return _FILE_BYTES if self.kernel in ("random", "fork") else self.size_bytes

    @property
    def output_bytes(self) -> int:
        """Of what each copy writes; 0 where that is nothing, or not known."""
        if self.kernel == "write":
            return min(self.size_bytes, builtin.WRAP_BLOCKS * self.step_bytes)
        return self.step_bytes if self.kernel == "compute" else 0


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload file, as read.

    Attributes:
        name: the file's name without ``.toml``.
        directory: on the disk that the jobs use; files are made below it.
        jobs: each with a name of its own.
        regulation: replaces values of every policy's [regulation].
    """

    name: str
    path: Path
    directory: Path
    jobs: tuple[JobTable, ...]
    topology: Topology = Topology()
    regulation: dict[str, Scalar] = {}

    @property
    def has_commands(self) -> bool:
        return any(job.command for job in self.jobs)


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    job: tuple[JobTable, ...] = ()
    directory: str | None = None
    topology: Topology = Topology()
    regulation: dict[str, Scalar] = {}


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where the files of runs are.

    Attributes:
        data: files that are read.
        scratch: what is written; empty before every run.
        is_direct: whether files there can be read past the page cache.
    """

    data: Path
    scratch: Path
    is_direct: bool = True


def load_workload(path: Path, directory: str | None = None) -> Workload:
    """The workload that a TOML file describes.

    Args:
        path: of the file.
        directory: in place of the one that the file says; None: that one, else the current one.

    Raises:
        NotFound: there is no such file.
        ConfigError: it is wrong; one line with table and key.
    """
    try:
        table = read_toml(path)
    except FileNotFoundError as error:
        raise NotFound(f"no workload file {path}: docs/compare.md shows what one holds") from error
    document = decode_table(table, _Document, where=str(path))
    if not document.job:
        raise ConfigError(f"{path}: no job in it; write at least one [[job]]")
    if directory is None and document.directory is not None:
        place = (path.resolve().parent / document.directory).resolve()
    else:
        place = Path(directory or os.getcwd()).resolve()
    return Workload(
        name=path.stem,
        path=path.resolve(),
        directory=place,
        jobs=_named(document.job, str(path)),
        topology=document.topology,
        regulation=document.regulation,
    )


def job_spec(job: JobTable, copy: int, workload: Workload, places: Places) -> JobSpec:
    """One copy as it is submitted."""
    spec: JobSpec = {
        "command": _words(job, copy, places),
        "name": f"{job.name}.{copy}",
        "cwd": str(workload.path.parent / (job.cwd or "")),
        "cpus": job.cpus,
        "no_suspend": job.no_suspend,
    }
    if job.mem_bytes is not None:
        spec["memory_bytes"] = job.mem_bytes
    if job.time_s is not None:
        spec["walltime_s"] = job.time_s
    if job.io_rate_bytes_per_s is not None:
        spec["io_rate_bytes_per_s"] = job.io_rate_bytes_per_s
    if job.io_share is not None:
        spec["io_share"] = job.io_share
    return spec


def data_file(job: JobTable, copy: int, places: Places) -> Path:
    """The file of the copy's own that it reads."""
    return places.data / f"{job.name}.{copy}"


def needed_bytes(jobs: Sequence[JobTable]) -> int:
    """Room that the files of all copies take: those to read and those written."""
    return sum((job.own_file_bytes + job.output_bytes) * job.count for job in jobs)


def _words(job: JobTable, copy: int, places: Places) -> list[str]:
    data, scratch = str(data_file(job, copy, places)), str(places.scratch)
    if job.kernel is None:
        marks = {"{scratch}": scratch, "{file}": data, "{copy}": str(copy)}
        # only these marks are replaced: braces mean much to other programs
        found = re.compile("|".join(map(re.escape, marks)))
        return [found.sub(lambda mark: marks[mark[0]], word) for word in job.command]
    file = data if job.kernel in _READERS else f"{scratch}/{job.name}.{copy}"
    kind = "read" if job.kernel == "paced" else job.kernel
    words = [sys.executable, "-P", "-m", "iodaemon.kernels.builtin", kind, file]
    words += ["--size", str(job.size_bytes), "--block", str(job.step_bytes)]
    words += ["--rounds", str(job.rounds), "--hold", str(job.hold_bytes)]
    words += ["--rate", str(job.rate_bytes_per_s)] if job.rate_bytes_per_s else []
    words += ["--cached"] if job.cached or not places.is_direct else []
    return words


def _named(jobs: Sequence[JobTable], where: str) -> tuple[JobTable, ...]:
    named: list[JobTable] = []
    for number, job in enumerate(jobs, start=1):
        taken = {other.name for other in named}
        name = job.name or _default_name(job)
        if name in taken and not job.name:
            name = f"{name}-{number}"
        if name in taken:
            raise ConfigError(f"{where} [[job]] {number}: a second {name!r}; give it another name")
        named.append(msgspec.structs.replace(job, name=name))
    return tuple(named)


def _default_name(job: JobTable) -> str:
    if job.kernel is not None:
        return job.kernel
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", os.path.basename(job.command[0]))[:30]
    return name if _NAME.fullmatch(name) else "command"


def _check_command(job: JobTable) -> None:
    given = [name for name in _OF_KERNELS if getattr(job, name)]
    if given:
        raise ValueError(f"{given[0]} is for kernels; the command says what it does")
    if job.file_bytes is not None and job.file_bytes <= 0:
        raise ValueError(f"file_bytes is {job.file_bytes}; write a size above 0")


def _check_kernel(job: JobTable) -> None:
    step, kind = job.step_bytes, job.kernel or ""
    if kind not in PROGRAMS:
        raise ValueError(f"kernel is {kind!r}; {nearest(kind, PROGRAMS)}")
    if job.block_bytes is not None and (step <= 0 or step % builtin.PAGE or kind == "fork"):
        raise ValueError(f"block_bytes is {step}; write a multiple of 4 KiB, none for fork")
    if kind == "compute":
        if job.rounds < 1:
            raise ValueError("rounds is missing; write how many, for example 60")
        return
    if job.size_bytes < step or job.size_bytes % step:
        raise ValueError(f"size_bytes is {job.size_bytes}; write a multiple of {step}")
    if kind in _READERS and job.own_file_bytes < step:
        raise ValueError(f"file_bytes is {job.file_bytes}; write {step} or more")
    if kind == "paced" and job.cached:
        raise ValueError("cached is not for paced, which keeps its file out of the page cache")
    if kind == "paced" and job.rate_bytes_per_s is None:
        raise ValueError('rate_bytes_per_s is missing; write for example "20 MB/s"')
    if kind == "paced" and job.own_file_bytes < job.size_bytes:
        raise ValueError("file_bytes is below size_bytes; paced reads each byte once")
    if job.rate_bytes_per_s is not None and (job.rate_bytes_per_s <= 0 or kind == "fork"):
        raise ValueError("rate_bytes_per_s: write a rate above 0, none for fork")


def check_fit(workload: Workload, root: Path = Path("/")) -> None:
    """Refuse what the daemons would refuse after everything was made.

    Raises:
        ConfigError: the file's sockets do not fit the machine.
        RequestError: a job fits on none of them; or together the jobs hold more memory than is
            free, with a tenth of it to spare.
    """
    cpus, nodes = own_limits()
    topology = workload.topology
    try:
        parts = read_topology(
            root,
            allowed_cpus=cpus,
            allowed_nodes=nodes,
            sockets=topology.sockets,
            slot=topology.slot,
        )
    except ConfigError as error:
        raise ConfigError(f"{workload.path}: {error}") from error
    slots = [len(part.slots) * topology.times for part in parts]
    widest = max(slots, default=0)
    for number, job in enumerate(workload.jobs, start=1):
        if job.cpus > widest:
            raise RequestError(
                f"{workload.path} [[job]] {number} ({job.name}): {job.cpus} cpus, a socket "
                f"{widest} slots: lower cpus, or set oversubscribe in the file's [topology]"
            )
    held = sorted((job.hold_bytes for job in workload.jobs for _ in range(job.count)), reverse=True)
    held_bytes = sum(held[: sum(slots)])
    try:
        available_bytes = parse_meminfo(read_file(root / "proc/meminfo")).available_bytes
    except NoData:
        return
    wanted = held_bytes + held_bytes // 10
    if held_bytes and available_bytes is not None and wanted > available_bytes:
        raise RequestError(
            f"{workload.path}: jobs that run together hold {format_bytes(held_bytes)}, and "
            f"{format_bytes(available_bytes)} of memory are free: lower hold, or count"
        )
