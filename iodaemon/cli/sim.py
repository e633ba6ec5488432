"""``iod sim``: published experiments, computed here beside what is published."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

from iodaemon.cli import failure, output
from iodaemon.cli.command import OFF, App, Word, Words, argument, option, verb
from iodaemon.cli.failure import ExitCode, UsageError, count, size_bytes
from iodaemon.cli.output import Column, Progress
from iodaemon.cli.session import Session
from iodaemon.errors import IodaemonError, RequestError
from iodaemon.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iodaemon.core.storage import Storage, StorageRequest
    from iodaemon.simulator.archive import Rates
    from iodaemon.simulator.catalogue import ExperimentFile, Trial
    from iodaemon.simulator.conduct import Outcome
    from iodaemon.simulator.experiment import Experiment
    from iodaemon.simulator.pool import Pool
    from iodaemon.simulator.storalloc import Placing
    from iodaemon.simulator.storalloc_replay import Outcome as Replayed

app = App()
experiments = App("Experiments: list, run, plot, report, storage.")
app.verbs["sim"] = experiments

_LIST_COLUMNS: Final = (
    Column("NAME"),
    Column("TARGETS", is_number=True, drop=3),
    Column("TOOK", is_number=True, drop=2),
    Column("TITLE", least=40),
    Column("SOURCE", drop=1),
)
_SEEDS_MAX: Final = 10_000


@verb(experiments, "list")
def list_experiments(
    as_json: Annotated[bool, option("--json", text="The list as JSON.")] = OFF,
) -> int:
    """List the experiments, and how long each took last time.

    They are looked up in ~/.config/iodaemon/experiments, /etc/iodaemon/experiments, then among
    the shipped ones. TOOK is known where results are kept in ./iod-sim.
    """
    from iodaemon.simulator.archive import find_run
    from iodaemon.simulator.conduct import folder_of

    rows, documents = [], []
    for file in _load_all():
        experiment = file.experiment
        run = find_run(folder_of(experiment.name, is_quick=False))
        took = output.NOTHING if run is None else format_duration(round(run.elapsed_s, 1))
        targets = str(len(experiment.targets))
        rows.append((experiment.name, targets, took, experiment.title, experiment.source))
        documents.append(
            {
                "name": experiment.name,
                "title": experiment.title,
                "source": experiment.source,
                "study": experiment.study,
                "targets": len(experiment.targets),
                "seeds": list(experiment.seeds),
                "took_s": None if run is None else run.elapsed_s,
                "path": str(file.path),
            }
        )
    width = output.terminal_columns()
    output.show(documents, lambda: output.table(_LIST_COLUMNS, rows, width=width), as_json=as_json)
    return 0


AllJobs = Annotated[bool, option("--all", text="Every experiment that 'iod sim list' shows.")]
Quick = Annotated[bool, option("--quick", text="The small version, under a minute to run.")]
Seeds = Annotated[
    Word, option("--seeds", metavar="N|LIST", text="So many, 1 to N; or these: 1,2,3 (one: 7,).")
]
Policy = Annotated[
    Words, option("--policy", metavar="POLICY|FILE", text="To compare, instead of the file's.")
]
Settings = Annotated[
    Words, option("--set", metavar="KEY=VALUE", text="Another parameter, such as mix.load=1.2.")
]
Jobs = Annotated[Word, option("--jobs", metavar="N", text="Processes at most [usable cores].")]
Folder = Annotated[
    Word, option("--output", metavar="DIR", text="Where results are kept [./iod-sim/NAME].")
]
SeedSets = Annotated[
    Word, option("--seed-sets", metavar="N", text="Bands on N other sets of seeds instead.")
]


@verb(experiments, "run")
def run_experiments(
    session: Session,
    names: Annotated[Words, argument("NAME|FILE")] = None,
    all_jobs: AllJobs = OFF,
    quick: Quick = OFF,
    seeds: Seeds = None,
    policy: Policy = None,
    settings: Settings = None,
    jobs: Jobs = None,
    folder: Folder = None,
    strict: Annotated[bool, option("--strict", text="Exit code 1 when a target is missed.")] = OFF,
    seed_sets: SeedSets = None,
    as_json: Annotated[bool, option("--json", text="The results as JSON.")] = OFF,
) -> int:
    """Run experiments, and hold them against what is published.

    Rows (CSV), results and figures (SVG, PNG) are kept in ./iod-sim/NAME, those of --quick in
    ./iod-sim/NAME-quick. The same seeds give the same bytes. A miss is a result: exit code 0,
    with --strict 1. --policy and --set may be repeated.

    With --seed-sets nothing is compared: the bands that an experiment names under [seed_sets] are
    tried on N other sets of as many seeds, and on how many each holds is told and kept.
    """
    if bool(names) == all_jobs:
        raise UsageError("name experiments, or give --all: 'iod sim list' shows them")
    if folder is not None and (all_jobs or len(names or ()) > 1):
        raise UsageError("--output takes the results of one experiment: name one alone")
    from iodaemon.simulator.catalogue import prepare
    from iodaemon.simulator.pool import Pool

    if seed_sets is not None:
        refused = {"--quick": quick, "--seeds": seeds, "--policy": policy, "--set": settings}
        for name, value in refused.items():
            if value:
                raise UsageError(f"--seed-sets and {name}: give one of the two")
        sets = count("--seed-sets", seed_sets, "sets", "20")
        return _run_seed_sets(names, sets, _parse_jobs(jobs), folder, as_json=as_json)
    processes, numbers = _parse_jobs(jobs), _parse_seeds(seeds)
    files = _load_all() if all_jobs else [_load(name) for name in names or ()]
    worst = ExitCode.OK
    with Pool(processes) as pool:
        for file in files:
            try:
                trial = prepare(
                    file,
                    is_quick=quick,
                    seeds=numbers,
                    policies=policy or (),
                    settings=settings or (),
                )
                outcome = _run(trial, pool, folder, as_json=as_json)
            except IodaemonError as error:
                if len(files) == 1 or session.debug:
                    raise
                output.say(f"{file.experiment.name}: {failure.line(error)}")
                worst = ExitCode.REFUSED
                continue
            if strict and any(result.verdict == "miss" for result in outcome.results):
                worst = ExitCode.REFUSED
    return worst


@verb(experiments, "plot")
def plot_experiment(
    name: Annotated[Word, argument("NAME|FILE")] = None, quick: Quick = OFF, folder: Folder = None
) -> int:
    """Draw the figures of a run again.

    From its rows; nothing is computed. Says so where the rows are of other seeds, parameters
    or another version.
    """
    if name is None:
        raise UsageError("name an experiment: 'iod sim list' shows them")
    from iodaemon.simulator.catalogue import prepare
    from iodaemon.simulator.conduct import kept_figures, misfits
    from iodaemon.simulator.draw import draw_all
    from iodaemon.simulator.pool import Pool, usable_cores

    file = _load(name)
    trial = prepare(file, is_quick=quick)
    place = _place(trial, folder)
    if others := misfits(trial, place):
        output.say(f"the rows in {place} are not what {file.path} says now: {'; '.join(others)}")
    with Pool(usable_cores()) as pool:
        drawn = draw_all(kept_figures(file, place), place, pool=pool)
    print("\n".join(map(str, drawn)))
    return 0


Results = Annotated[
    Word, option("--results", metavar="DIR", text="Where they are kept [./iod-sim].")
]
To = Annotated[
    Word, option("--output", metavar="FILE", text="Where to write it [standard output].")
]


@verb(experiments, "report")
def report_experiments(results: Results = None, to: To = None) -> int:
    """Make the table of all experiments, in Markdown.

    It is made from what is kept. Results of other seeds or parameters than the experiment's
    are left out, and named. Where --output has a figures.md beside it, that is its end.
    """
    from iodaemon import __version__
    from iodaemon.simulator.conduct import RESULTS_FOLDER, kept_chapter
    from iodaemon.simulator.report import head, markdown

    place = RESULTS_FOLDER if results is None else Path(results)
    chapters = []
    for file in _load_all():
        chapter, reasons = kept_chapter(file, place)
        if reasons:
            output.say(f"{file.experiment.name} is left out: {'; '.join(reasons)}")
        chapters.append(chapter)
    target = None if to is None or to == "-" else Path(to)
    by_hand = target and target.with_name("figures.md")
    tail = by_hand.read_text(encoding="utf-8") if by_hand and by_hand.is_file() else ""
    today = time.strftime("%Y-%m-%d")
    text = markdown(chapters, head=head(__version__, today, by_hand=tail), tail=tail)
    if target is None:
        sys.stdout.write(text)
    else:
        target.write_text(text, encoding="utf-8")
        output.say(f"wrote {to}")
    return 0


def _load(name: str) -> ExperimentFile:
    from iodaemon.simulator.catalogue import experiment_search, load_experiment

    return load_experiment(name, search=experiment_search(os.environ))


def _load_all() -> list[ExperimentFile]:
    """Every experiment; of one that is wrong a line is told, and the others are there."""
    from iodaemon.simulator.catalogue import experiment_search, find_experiments, load_experiment

    files = []
    for path in find_experiments(experiment_search(os.environ)).values():
        try:
            files.append(load_experiment(str(path), search=()))
        except IodaemonError as error:
            output.say(failure.line(error))
    return files


def _run(trial: Trial, pool: Pool, folder: str | None, *, as_json: bool) -> Outcome:
    from iodaemon.simulator import archive, report
    from iodaemon.simulator.conduct import conduct
    from iodaemon.simulator.draw import draw_all

    experiment = trial.experiment
    place = _place(trial, folder)
    others = archive.check_folder(place, archive.manifest_of(trial))
    with Progress(experiment.name) as progress:

        def on_done(done: int, total: int) -> None:
            if done == 0 and others:  # the study has taken its parameters
                output.say(f"the results in {place} will be replaced: {'; '.join(others)}")
            progress(done, total)

        outcome = conduct(trial, place, pool=pool, on_done=on_done)
    for remark in outcome.remarks:
        output.say(remark)
    output.show(
        report.document(experiment, outcome.results),
        lambda: outcome_lines(trial, outcome),
        as_json=as_json,
    )
    try:
        drawn = len(draw_all(outcome.figures, place, pool=pool))
    except RequestError as error:
        output.say(str(error))
        drawn = 0
    took = format_duration(round(outcome.run.elapsed_s, 1))
    processes = "1 process" if outcome.run.processes == 1 else f"{outcome.run.processes} processes"
    output.say(
        f"{outcome.run.tasks} tasks in {took} on {processes}; rows and {drawn // 2} figures are in "
        f"{place}"
    )
    return outcome


def _run_seed_sets(
    names: Words, sets: int, processes: int, folder: str | None, *, as_json: bool
) -> int:
    """Of all experiments those that name targets for it."""
    from iodaemon.simulator.archive import check_folder, manifest_of
    from iodaemon.simulator.catalogue import prepare
    from iodaemon.simulator.conduct import folder_of, try_seed_sets
    from iodaemon.simulator.pool import Pool

    files = [_load(name) for name in names or ()] or [
        file for file in _load_all() if file.experiment.seed_sets is not None
    ]
    with Pool(processes) as pool:
        for file in files:
            experiment = file.experiment
            place = Path(folder) if folder else folder_of(experiment.name, is_quick=False)
            check_folder(place, manifest_of(prepare(file)))
            with Progress(experiment.name) as progress:
                rates = try_seed_sets(file, sets, place, pool=pool, on_done=progress)
            output.show(rates, partial(rate_lines, experiment, rates), as_json=as_json)
    return 0


def _place(trial: Trial, folder: str | None) -> Path:
    from iodaemon.simulator.conduct import folder_of

    return Path(folder) if folder else folder_of(trial.experiment.name, is_quick=trial.is_quick)


def _parse_jobs(text: str | None) -> int:
    from iodaemon.simulator.pool import usable_cores

    return usable_cores() if text is None else count("--jobs", text, "processes", "4")


def _parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """``5`` is 1 to 5; with a comma it is a list."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--seeds {text}: write how many, as in 5, or which, as in 1,2,3")
    numbers = tuple(int(word) for word in words)
    if "," in text:
        from iodaemon.simulator.catalogue import check_seeds

        return check_seeds(numbers, "--seeds")
    if not 1 <= numbers[0] <= _SEEDS_MAX:
        raise UsageError(f"--seeds {text}: write how many, 1 to {_SEEDS_MAX}")
    return tuple(range(1, numbers[0] + 1))


_QUANTITY_MIN: Final = 24
"""Characters that a quantity is not cut below, however narrow the terminal."""


def outcome_lines(trial: Trial, outcome: Outcome) -> list[str]:
    """The title, the results, the study's own table, notes, choices."""
    from iodaemon.simulator import report

    experiment = trial.experiment
    lines = [f"{experiment.title} ({experiment.source})"]
    if experiment.targets or not outcome.summary:
        lines += ["", *_result_lines([report.cells(result) for result in outcome.results])]
        lines += ["", f"{report.tally(outcome.results)}"]
        lines += [f"{word}: {report.LEGEND[word]}" for word in report.meanings(outcome.results)]
        lines += report.left_out(experiment, outcome.results)
        lines += report.notes(experiment, outcome.results)
    if outcome.summary:
        columns = [key for key in outcome.summary[0] if key != "kind"]
        rows = [[report.number_words(row[key]) for key in columns] for row in outcome.summary]
        titles = [
            Column(key.replace("_", " ").upper(), is_number=not isinstance(value, str))
            for key, value in outcome.summary[0].items()
            if key != "kind"
        ]
        lines += ["", *output.table(titles, rows)]
    if experiment.choices:
        lines += ["", "Where the source is silent, and in [] the parameter to choose otherwise:"]
        lines += [f"- {report.choice_words(choice)}" for choice in experiment.choices]
    return lines


def rate_lines(experiment: Experiment, rates: Rates) -> list[str]:
    """A line a target: its band, on how many sets of seeds it holds, and within what."""
    from iodaemon.simulator import report

    columns = [
        *(Column(title) for title in ("ID", "BAND", "HOLDS")),
        *(Column(title, is_number=True) for title in ("LEAST", "MOST")),
    ]
    rows = []
    for target in experiment.targets:
        if (rate := rates.rates.get(target.id)) is not None:
            values = [value for value in rate.values if value is not None]
            ends = (min(values, default=None), max(values, default=None))
            words = (target.id, report.band_words(target), f"on {rate.words()} sets")
            rows.append((*words, *map(report.number_words, ends)))
    first, last = rates.sets[0], rates.sets[-1]
    seeds = f"{len(first)} seeds each, {first[0]} to {last[-1]}"
    title = f"{experiment.title}: {len(rates.sets)} sets, {seeds}"
    return [title, "", *output.table(columns, rows)]


def _result_lines(rows: list[tuple[str, ...]]) -> list[str]:
    """The table; on a terminal the quantity gives way, so that the verdict is seen."""
    from iodaemon.simulator.report import HEADER

    width = output.terminal_columns()
    sizes = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    if width is not None:
        rest = width - sum(sizes) - len(sizes) + 1 + sizes[1]
        sizes[1] = min(sizes[1], max(_QUANTITY_MIN, rest))
    numbers = ("OURS",)
    columns = [
        Column(title, is_number=title in numbers, width_max=size)
        for title, size in zip(HEADER, sizes, strict=True)
    ]
    return output.table(columns, rows, width=width and max(width, sum(sizes) + len(sizes) - 1))


_DISK_COLUMNS: Final = (
    Column("DISK"),
    Column("MEAN USE", is_number=True),
    Column("MAX USE", is_number=True),
    Column("MEAN ALLOC", is_number=True),
    Column("MAX ALLOC", is_number=True),
)

Scheduler = Annotated[
    Word, option("--scheduler", metavar="FILE", text="The scheduler's CSV, beside Darshan's.")
]
Rule = Annotated[Word, option("--rule", metavar="NAME", text="Which disk holds what [balanced].")]
Capacity = Annotated[
    Word, option("--capacity", metavar="SIZE", text="Of all disks together [32 TB].")
]
Layout = Annotated[
    Word,
    option("--layout", metavar="NAME", text="Nodes and disks: 1N1D, 1NnD, nN1D or nNnD [nNnD]."),
]
Split = Annotated[
    Word, option("--split", metavar="SIZE|none", text="Blocks of a request, at most [200 GB].")
]
Books = Annotated[
    Word,
    option(
        "--books",
        metavar="NAME",
        text="Of what is free: correct, or artefact, as published [correct].",
    ),
]
Write = Annotated[
    Word, option("--write", metavar="FILE", text="Write the requests as CSV, and end.")
]


@verb(experiments, "storage")
def simulate_storage(
    path: Annotated[Word, argument("FILE")] = None,
    scheduler: Scheduler = None,
    rule: Rule = None,
    capacity: Capacity = None,
    layout: Layout = None,
    split: Split = None,
    requeue: Annotated[bool, option("--requeue", text="Try a refused request again, later.")] = OFF,
    books: Books = None,
    seed: Annotated[Word, option("--seed", metavar="N", text="Of what is random [1].")] = None,
    write: Write = None,
    as_json: Annotated[bool, option("--json", text="The indicators as JSON.")] = OFF,
) -> int:
    """Place requests for storage on disks, and replay them.

    FILE is StorAlloc's YAML or the same fields as CSV, Darshan's CSV of Theta with --scheduler, or
    CSV with id, size_bytes, start_s, end_s; all may be .gz. Without FILE requests are
    drawn by --seed that stand for Theta's.
    """
    import msgspec

    from iodaemon.simulator.storalloc_file import csv_lines, read_requests
    from iodaemon.simulator.storalloc_trace import Trace, draw_requests

    if seed is not None and not (seed.isascii() and seed.isdigit()):
        raise UsageError(f"--seed {seed}: write a whole number")
    number = int(seed or 1)
    if path is not None:
        found = read_requests(Path(path), None if scheduler is None else Path(scheduler))
        for problem in found.problems:
            output.say(problem)
        requests = found.requests
    elif scheduler is not None:
        raise UsageError("--scheduler belongs to a FILE of Darshan's: name it as well")
    else:
        requests = draw_requests(Trace(), number)
    if write is not None:
        text = "".join(f"{line}\n" for line in csv_lines(requests))
        if write == "-":
            sys.stdout.write(text)
        else:
            Path(write).write_text(text, encoding="utf-8")
            output.say(f"wrote {len(requests)} requests to {write}")
        return 0
    storage, placing = _setup(rule, capacity, layout, split, books, is_retried=requeue)
    outcome = _replayed(storage, placing, requests, number)
    document = msgspec.to_builtins(outcome)
    output.show(document, lambda: _outcome_lines(outcome), as_json=as_json)
    return 0


def _setup(
    rule: Word, capacity: Word, layout: Word, split: Word, books: Word, *, is_retried: bool
) -> tuple[Storage, Placing]:
    """The platform, and how requests are placed on it."""
    from iodaemon.simulator import storalloc
    from iodaemon.simulator.storalloc import Bookkeeping
    from iodaemon.simulator.storalloc_run import placing_of

    known: tuple[Bookkeeping, ...] = get_args(Bookkeeping)
    named = next((each for each in known if each == (books or "correct")), None)
    if named is None:
        raise UsageError(f"--books {books}: write {' or '.join(known)}")
    shape = next((each for each in storalloc.SHAPES if each == (layout or "nNnD")), None)
    if shape is None:
        raise UsageError(f"--layout {layout}: write {', '.join(storalloc.SHAPES)}")
    size = size_bytes("--capacity", capacity or "32 TB")
    if size < storalloc.GB:
        raise UsageError(f"--capacity {capacity}: write at least 1 GB")
    block = None if split == "none" else size_bytes("--split", split or "200 GB")
    if block is not None and block < storalloc.GB:
        raise UsageError(f"--split {split}: write at least 1 GB, or none")
    placing = placing_of(
        rule or "balanced", {}, block_bytes=block, bookkeeping=named, retries=is_retried
    )
    return storalloc.layout(shape, size / storalloc.TB), placing


def _replayed(
    storage: Storage, placing: Placing, requests: Sequence[StorageRequest], seed: int
) -> Replayed:
    from iodaemon.simulator.storalloc import decide
    from iodaemon.simulator.storalloc_replay import replay

    begun_s = time.perf_counter()
    outcome = replay(storage, decide(storage, placing, requests, seed), placing.bookkeeping)
    output.say(f"{len(requests)} requests in {time.perf_counter() - begun_s:.2f} s")
    return outcome


def _outcome_lines(outcome: Replayed) -> list[str]:
    from iodaemon.simulator.storalloc import GB

    pairs = [
        ("sum_cap", f"{outcome.sum_cap / GB:.0f} GB, {outcome.parts} parts"),
        (
            "allocated",
            f"{outcome.allocated_percent:.2f} %, served whole {outcome.served_percent:.2f} %",
        ),
        ("requests", f"{outcome.requests}, split {outcome.split}, allocated {outcome.allocated}"),
        ("refused", f"{outcome.refused}, split {outcome.refused_split}"),
        ("failed", f"{outcome.failed}, split {outcome.failed_split}"),
        ("requeued", f"{outcome.requeued}, delayed {outcome.delayed}, {outcome.delay_s:.0f} s"),
        ("at once", f"{outcome.max_concurrent} allocations"),
    ]
    rows = [
        (
            str(disk.disk),
            f"{disk.mean_disk_use:.3f} %",
            f"{disk.max_disk_use:.3f} %",
            f"{disk.mean_alloc:.3f}",
            str(disk.max_alloc),
        )
        for disk in outcome.disks
    ]
    return [*output.aligned(pairs), "", *output.table(_DISK_COLUMNS, rows)]
