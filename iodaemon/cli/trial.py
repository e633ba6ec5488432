"""What ``iod compare`` and ``iod stack`` share: how far they are, how they end, what they keep."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from iodaemon.cli import output
from iodaemon.cli.command import Word, argument, option
from iodaemon.cli.failure import ExitCode, UsageError, count
from iodaemon.cli.progress import Line
from iodaemon.errors import NoDrawing, RequestError

if TYPE_CHECKING:
    from iodaemon.cli.session import Session
    from iodaemon.simulator.experiment import Figure
    from iodaemon.trial.comparing import Outcome
    from iodaemon.trial.folder import Folder
    from iodaemon.trial.site import Site
    from iodaemon.trial.stacking import Stacked
    from iodaemon.trial.workload import Workload

WorkloadFile = Annotated[Word, argument("WORKLOAD.toml")]
Directory = Annotated[
    Word, option("--directory", metavar="DIR", text="On the disk to use, instead of the file's.")
]
Force = Annotated[bool, option("--force", text="Measure even if other processes use the machine.")]
AsJson = Annotated[bool, option("--json", text="The results as JSON.")]

MOST_ROUNDS: Final = 1000
HINTED_S: Final = 60.0
"""A run that takes so long may be one that never ends."""
_RUNNING: Final = ("R", "ST", "SG")
_SUSPENDED: Final = ("SI", "SU", "SI...")
_WAITING: Final = ("PD", "H")


def read_workload(name: str | None, directory: str | None) -> Workload:
    """What the file says; on another disk where a directory is named.

    Raises:
        UsageError: no file is named.
        ConfigError: it is no workload.
    """
    from iodaemon.trial.workload import load_workload

    if name is None:
        raise UsageError("name a workload file: 'iod compare --help' says what it has")
    return load_workload(Path(name), directory)


class Telling:
    """How far a trial is, on its line on standard error.

    Args:
        apart: so many runs begin every round that are of another kind than the rest.
        per_round: runs of a round, with those.
        can_last: whether a job may run for ever, which is then said once.
    """

    def __init__(self, apart: int = 0, per_round: int = 1, *, can_last: bool = False) -> None:
        self._apart = apart
        self._per_round = per_round
        self._can_last = can_last
        self.line = Line()
        self._done = 0
        self._began_s = time.monotonic()
        self._took_s: dict[bool, list[float]] = {True: [], False: []}

    def __call__(self, what: str, done: int, total: int, states: Mapping[str, int]) -> None:
        """Tell it, unless that was done a moment ago.

        Args:
            what: the run.
            done: runs before it.
            total: runs.
            states: jobs by the code of their state.
        """
        now_s = time.monotonic()
        if done != self._done:
            self._took_s[self._is_apart(self._done)].append(now_s - self._began_s)
            self._done, self._began_s = done, now_s
        self._hint(what, now_s)
        words = f"{what}: {states_words(states)}"
        left_s = self._left_s(total, now_s)
        if left_s is not None:
            from iodaemon.units import format_duration

            words += f"; about {format_duration(float(round(left_s)))} left"
        self.line.say(words)

    def _hint(self, what: str, now_s: float) -> None:
        """Once, what to do about a job that does not end."""
        if not self._can_last or now_s - self._began_s < HINTED_S:
            return
        self._can_last = False
        self.line.close()
        output.say(
            f"{what} takes longer than {HINTED_S:.0f} s; where a job does not end, Ctrl-C ends the "
            'trial, and time = "5m" in its [[job]] ends the job'
        )

    def _is_apart(self, number: int) -> bool:
        return number % self._per_round < self._apart

    def _left_s(self, total: int, now_s: float) -> float | None:
        """By the means of the runs that are done; None before there is one of each kind."""
        left_s = 0.0
        for number in range(self._done, total):
            took_s = self._took_s[self._is_apart(number)]
            if not took_s:
                return None
            left_s += statistics.mean(took_s)
            if number == self._done:
                left_s = max(0.0, left_s - (now_s - self._began_s))
        return left_s


def states_words(states: Mapping[str, int]) -> str:
    """Such as ``3 running, 2 suspended, 4 waiting, 1 of 10 ended``."""
    total = sum(states.values())
    counts = {
        word: sum(states.get(code, 0) for code in codes)
        for word, codes in (
            ("running", _RUNNING),
            ("suspended", _SUSPENDED),
            ("waiting", _WAITING),
        )
    }
    parts = [f"{count} {word}" for word, count in counts.items() if count or word == "running"]
    return ", ".join([*parts, f"{total - sum(counts.values())} of {total} ended"])


def begin(workload: Workload, rounds: int, others: int, what: str) -> Telling:
    """Say how much is going to be run; the result tells how far it is.

    Args:
        workload: each kind of its jobs is run alone once a round.
        rounds: so many.
        others: further runs of a round.
        what: those are, in the plural.
    """
    kinds = len(workload.jobs)
    apart = "one kind of job" if kinds == 1 else f"each of {kinds} kinds of job"
    turns = output.count_of(rounds, "round")
    output.say(
        f"{turns} of {apart} alone and {others} {what}: {rounds * (kinds + others)} runs; "
        "how long that takes is told after the first of both"
    )
    can_last = any(job.time_s is None for job in workload.jobs)
    return Telling(kinds, kinds + others, can_last=can_last)


@contextmanager
def at_site(
    session: Session, workload: Workload, copies: Sequence[int], telling: Telling
) -> Iterator[tuple[Site, Callable[[], None]]]:
    """The trial's places, and what raises where it is to end; whatever was made is gone afterwards.

    Args:
        session: knows what the disks were measured to be.
        copies: of each of its jobs, at most.
        telling: is told how far the making is.

    Raises:
        SystemExit: a signal ended it before there was anything to tell.
        RequestError: as of ``trial.site.site``.
    """
    from iodaemon.trial.interruption import InterruptedTrialError
    from iodaemon.trial.site import site

    kept = find_calibration(session)
    with in_order(telling) as check:
        try:
            with site(
                workload, copies, calibration=kept, progress=telling.line.say, check=check
            ) as place:
                yield place, check
        except InterruptedTrialError as error:
            raise SystemExit(128 + error.signal_number) from error


def end(ended: Outcome | Stacked) -> int:
    """The exit code; says so where not all was run.

    Raises:
        IodaemonError: what ended it early.
    """
    if ended.failure is not None:
        for line in getattr(ended.failure, "tail", ()):
            output.say(f"| {line}")
        raise ended.failure
    if ended.signal_number is not None:
        output.say(f"ended early: {ended.rounds} of {ended.rounds_asked} rounds are complete")
        return 128 + ended.signal_number
    return ExitCode.OK


@contextmanager
def in_order(telling: Telling) -> Iterator[Callable[[], None]]:
    """Signals that end are heard at once and obeyed when all is tidied up."""
    from iodaemon.trial.interruption import interruptible

    def heard() -> None:
        telling.line.close()
        output.say("ending: jobs are cancelled and files removed, which takes some seconds")

    try:
        with interruptible(heard) as check:
            yield check
    finally:
        telling.line.close()


def parse_rounds(text: str | None, default: int) -> int:
    """How many rounds.

    Raises:
        UsageError: it is no number from 1 to 1000.
    """
    return default if text is None else count("--rounds", text, "rounds", "6", most=MOST_ROUNDS)


def find_calibration(session: Session) -> Path | None:
    """The file with what the disks were measured to be, of the daemon that is configured here."""
    from iodaemon.calibration.store import kept_file

    file = kept_file(Path(session.load_config({}).state_dir))
    return file if file.is_file() else None


def watch_machine(workload: Workload, *, is_forced: bool) -> tuple[str, ...]:
    """See whether others use the machine; what a reader of the results must know of that.

    Raises:
        RequestError: they do, and it is not forced.
    """
    from iodaemon.calibration.busy import look
    from iodaemon.trial.machine import find_disks

    disks = find_disks(workload.directory)
    why = look([device.id for device in disks.devices]).why
    if not why:
        return ()
    words = f"the machine is busy: {'; '.join(why)}"
    if not is_forced:
        raise RequestError(f"{words}: try when it is quiet, or give --force")
    output.say(f"{words}; going on, as --force says")
    return (f"{words}, before the first run",)


def find_folder(name: str | None, verb: str, workload: str) -> Folder:
    """The folder of the results: as given, else ./iod-VERB/WORKLOAD. Nothing is made yet.

    Raises:
        RequestError: results could not be kept there.
    """
    from iodaemon.trial.folder import Folder

    is_named = name is not None
    path = Path(name) if name is not None else Path(f"iod-{verb}") / workload
    folder = Folder(path=path, own=1 if is_named else 2)
    folder.check()
    return folder


def tell_results(
    document: Mapping[str, Any],
    lines: Callable[[], Sequence[str]],
    folder: Folder,
    *,
    as_json: bool,
) -> None:
    """Print the results, for programs or for people, and keep them."""
    output.show(document, lines, as_json=as_json)
    keep(folder, document)


def keep(folder: Folder, document: Mapping[str, Any]) -> None:
    """Write the results."""
    folder.keep({"results.json": f"{json.dumps(document, indent=1)}\n".encode()})


def draw(figures: Sequence[Figure], folder: Folder, instead: Sequence[str]) -> list[str]:
    """Draw the figures; where that is not possible, the lines that are shown instead."""
    from iodaemon.simulator.draw import draw as draw_figure

    try:
        with tempfile.TemporaryDirectory(prefix="iod-figures.") as place:
            into = Path(place)
            drawn = [path for figure in figures for path in draw_figure(figure, into, then="")]
            folder.keep({path.name: path.read_bytes() for path in drawn})
    except NoDrawing as error:
        output.say(f"results are in {folder.path}; {error}")
        return ["", *instead]
    output.say(f"results and {len(drawn) // 2} figures are in {folder.path}")
    return []


def alone_words(times_s: Mapping[str, Sequence[float]]) -> str:
    """Such as ``stream 0.77 s [0.74, 0.81]``: of each kind the median and the range."""
    words = []
    for kind, each in times_s.items():
        span = f" [{min(each):.2f}, {max(each):.2f}]" if len(each) > 1 else ""
        words.append(f"{kind} {statistics.median(each):.2f} s{span}")
    return ", ".join(words) or "not known"


def machine_lines(machine: Mapping[str, Any], notes: Sequence[str]) -> list[str]:
    """What it was run on, and what a reader must know."""
    from iodaemon.units import format_bytes

    rotation = {True: "rotational", False: "not rotational", None: "rotational or not unknown"}
    kinds = sorted({rotation[each] for each in machine["is_rotational"]})
    disk = ", ".join([str(machine["storage"]), *kinds])
    cpus, memory = f"{machine['cpus']} CPUs", format_bytes(machine["memory_bytes"])
    return [
        f"machine: Linux {machine['kernel']}, {cpus} ({machine['cpu_model']}), {memory}",
        f"storage: {disk}",
        *notes,
    ]
