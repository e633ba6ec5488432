"""``iod stack``: the same job on 1, 2, 4 ... sockets of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output, trial
from iodaemon.cli.command import OFF, App, Context, Word, option, verb
from iodaemon.cli.compare import figure
from iodaemon.cli.output import Column

if TYPE_CHECKING:
    from iodaemon.cli.session import Session
    from iodaemon.trial.folder import Folder
    from iodaemon.trial.stacking import Layout, Stacked, Step
    from iodaemon.trial.workload import Workload

app = App()

DEFAULT_ROUNDS: Final = 3
_COLUMNS: Final = (
    Column("JOB"),
    Column("SOCKETS", is_number=True),
    Column("JOBS", is_number=True),
    Column("RUN TIME", is_number=True),
    Column("NORMALIZED", is_number=True),
    Column("WAITING", is_number=True),
    Column("SERVING", is_number=True),
    Column("BUSY", is_number=True),
    Column("CONTENDED", is_number=True),
    Column("MEMORY", is_number=True),
)
METHOD: Final = (
    "RUN TIME: mean of the jobs, s. NORMALIZED: over the same on one socket in the same round, and",
    "its range. WAITING, SERVING: ms of a request; serving is what one of its size takes alone.",
    "BUSY: the disk's busy time over its requests, ms. CONTENDED: time in which requests took over",
    "twice as long as alone. MEMORY: most in use, of all.",
)

Rounds = Annotated[Word, option("--rounds", metavar="N", text="Rounds of every step [3].")]
Output = Annotated[
    Word, option("--output", metavar="DIR", text="Where results go [./iod-stack/NAME].")
]


@verb(app, "stack")
def stack(
    ctx: Context,
    name: trial.WorkloadFile = None,
    rounds: Rounds = None,
    folder: Output = None,
    directory: trial.Directory = None,
    force: trial.Force = OFF,
    as_json: trial.AsJson = OFF,
) -> int:
    """Run a job on more and more sockets, and say what it loses.

    WORKLOAD.toml is that of 'iod compare'. Each kind of job is run by itself: as many copies as
    fill one socket, then 2, 4 and so on; 'count' does not matter. Nothing is suspended. What jobs
    lose by those on other sockets is what all share: the storage.

    A machine with one socket is divided by its cores, or as [topology] in the file says.
    """
    from iodaemon.trial.stacking import lay_out

    workload = trial.read_workload(name, directory)
    number = trial.parse_rounds(rounds, DEFAULT_ROUNDS)
    layout = lay_out(workload)
    place = trial.find_folder(folder, "stack", workload.name)
    notes = trial.watch_machine(workload, is_forced=force)
    stacked = _run(ctx.obj, workload, layout, number, notes)
    return _tell(stacked, place, as_json=as_json)


def _run(
    session: Session, workload: Workload, layout: Layout, rounds: int, notes: tuple[str, ...]
) -> Stacked:
    import msgspec

    from iodaemon.trial.stacking import largest_copies
    from iodaemon.trial.stacking import stack as conduct

    telling = trial.begin(workload, rounds, len(workload.jobs) * len(layout.steps), "steps")
    copies = largest_copies(workload, layout)
    with trial.at_site(session, workload, copies, telling) as (place, check):
        stacked = conduct(place, layout, rounds, check=check, tell=telling)
    return msgspec.structs.replace(stacked, notes=(*notes, *stacked.notes))


def _tell(stacked: Stacked, folder: Folder, *, as_json: bool) -> int:
    """Print, keep, draw; the exit code."""
    from iodaemon.trial.document import stack_document
    from iodaemon.trial.picture import stack_bars, stack_figures

    if stacked.runs:
        document = stack_document(stacked)
        trial.tell_results(document, lambda: stacked_lines(stacked), folder, as_json=as_json)
        bars = trial.draw(stack_figures(stacked), folder, stack_bars(stacked))
        if bars and not as_json:
            print("\n".join(bars))
    return trial.end(stacked)


def stacked_lines(stacked: Stacked) -> list[str]:
    """What was run, a line a step, and how to read it."""
    from iodaemon.trial.stacking import summarise

    layout = stacked.layout
    early = "" if stacked.rounds == stacked.rounds_asked else f" of {stacked.rounds_asked} asked"
    divided = " (parts of the machine's, divided for this)" if layout.is_divided else ""
    cpus = " | ".join(layout.sockets)
    return [
        f"workload {stacked.workload}: {len(layout.sockets)} sockets{divided}, CPUs {cpus}",
        f"CPUs of a socket: {layout.slots[0]}",
        f"rounds: {stacked.rounds}{early}, steps in turns; medians",
        f"alone: {trial.alone_words(stacked.alone_times_s)}",
        *trial.machine_lines(stacked.machine, stacked.notes),
        "",
        *output.table(_COLUMNS, [_row(step) for step in summarise(stacked.runs)]),
        "",
        *METHOD,
    ]


def _row(step: Step) -> tuple[str, ...]:
    normalized = f"{step.normalized:.2f} [{step.normalized_low:.2f}, {step.normalized_high:.2f}]"
    return (
        step.kind,
        str(step.sockets),
        str(step.jobs),
        figure(step.runtime_s),
        normalized,
        *(_milliseconds(each) for each in (step.waiting_s, step.serving_s, step.busy_s)),
        *(_percent(each) for each in (step.contended_ratio, step.used_ratio)),
    )


def _milliseconds(value_s: float | None) -> str:
    return output.UNKNOWN if value_s is None else figure(1000.0 * value_s)


def _percent(ratio: float | None) -> str:
    return output.UNKNOWN if ratio is None else f"{ratio:.0%}"
