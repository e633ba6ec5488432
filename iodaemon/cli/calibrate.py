"""``iod calibrate``: measures what a device carries, and keeps it for the daemon."""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, Word, argument, option, verb
from iodaemon.cli.failure import UsageError, duration_s, size_bytes
from iodaemon.cli.output import Column, Progress, aligned, local_time, table
from iodaemon.cli.session import Session, find_service_uid, find_state_dir, load_config_of_daemon
from iodaemon.errors import NotFound, NotPermitted, RequestError
from iodaemon.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from iodaemon.calibration.ground import Setup
    from iodaemon.calibration.record import Calibration, Kind, Knee, Leaf, Pattern, Point
    from iodaemon.simulator.experiment import Figure

app = App()

_FIGURES: Final = "calibration"
"""Below the state directory."""

Time = Annotated[Word, option("--time", metavar="TIME", text="About how long, a day at most [2m].")]
Size = Annotated[Word, option("--size", metavar="SIZE", text="Of the test file, at most [4 GiB].")]
Force = Annotated[bool, option("--force", text="Measure even if other processes use the machine.")]
DryRun = Annotated[bool, option("--dry-run", text="Say what would be done, and do nothing.")]
Show = Annotated[bool, option("--show", text="Show what is kept: of PATH's disk, or of all.")]
FigureFolder = Annotated[
    Word, option("--figure", metavar="DIR", text="Where the figure goes [beside what is kept].")
]


@verb(app, "calibrate")
def calibrate(
    session: Session,
    path: Annotated[Word, argument("PATH")] = None,
    time: Time = None,
    size: Size = None,
    force: Force = OFF,
    dry_run: DryRun = OFF,
    show: Show = OFF,
    figure: FigureFolder = None,
    as_json: Annotated[bool, option("--json", text="All that was measured, as JSON.")] = OFF,
) -> int:
    """Measure what a disk carries, and keep it for the daemon.

    PATH is a directory on that disk. One request at a time shows how long one takes alone; by that
    the rule 'adaptive' sees when requests wait. Readers on one socket, then on more, at rising
    rates show from where on they slow each other down; by that an io_bound is recommended.

    It writes and reads a test file without a name in PATH, for a few minutes; nothing is left of
    it. All else on that disk is slow meanwhile. The daemon uses what is kept when it starts, and
    after 'iod config reload'.
    """
    state_dir = find_state_dir(session)
    if show:
        return _show(state_dir, path, figure, as_json=as_json)
    if path is None:
        raise UsageError("name a directory on the disk to measure, or --show what is kept")
    setup = _prepare(session, path, time, size, force=force, dry_run=dry_run)
    if dry_run:
        return _tell_plan(setup, state_dir, as_json=as_json)
    _check_place(session, state_dir)
    made = _measure(setup)
    from iodaemon.calibration.store import keep, kept_of, resolved

    before = kept_of(state_dir, made)
    file = keep(state_dir, made)
    _tell(made, as_json=as_json)
    place = f"{file}{replaced_words(before)}"
    output.say(f"kept in {place}; 'iod config reload' lets a daemon that runs use it")
    folder = Path(figure) if figure else resolved(state_dir) / _FIGURES
    _draw(made, folder, is_asked=figure is not None)
    return 0


def _prepare(
    session: Session,
    path: str,
    time: str | None,
    size: str | None,
    *,
    force: bool,
    dry_run: bool,
) -> Setup:
    from iodaemon.calibration.ground import prepare
    from iodaemon.calibration.plan import DEFAULT_S

    config, _ = load_config_of_daemon(session)
    setup = prepare(
        path,
        seconds=DEFAULT_S if time is None else duration_s("--time", time),
        size_bytes=None if size is None else size_bytes("--size", size),
        sockets=config.topology.sockets,
        slot=config.topology.slot,
        forced=force,
        may_be_busy=dry_run,
    )
    if setup.busy and not dry_run:
        output.say(f"the machine is busy: {setup.busy}; what is measured is what is left beside it")
    return setup


def _tell_plan(setup: Setup, state_dir: Path, *, as_json: bool) -> int:
    from iodaemon.calibration.ground import describe
    from iodaemon.calibration.store import kept_file

    pairs = [*describe(setup), ("kept in", str(kept_file(state_dir)))]
    output.show(dict(pairs), lambda: output.aligned(pairs), as_json=as_json)
    return 0


def _check_place(session: Session, state_dir: Path) -> None:
    """Before anything is measured: it can be kept beside what is there."""
    from iodaemon.calibration.store import load

    if not state_dir.exists():
        os.makedirs(state_dir, mode=0o700)
        if (uid := find_service_uid(session)) is not None and os.geteuid() == 0:
            os.chown(state_dir, uid, -1)
    if not os.access(state_dir, os.W_OK | os.X_OK):
        raise NotPermitted(
            f"what is measured is kept in {state_dir}, which is not yours; run 'iod calibrate' as "
            "root for the system's daemon"
        )
    load(state_dir)


def _measure(setup: Setup) -> Calibration:
    from iodaemon.calibration.measure import calibrate as measure
    from iodaemon.doctor.scratch import ended_in_order

    with ended_in_order() as stop_if_asked, Progress("calibrate") as progress:

        def tell(what: str, done_s: float, total_s: float) -> None:
            left = format_duration(round(total_s - done_s))
            progress.tell(f"{what}; {left} left", is_first=done_s == 0.0)

        return measure(setup, tell, stop_if_asked)


def _tell(made: Calibration, *, as_json: bool) -> None:

    output.show(_record(made), lambda: lines_of(made), as_json=as_json)


def _record(made: Calibration) -> object:
    import msgspec

    return msgspec.to_builtins(made)


def _draw(made: Calibration, folder: Path, *, is_asked: bool) -> None:
    """Without matplotlib the one in characters has to do, unless the figure is asked for."""

    try:
        drawn = draw_figure(made, folder)
    except RequestError:
        if is_asked:
            raise
        return
    for path in drawn:
        output.say(f"figure 14 of this machine: {path}")


def _show(state_dir: Path, path: str | None, figure: str | None, *, as_json: bool) -> int:
    from iodaemon.calibration.store import load

    kept = list(load(state_dir).calibrations)
    if path is not None:
        from iodaemon.calibration.ground import identities_of

        wanted = identities_of(path)
        kept = [made for made in kept if not wanted.isdisjoint(made.identities)]
    if not kept:
        what = "of the disk of that" if path is not None else "yet"
        raise NotFound(f"nothing was measured {what}: 'iod calibrate PATH' does")
    if as_json:
        output.print_json([_record(made) for made in kept])
    for number, made in enumerate(kept):
        if not as_json:
            print("\n" if number else "", end="")
            _tell(made, as_json=False)
        if figure is not None:
            _draw(made, Path(figure), is_asked=True)
    return 0


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
    from iodaemon.calibration.knee import curves, draw

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
    """Figure 14 as SVG and PNG in the folder; nothing where there is no curve."""
    from iodaemon.calibration.store import put
    from iodaemon.simulator.draw import draw as draw_files

    figure = _figure_of(made)
    if figure is None:
        return ()
    with tempfile.TemporaryDirectory(prefix="iod-calibrate-") as own:
        files = draw_files(figure, Path(own), then="'iod calibrate --show PATH --figure DIR'")
        drawn = {path.name: path.read_bytes() for path in files}
    return put(folder, drawn)


def _figure_of(made: Calibration) -> Figure | None:
    from iodaemon.calibration.knee import curves
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
