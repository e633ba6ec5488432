"""Records of real jobs, or others like them: what a workload for a cluster is drawn from.

Real ones are read from CSV; their columns are in ``COLUMNS``. Without a file they are drawn from
laws that were fitted, class by class of size, to 2,794 jobs of Theta (Argonne Leadership Computing
Facility) of five weeks of 2022: Darshan counters and the scheduler's log joined.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NotFound, RequestError

NEEDED: Final = ("nodes", "runtime")
"""Columns without which a CSV file has no jobs: nodes, and length, s."""
_WALLTIME: Final = "walltime"
_IO: Final = ("read", "written", "rt", "wt", "mt", "nprocs")
COLUMNS: Final = (*NEEDED, _WALLTIME, *_IO)
"""All that is read of it: beside these the walltime, s; bytes read and written; seconds in reads,
writes and metadata, summed over all ranks; ranks. Others are passed over."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it ran once.

    Attributes:
        nodes: that it held.
        run_s: its length, above 0.
        walltime_s: asked for. None: not known.
        io_share: the part of its length in I/O. None: its I/O is not known.
        io_bytes_per_s: its mean bandwidth while in I/O. None: as above, or it has none.
    """

    nodes: int
    run_s: float
    walltime_s: float | None = None
    io_share: float | None = None
    io_bytes_per_s: float | None = None


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds.

    Attributes:
        records: at least one.
        problems: a line for every row that was left out, or whose I/O is taken as not known.
    """

    records: tuple[Record, ...]
    problems: tuple[str, ...] = ()


def read_records(path: Path) -> Records:
    """The records of a CSV file. A row that makes no sense costs that row, no more.

    What lacking columns would say is not known of any job, which is told once. The time in I/O is
    the mean over the ranks: (rt + wt + mt) / nprocs, at most the length.

    Raises:
        NotFound: there is no such file.
        RequestError: it is no such table, has no nodes or lengths, or no row of it is a job.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            lacking = frozenset(COLUMNS).difference(rows.fieldnames or ())
            if lacking.intersection(NEEDED):
                raise RequestError(
                    f"{path}: no column {_named(lacking)}; needed are {', '.join(NEEDED)}, and "
                    f"for walltimes and I/O {', '.join(COLUMNS[len(NEEDED) :])}"
                )
            read = [(rows.line_num, *_parse(row, lacking)) for row in rows]
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    problems = (
        *(f"{path}: {problem}" for problem in _of_all(lacking)),
        *(f"{path}:{number}: {problem}" for number, _, problem in read if problem),
    )
    records = tuple(record for _, record, _ in read if record is not None)
    if not records:
        raise RequestError("; ".join((f"{path}: no row of it is a job", *problems[:1])))
    return Records(records=records, problems=problems)


def _named(lacking: frozenset[str]) -> str:
    return ", ".join(name for name in COLUMNS if name in lacking)


def _of_all(lacking: frozenset[str]) -> Iterator[str]:
    """What is not known of any job, for columns that are not there."""
    if _WALLTIME in lacking:
        yield f"no column {_WALLTIME}; the walltime of no job is known"
    if without := [name for name in _IO if name in lacking]:
        yield f"no column {', '.join(without)}; the I/O of no job is known"


def _parse(row: Mapping[str, str | None], lacking: frozenset[str]) -> tuple[Record | None, str]:
    """The record, if the row is one, and what is wrong with it beside columns that lack."""
    try:
        nodes, run_s = _size(row)
    except ValueError as error:
        return None, f"left out: {error}"
    problems: list[str] = []
    walltime_s: float | None = None
    share: float | None = None
    rate: float | None = None
    try:
        walltime_s = None if _WALLTIME in lacking else _above_zero(row, _WALLTIME)
    except ValueError as error:
        problems.append(f"walltime not known: {error}")
    try:
        if not lacking.intersection(_IO):
            share, rate = _io(row, run_s)
    except ValueError as error:
        problems.append(f"I/O not known: {error}")
    record = Record(
        nodes=nodes, run_s=run_s, walltime_s=walltime_s, io_share=share, io_bytes_per_s=rate
    )
    return record, "; ".join(problems)


def _size(row: Mapping[str, str | None]) -> tuple[int, float]:
    """Nodes and length.

    Raises:
        ValueError: there is no job without.
    """
    nodes = _above_zero(row, "nodes")
    if nodes != int(nodes):
        raise ValueError(f"nodes is {nodes:g}, no whole number")
    return int(nodes), _above_zero(row, "runtime")


def _io(row: Mapping[str, str | None], run_s: float) -> tuple[float, float | None]:
    """Share and bandwidth; no bandwidth where nothing was moved.

    Raises:
        ValueError: a number is missing or makes no sense.
    """
    read, written, rt_s, wt_s, mt_s, ranks = (_number(row, name) for name in _IO)
    if min(read, written, rt_s, wt_s, mt_s) < 0.0 or ranks < 1.0:
        raise ValueError("a count below 0, or no ranks")
    io_s = (rt_s + wt_s + mt_s) / ranks
    moved = read + written
    if moved == 0.0:
        return 0.0, None
    if io_s <= 0.0:
        raise ValueError(f"{moved:g} bytes were moved in no time")
    if io_s > run_s:
        raise ValueError(f"{io_s:g} s in I/O, of a runtime of {run_s:g} s")
    return io_s / run_s, moved / io_s


def _number(row: Mapping[str, str | None], name: str) -> float:
    text = (row[name] or "").strip()
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, no number" if text else f"{name} is empty") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text}")
    return value


def _above_zero(row: Mapping[str, str | None], name: str) -> float:
    value = _number(row, name)
    if value <= 0.0:
        raise ValueError(f"{name} is {value:g}")
    return value


# -- laws ------------------------------------------------------------------------------------------


class LogNormal(msgspec.Struct, frozen=True):
    """exp(N(ln median, sigma)), cut to a range: what falls outside is at its end."""

    median: float
    sigma: float
    least: float
    most: float

    def at(self, deviation: float) -> float:
        """The value so many standard deviations from the median."""
        return min(self.most, max(self.least, self.median * math.exp(self.sigma * deviation)))

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return self.at(rng.gauss(0.0, 1.0))


class SizeClass(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one order of size.

    Attributes:
        part: of all jobs.
        nodes: how many, and how often.
        walltime_s: asked for.
        used: length / walltime.
        io_bytes_per_s: bandwidth in I/O.
    """

    part: float
    nodes: tuple[tuple[int, float], ...]
    walltime_s: LogNormal
    used: LogNormal
    io_bytes_per_s: LogNormal


_BANDWIDTH: Final = (2.4, 1e4, 1e13)
"""Sigma and range of all three classes; the medians are measured."""
SMALL: Final = SizeClass(
    part=0.31,
    nodes=((1, 0.18), (2, 0.20), (4, 0.12), (8, 0.50)),
    walltime_s=LogNormal(2600.0, 1.0, 300.0, 3600.0),
    used=LogNormal(0.17, 1.35, 0.005, 1.0),
    io_bytes_per_s=LogNormal(0.6e9, *_BANDWIDTH),
)
"""Up to 8 nodes, at most one hour: the queue for debugging."""
USUAL: Final = SizeClass(
    part=0.45,
    nodes=((128, 1.0),),
    walltime_s=LogNormal(9000.0, 1.1, 1800.0, 10800.0),
    used=LogNormal(0.52, 1.35, 0.005, 1.0),
    io_bytes_per_s=LogNormal(6e9, *_BANDWIDTH),
)
"""128 nodes, the least of the queue for production, at most three hours."""
LARGE: Final = SizeClass(
    part=0.24,
    nodes=(
        *((256, 0.52), (384, 0.03), (512, 0.26), (640, 0.07)),
        *((1024, 0.05), (1280, 0.02), (2048, 0.03), (3180, 0.02)),
    ),
    walltime_s=LogNormal(11000.0, 1.0, 1800.0, 86400.0),
    used=LogNormal(0.75, 1.35, 0.005, 1.0),
    io_bytes_per_s=LogNormal(20e9, *_BANDWIDTH),
)
"""256 nodes and more, at most a day."""
SIZE_CLASSES: Final = (SMALL, USUAL, LARGE)
IO_SHARE: Final = LogNormal(0.0012, 2.7, 1e-9, 0.5)
"""Of all classes; the median and the quantiles from 0.75 on are met, those below are lower in truth
(they do next to no I/O)."""
IO_CORRELATION: Final = -0.4
"""Of the logarithms of share and bandwidth: a job that is long in I/O is mostly slow in it. Fitted
to the upper quantiles of the intensity, their product; over all jobs it is -0.09."""


def draw_record(rng: random.Random) -> Record:
    """A job of which no record is at hand."""
    parts = [each.part for each in SIZE_CLASSES]
    size = rng.choices(SIZE_CLASSES, parts)[0]
    nodes, weights = zip(*size.nodes, strict=True)
    walltime_s = size.walltime_s.draw(rng)
    long, own = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)
    fast = IO_CORRELATION * long + math.sqrt(1.0 - IO_CORRELATION**2) * own
    return Record(
        nodes=rng.choices(nodes, weights)[0],
        run_s=walltime_s * size.used.draw(rng),
        walltime_s=walltime_s,
        io_share=IO_SHARE.at(long),
        io_bytes_per_s=size.io_bytes_per_s.at(fast),
    )


def draw_records(rng: random.Random) -> Iterator[Record]:
    """As many as are wanted."""
    while True:
        yield draw_record(rng)
