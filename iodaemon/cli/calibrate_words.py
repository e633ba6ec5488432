"""A calibration for people, and its figure."""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iodaemon.calibration.knee import curves
from iodaemon.calibration.picture import draw
from iodaemon.calibration.record import Calibration, Kind, Knee, Leaf, Pattern, Point
from iodaemon.cli.output import Column, aligned, local_time, table
from iodaemon.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from iodaemon.simulator.experiment import Figure

_COLD: Final = {
    "direct": "past the page cache (O_DIRECT)",
    "dropped": "dropped from the page cache before each step",
}
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 60
_MOST_DIGITS: Final = 4
"""Behind the point; a knee is not known any closer."""
_WHOLE: Final = 0.75
"""Of what was asked: a smaller request was split. A few of others among them are no matter."""
_TIMES: Final[tuple[tuple[Kind, Pattern], ...]] = (
    ("read", "order"),
    ("read", "random"),
    ("write", "order"),
    ("write", "random"),
)


def lines_of(made: Calibration) -> list[str]:
    """All of it, the figure last."""
    lines = aligned([*_heading(made), *_figures(made)])
    for leaf in made.leaves:
        by = f"timed by the {made.method.timed_by}; *: split by the kernel, timed by the part"
        lines += ["", f"lone requests of {leaf.name}, {by}"]
        lines += _lone_table(leaf)
    picture = draw(curves(made.loads))
    title = "run time over that of the same readers on one socket (Lv et al., figure 14)"
    return [*lines, "", title, "", *picture] if picture else lines


def _heading(made: Calibration) -> Iterator[tuple[str, str]]:
    method = made.method
    yield "directory", f"{made.path} ({made.description})"
    yield "disks", ", ".join(f"{leaf.name} ({leaf.identity})" for leaf in made.leaves)
    yield "measured", f"{local_time(made.at_s)}, took {format_duration(round(method.took_s))}"
    yield "kernel", f"{made.kernel}, iodaemon {made.program}"
    parts = len(method.sockets)
    where = f"{parts} parts of the only socket" if method.divided else f"{parts} sockets"
    yield "readers", f"{method.readers_per_socket} on each of {where}, {_COLD[method.cold]}"
    once = "no byte twice" if method.once else "some bytes in more than one step"
    size, block = format_bytes(method.file_bytes), format_bytes(method.block_bytes)
    yield "test file", f"{size}, {block} a read, {once}"
    if method.forced:
        yield "beside it", f"the machine was busy: {method.busy}"


def _figures(made: Calibration) -> Iterator[tuple[str, str]]:
    one, every = format_rate(made.sequential_bytes_per_s), format_rate(made.loaded_bytes_per_s)
    yield "in order", f"{one} one reader, {every} all readers"
    size = format_bytes(made.random_block_bytes)
    count = made.random_bytes_per_s / made.random_block_bytes
    yield (
        "at random",
        f"{format_rate(made.random_bytes_per_s)} all readers, {count:.0f}/s of {size}",
    )
    yield "writing", f"{format_rate(made.write_bytes_per_s)} one writer in order"
    for knee in made.knees:
        where = f"{knee.sockets} socket{'s' if knee.sockets > 1 else ''}"
        yield f"knee, {where}", _knee_words(knee)
    bound = made.io_bound_bytes_per_s
    yield (
        "io_bound",
        "none recommended: the readers were never slowed down, or always"
        if bound is None
        else f'"{bound / 1e6:.4g} MB/s" recommended, for rules that go by it'
        + ("; measured on a busy machine" if made.method.forced else ""),
    )


def replaced_words(before: Calibration | None) -> str:
    """Of the calibration of the same disks that a new one has taken the place of."""
    if before is None:
        return ""
    how = "on a busy machine" if before.method.forced else "on a quiet machine"
    return f" in place of that of {local_time(before.at_s)}, measured {how}"


def _knee_words(knee: Knee) -> str:
    """Between two rates that differ as they are written, too."""
    fine, degraded = knee.fine_bytes_per_s, knee.degraded_bytes_per_s
    if degraded is None:
        return f"not seen up to {format_rate(fine)} of all readers together"
    if fine <= 0.0:
        return f"below {format_rate(degraded)} of all readers together: that was too much already"
    unit, factor = ("GB/s", 1e9) if degraded >= 1e9 else ("MB/s", 1e6)
    for digits in range(1, _MOST_DIGITS + 1):
        low, high = (f"{rate / factor:.{digits}f}" for rate in (fine, degraded))
        if low != high:
            return f"between {low} and {high} {unit} of all readers together"
    return f"about {format_rate(degraded)} of all readers together"


def _lone_table(leaf: Leaf) -> list[str]:
    columns = [Column("SIZE", is_number=True)]
    columns += [Column(f"{kind.upper()} {pattern}", is_number=True) for kind, pattern in _TIMES]
    sizes = sorted({point.asked_bytes for point in leaf.points})
    return table(columns, [_lone_row(leaf.points, size) for size in sizes])


def _lone_row(points: tuple[Point, ...], size: int) -> list[str]:
    """What the kernel splits is timed by the part: such times have a star."""
    times = {(p.kind, p.pattern): p for p in points if p.asked_bytes == size}
    return [format_bytes(size), *(_time_cell(times.get(key)) for key in _TIMES)]


def _time_cell(point: Point | None) -> str:
    if point is None:
        return "-"
    is_split = point.size_bytes < _WHOLE * point.asked_bytes
    return f"{1000.0 * point.service_s:.3f} ms" + ("*" if is_split else "")


def draw_figure(made: Calibration, folder: Path) -> tuple[Path, ...]:
    """Figure 14 as SVG and PNG in the folder; nothing where there is no curve.

    Raises:
        NoDrawing: matplotlib is missing.
        RequestError: the folder is a link.
        OSError: the folder cannot be written.
    """
    from iodaemon.calibration.putting import put
    from iodaemon.simulator.draw import draw as draw_files

    figure = _figure_of(made)
    if figure is None:
        return ()
    with tempfile.TemporaryDirectory(prefix="iod-calibrate-") as own:
        files = draw_files(figure, Path(own), then="'iod calibrate --show PATH --figure DIR'")
        drawn = {path.name: path.read_bytes() for path in files}
    return put(folder, drawn)


def _figure_of(made: Calibration) -> Figure | None:
    from iodaemon.simulator.experiment import Figure, Series

    found = curves(made.loads)
    if not found:
        return None
    disks = _NO_NAME.sub("-", "-".join(leaf.name for leaf in made.leaves))[:_LONGEST_NAME]
    series = (
        Series(label=f"{rate / 1e6:.6g} MB/s", x=tuple(by), y=tuple(by.values()))
        for rate, by in found.items()
    )
    return Figure(
        name=_figure_name(disks, made.path),
        title=f"Run time of paced readers on {disks} (after Lv et al., figure 14)",
        x_label="sockets loaded" + (" (parts of one socket)" if made.method.divided else ""),
        y_label="run time over that on one socket",
        kind="line",
        series=tuple(series),
        log_y=True,
        line_y=1.0,
    )


def _figure_name(disks: str, path: str) -> str:
    """Another one for each directory, whatever is in its name."""
    words = _NO_NAME.sub("-", f"{disks}-{path.strip('/')}").strip("-.")[:_LONGEST_NAME]
    return f"figure-14-{words}-{zlib.crc32(f'{disks} {path}'.encode()):08x}"
