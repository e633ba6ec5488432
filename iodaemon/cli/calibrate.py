"""``iod calibrate``: measures what a device carries, and keeps it for the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, Context, Word, argument, option, verb
from iodaemon.cli.failure import UsageError, duration_s, size_bytes
from iodaemon.cli.progress import Progress
from iodaemon.cli.session import Session, find_service_uid, find_state_dir, load_config_of_daemon
from iodaemon.errors import NotFound, NotPermitted, RequestError

if TYPE_CHECKING:
    from iodaemon.calibration.measure import Setup
    from iodaemon.calibration.record import Calibration

app = App()

_FIGURES: Final = "calibration"
"""Below the state directory."""

Directory = Annotated[Word, argument("PATH")]
Time = Annotated[Word, option("--time", metavar="TIME", text="About how long, a day at most [2m].")]
Size = Annotated[Word, option("--size", metavar="SIZE", text="Of the test file, at most [4 GiB].")]
Force = Annotated[bool, option("--force", text="Measure even if other processes use the machine.")]
DryRun = Annotated[bool, option("--dry-run", text="Say what would be done, and do nothing.")]
Show = Annotated[bool, option("--show", text="Show what is kept: of PATH's disk, or of all.")]
Figures = Annotated[
    Word, option("--figure", metavar="DIR", text="Where the figure goes [beside what is kept].")
]
AsJson = Annotated[bool, option("--json", text="All that was measured, as JSON.")]


@verb(app, "calibrate")
def calibrate(
    ctx: Context,
    path: Directory = None,
    time: Time = None,
    size: Size = None,
    force: Force = OFF,
    dry_run: DryRun = OFF,
    show: Show = OFF,
    figure: Figures = None,
    as_json: AsJson = OFF,
) -> int:
    """Measure what a disk carries, and keep it for the daemon.

    PATH is a directory on that disk. One request at a time shows how long one takes alone; by that
    the rule 'adaptive' sees when requests wait. Readers on one socket, then on more, at rising
    rates show from where on they slow each other down; by that an io_bound is recommended.

    It writes and reads a test file without a name in PATH, for a few minutes; nothing is left of
    it. All else on that disk is slow meanwhile. The daemon uses what is kept when it starts, and
    after 'iod config reload'.
    """
    session: Session = ctx.obj
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
    from iodaemon.cli.calibrate_words import replaced_words

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
    from iodaemon.calibration.plan import DEFAULT_S
    from iodaemon.calibration.prepare import prepare

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
    from iodaemon.calibration.prepare import describe
    from iodaemon.calibration.store import kept_file

    pairs = [*describe(setup), ("kept in", str(kept_file(state_dir)))]
    output.show(dict(pairs), lambda: output.aligned(pairs), as_json=as_json)
    return 0


def _check_place(session: Session, state_dir: Path) -> None:
    """Before anything is measured: it can be kept beside what is there.

    Raises:
        ConfigError: what is there is no calibration.
        NotPermitted: the place is somebody else's.
    """
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
    from iodaemon.units import format_duration

    with ended_in_order() as stop_if_asked, Progress("calibrate") as progress:

        def tell(what: str, done_s: float, total_s: float) -> None:
            left = format_duration(round(total_s - done_s))
            progress.tell(f"{what}; {left} left", is_first=done_s == 0.0)

        return measure(setup, tell, stop_if_asked)


def _tell(made: Calibration, *, as_json: bool) -> None:
    from iodaemon.cli.calibrate_words import lines_of

    output.show(_record(made), lambda: lines_of(made), as_json=as_json)


def _record(made: Calibration) -> object:
    import msgspec

    return msgspec.to_builtins(made)


def _draw(made: Calibration, folder: Path, *, is_asked: bool) -> None:
    """The figure; where matplotlib is missing the one in characters has to do, unless it is asked.

    Raises:
        RequestError: it is asked for, and cannot be drawn.
    """
    from iodaemon.cli.calibrate_words import draw_figure

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
