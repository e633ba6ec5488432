"""From an experiment to kept rows, results and figures; and back from kept rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon import __version__
from iodaemon.errors import ConfigError, IodaemonError, NotFound, RequestError
from iodaemon.simulator import archive, report
from iodaemon.simulator.archive import Rate, Rates, Run
from iodaemon.simulator.catalogue import (
    ExperimentFile,
    Trial,
    prepare,
    prepare_seed_sets,
    with_parameters,
)
from iodaemon.simulator.experiment import Figure, Row, Study
from iodaemon.simulator.pool import OnDone, Pool, run_study
from iodaemon.simulator.report import Chapter, Result

RESULTS_FOLDER: Final = Path("iod-sim")
"""Where results are kept, a folder an experiment, unless another place is named."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run.

    Attributes:
        results: a target each.
        summary: a table of the study's own, for people; empty: it has none.
        figures: to be drawn.
        run: how long it took.
        remarks: what the user should know of what was given, one line each.
    """

    results: tuple[Result, ...]
    summary: tuple[Row, ...]
    figures: tuple[Figure, ...]
    run: Run
    remarks: tuple[str, ...] = ()


def folder_of(experiment: str, *, is_quick: bool, results: Path = RESULTS_FOLDER) -> Path:
    """Where the results of an experiment are kept; those of the quick mode beside the others."""
    return results / (f"{experiment}-quick" if is_quick else experiment)


def conduct(trial: Trial, folder: Path, *, pool: Pool, on_done: OnDone | None) -> Outcome:
    """Run an experiment and keep its rows and results in the folder.

    Args:
        trial: what to run.
        folder: see ``archive.check_folder``; what it holds is replaced.
        pool: where.
        on_done: called after every task.

    Raises:
        RequestError: a task failed, rows cannot be kept, or a target has no value.
        ConfigError: the study refuses its parameters; names the file.
        OSError: the folder cannot be written.
    """
    begun_s = time.monotonic()
    done = 0

    def told(now_done: int, total: int) -> None:
        nonlocal done
        done = now_done
        if on_done is not None:
            on_done(now_done, total)

    try:
        with _told(trial.experiment.study, "fails to plan its tasks"):
            remarks = _remarks(trial.study)
            rows = run_study(trial.study, trial.seeds, pool=pool, on_done=told)
    except ConfigError as error:
        raise ConfigError(f"{trial.file.path} [parameters]: {error}") from error
    rows = archive.arranged(rows)
    archive.keep(folder, archive.manifest_of(trial), rows)
    with _told(trial.experiment.study):
        results = _results(trial, trial.study.measure(rows))
        summary, figures = _summary(trial.study, rows), tuple(trial.study.figures(rows))
    document = report.document(trial.experiment, results)
    archive.write_json(folder / archive.RESULTS, document)
    outcome = Outcome(
        results=results,
        summary=summary,
        figures=figures,
        run=Run(
            ended=time.strftime("%Y-%m-%dT%H:%M"),
            elapsed_s=round(time.monotonic() - begun_s, 2),
            tasks=done,
            processes=min(pool.processes, max(1, done)),
        ),
        remarks=remarks,
    )
    archive.write_run(folder, outcome.run)
    return outcome


def try_seed_sets(
    file: ExperimentFile, count: int, folder: Path, *, pool: Pool, on_done: OnDone | None
) -> Rates:
    """How often the bands that the experiment names hold on so many other sets of seeds.

    What is found is kept in the folder, beside the results.

    Args:
        file: the experiment.
        count: how many sets.
        folder: where its results are kept.
        pool: where it runs.
        on_done: called after every task.

    Raises:
        ConfigError: the experiment names no target.
        RequestError: a task failed, or a target has no value.
        OSError: the folder cannot be written.
    """
    trials = prepare_seed_sets(file, count)
    sets = file.experiment.seed_sets
    assert sets is not None
    found: dict[str, list[float | None]] = {id_: [] for id_ in sets.targets}
    for number, trial in enumerate(trials):

        def told(done: int, tasks: int, before: int = number) -> None:
            if on_done is not None:
                on_done(before * tasks + done, count * tasks)

        rows = archive.arranged(run_study(trial.study, trial.seeds, pool=pool, on_done=told))
        with _told(file.experiment.study):
            values = trial.study.measure(rows)
        for id_, held in found.items():
            if id_ not in values:
                raise RequestError(
                    f"{file.path} [seed_sets]: with these parameters there is no value for {id_}"
                )
            held.append(values[id_])
    targets = {target.id: target for target in file.experiment.targets}
    rates = Rates(
        experiment=file.experiment.name,
        version=__version__,
        parameters=trials[0].parameters,
        sets=tuple(trial.seeds for trial in trials),
        rates={
            id_: Rate(
                held=sum(targets[id_].verdict(value) == "pass" for value in held),
                values=tuple(map(archive.finite, held)),
                low=targets[id_].low,
                high=targets[id_].high,
            )
            for id_, held in found.items()
        },
    )
    archive.write_rates(folder, rates)
    return rates


def kept_rates(file: ExperimentFile, folder: Path) -> Mapping[str, Rate]:
    """What is kept of other sets of seeds, of the bands and parameters that the file has now.

    Raises:
        RequestError: it cannot be read.
    """
    kept = archive.find_rates(folder)
    if kept is None or file.experiment.seed_sets is None:
        return {}
    if kept.parameters != prepare_seed_sets(file, 1)[0].parameters:
        return {}
    bands = {target.id: (target.low, target.high) for target in file.experiment.targets}
    return {
        id_: rate for id_, rate in kept.rates.items() if bands.get(id_) == (rate.low, rate.high)
    }


def kept_figures(file: ExperimentFile, folder: Path) -> tuple[Figure, ...]:
    """The figures from the kept rows, with the parameters that those were made with.

    Raises:
        NotFound: nothing is kept there.
        RequestError: what is kept cannot be read.
        ConfigError: today's study does not take those parameters.
    """
    study, rows = _kept(file, folder)
    with _told(file.experiment.study):
        return tuple(study.figures(rows))


def misfits(trial: Trial, folder: Path) -> tuple[str, ...]:
    """Where what is kept is not what the experiment says now, in words; empty: it fits.

    Raises:
        NotFound: nothing is kept there.
        RequestError: what is kept cannot be read.
    """
    kept, now = archive.read_manifest(folder), archive.manifest_of(trial)
    found = archive.differences(kept, now)
    if kept.version != now.version:
        return (*found, f"made by iodaemon {kept.version}, this is {now.version}")
    return found


def kept_chapter(file: ExperimentFile, results: Path) -> tuple[Chapter, tuple[str, ...]]:
    """An experiment in the report of all, and why its kept results are not in it.

    The targets are today's; the rows are not computed again.

    Args:
        file: the experiment.
        results: the folder of the experiments' folders.

    Raises:
        RequestError: what is kept cannot be read.
    """
    experiment = file.experiment
    folder = folder_of(experiment.name, is_quick=False, results=results)
    try:
        manifest = archive.read_manifest(folder)
    except NotFound:
        return Chapter(experiment=experiment), ("not run yet",)
    trial = prepare(file)
    if others := archive.differences(manifest, archive.manifest_of(trial)):
        return Chapter(experiment=experiment), others
    study, rows = _kept(file, folder)
    with _told(experiment.study):
        chapter = Chapter(
            experiment=experiment,
            results=_results(trial, study.measure(rows)),
            manifest=manifest,
            run=archive.find_run(folder),
            summary=() if experiment.targets else _summary(study, rows),
            rates=kept_rates(file, folder),
        )
    return chapter, ()


@contextmanager
def _told(study: str, problem: str = "fails on its rows, which are kept") -> Iterator[None]:
    """What goes wrong in a study, which may be foreign code, in one line."""
    try:
        yield
    except IodaemonError:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise RequestError(f"study {study!r} {problem}: {what}") from error


def _kept(file: ExperimentFile, folder: Path) -> tuple[Study, tuple[Row, ...]]:
    manifest = archive.read_manifest(folder)
    try:
        study = with_parameters(file, manifest.parameters)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}; run it again") from error
    return study, archive.read_rows(folder, manifest)


def _results(trial: Trial, values: Mapping[str, float | None]) -> tuple[Result, ...]:
    is_partial = trial.is_quick or trial.has_other_policies
    return report.compare(trial.experiment, values, is_partial=is_partial)


def _summary(study: Any, rows: Sequence[Row]) -> tuple[Row, ...]:
    """The table of a study that has one for people (``summary``), beyond the protocol."""
    return tuple(study.summary(rows)) if hasattr(study, "summary") else ()


def _remarks(study: Any) -> tuple[str, ...]:
    """What a study has to say of what it was given (``remarks``), beyond the protocol."""
    return tuple(study.remarks()) if hasattr(study, "remarks") else ()
