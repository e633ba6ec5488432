"""What came of an experiment, in lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iodaemon.cli import output
from iodaemon.cli.output import Column

if TYPE_CHECKING:
    from iodaemon.simulator.archive import Rates
    from iodaemon.simulator.catalogue import Trial
    from iodaemon.simulator.conduct import Outcome
    from iodaemon.simulator.experiment import Experiment

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
