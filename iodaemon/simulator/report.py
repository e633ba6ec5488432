"""What came out beside what is published: results, tables of words, JSON, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from iodaemon.errors import RequestError
from iodaemon.simulator.archive import Manifest, Rate, Run, finite, seed_words
from iodaemon.simulator.experiment import (
    BandFrom,
    Choice,
    Experiment,
    Means,
    Row,
    Target,
    Verdict,
)

HEADER: Final = ("ID", "QUANTITY", "PUBLISHED", "OURS", "BAND", "BAND FROM", "MEANS", "VERDICT")
COLUMNS: Final = (
    "Paper",
    "Experiment",
    "Id",
    "Quantity",
    "Published",
    "Ours",
    "Band",
    "Band from",
    "Means",
    "Verdict",
    "Seeds",
    "Other sets",
)
"""Of the table of all experiments."""
NOTHING: Final = "-"
LEGEND: Final[Mapping[Means, str]] = {
    "by construction": "nothing; the inputs were made from this value",
    "fitted": "the model can do it; parameters were chosen with this value in view",
    "directional": "a sign, an order or a statement in words is met, no size",
    "published": "a printed number is met, within the band, and nothing was chosen by it",
    "own": "our own result has not moved; nothing is published of it, or the band is wider",
}
"""What the words of ``means`` say, for people."""
_KEYS: Final = ("id", "quantity", "published", "ours", "low", "high", "means", "verdict")
"""Of a result in JSON."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A target, and what we got.

    Attributes:
        id: of the target.
        quantity: in words.
        published: as printed; None for what no publication gives.
        ours: None where there is no finite number.
        low: ours must not be below.
        high: ours must not be above.
        verdict: whether it is.
        band_from: where the band comes from; None: there is none.
        means: what a pass says; None: nobody has judged it, or there is no band.
    """

    id: str
    quantity: str
    published: float | str | None
    ours: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    band_from: BandFrom | None = None
    means: Means | None = None


def compare(
    experiment: Experiment, values: Mapping[str, float | None], *, is_partial: bool = False
) -> tuple[Result, ...]:
    """One result a target, in their order; of an experiment without targets one a value.

    Args:
        experiment: what is published.
        values: ours, by id; None: the study has none.
        is_partial: not all that the targets are for has run; those without value are left out.

    Raises:
        RequestError: a target has no value.
    """
    if not experiment.targets:
        return tuple(_without_target(id_, value) for id_, value in values.items())
    missing = [target.id for target in experiment.targets if target.id not in values]
    if missing and not is_partial:
        raise RequestError(
            f"study {experiment.study!r} gives no value for target {', '.join(missing)} of "
            f"experiment {experiment.name!r}; it gives {', '.join(values) or 'none'}"
        )
    return tuple(
        _result(target, values[target.id]) for target in experiment.targets if target.id in values
    )


def document(experiment: Experiment, results: Iterable[Result]) -> dict[str, Any]:
    """The results as JSON has them."""
    return {
        "experiment": experiment.name,
        "results": [{key: getattr(result, key) for key in _KEYS} for result in results],
    }


def cells(result: Result) -> tuple[str, ...]:
    """The result in words, one a column of ``HEADER``."""
    return (
        result.id,
        result.quantity,
        number_words(result.published),
        number_words(result.ours),
        band_words(result),
        result.band_from or NOTHING,
        result.means or NOTHING,
        result.verdict,
    )


def number_words(value: float | str | None) -> str:
    """Four digits; the paper's own words as they are."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else f"{value:.4g}"


def meanings(results: Iterable[Result]) -> tuple[Means, ...]:
    """What passes mean among these, in the order of the legend."""
    found = {result.means for result in results}
    return tuple(word for word in LEGEND if word in found)


def band_words(result: Result | Target) -> str:
    """What passes: ``1.75..1.9``, ``<= 1.34``, ``> 5``; nothing where it is only reported."""
    low, high = result.low, result.high
    if low is None:
        return NOTHING if high is None else f"<= {high:g}"
    if high is None:
        return f">= {low:g}"
    return f"{low:g}" if low == high else f"{low:g}..{high:g}"


def tally(results: Sequence[Result]) -> str:
    """How many of each: ``9 pass, 1 miss, 2 reported``."""
    counts = [
        (sum(result.verdict == verdict for result in results), word)
        for verdict, word in (("pass", "pass"), ("miss", "miss"), ("report", "reported"))
    ]
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "no results"


def left_out(experiment: Experiment, results: Iterable[Result]) -> tuple[str, ...]:
    """The targets that have no result, in words."""
    found = {result.id for result in results}
    missing = [target.id for target in experiment.targets if target.id not in found]
    return (f"no value with these parameters: {', '.join(missing)}",) if missing else ()


def notes(experiment: Experiment, results: Iterable[Result]) -> tuple[str, ...]:
    """What a reader must know to judge ours: the targets' notes, each said once."""
    found = {result.id for result in results}
    ids: dict[str, list[str]] = {}
    for target in experiment.targets:
        if target.note and target.id in found:
            ids.setdefault(target.note, []).append(target.id)
    return tuple(f"{', '.join(of)}: {note}" for note, of in ids.items())


def choice_words(choice: Choice) -> str:
    """A choice and its reason, with the parameter that makes another one."""
    by = f" [{choice.option}]" if choice.option else ""
    return f"{choice.silent}: {choice.chosen}{by}; {choice.why}"


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment in the report of all.

    Attributes:
        experiment: what was to be shown.
        results: empty where it has not been run.
        manifest: of the run; None: not run.
        run: when; None: not known.
        summary: the study's own table, for an experiment without targets.
        rates: by id of target, how often its band holds on other sets of seeds.
    """

    experiment: Experiment
    results: tuple[Result, ...] = ()
    manifest: Manifest | None = None
    run: Run | None = None
    summary: tuple[Row, ...] = ()
    rates: Mapping[str, Rate] = {}


def head(version: str, date: str, *, by_hand: str = "") -> str:
    """What stands above the table of all experiments.

    Args:
        version: of iodaemon.
        date: today's.
        by_hand: Markdown that will end the report, with a heading first.
    """
    text = (
        "# Experiments: published, and ours\n\n"
        f"Made on {date} with iodaemon {version} by `make experiments` (`iod sim run --all`, then "
        "`iod sim run --all --seed-sets 12` and\n`iod sim report`).\n\n"
        "`pass`: ours is within the band, ends included. **`miss`**: it is not, and stays here as "
        "it is. `report`: there is\nno band, the value is told. True is 1, false is 0. Published "
        "values are as printed. The same seeds give the same values.\n\n"
        "Band from `paper`: the paper prints the bound, or words that mean it. Band from `ours`: "
        "it was written after a\nfirst result of our own and is for regression: a pass says that "
        "nothing moved, not that the paper is met.\n\n"
        "Means, what a pass says:\n\n"
        + "".join(f"- `{word}`: {meaning}\n" for word, meaning in LEGEND.items())
        + "\nOther sets: on how many other sets of as many seeds the band holds "
        "(`iod sim run NAME --seed-sets 12`), where that was tried."
    )
    if not by_hand:
        return text
    title = by_hand.splitlines()[0].lstrip("# ")
    return f"{text}\n\nThe end is by hand: [{title}](#{title.lower().replace(' ', '-')})."


def markdown(chapters: Sequence[Chapter], *, head: str, tail: str = "") -> str:
    """All experiments in one table, then how each was run and what was chosen where silent.

    Args:
        chapters: in the order of the table.
        head: lines before the table.
        tail: lines after the last chapter.
    """
    lines = [head.rstrip()]
    table = [line for chapter in chapters for line in _table_lines(chapter)]
    if table:
        lines += ["", _line(COLUMNS), _line(["---"] * len(COLUMNS)), *table]
    for chapter in chapters:
        lines += ["", *_chapter_lines(chapter)]
    if tail:
        lines += ["", tail.rstrip()]
    return "\n".join(lines) + "\n"


def _table_lines(chapter: Chapter) -> list[str]:
    experiment = chapter.experiment
    first = [experiment.source, experiment.name]
    if not experiment.targets:
        return []
    if chapter.manifest is None:
        return [_line([*first, *[NOTHING] * 7, "not run", NOTHING, NOTHING])]
    seeds = seed_words(chapter.manifest.seeds)
    places = {target.id: target.source for target in experiment.targets}
    lines = []
    for result in chapter.results:
        id_, quantity, published, ours, band, band_from, means, _ = cells(result)
        quantity = f"{quantity} ({places[result.id]})"
        verdict = _stressed(result.verdict)
        rate = chapter.rates.get(result.id)
        others = NOTHING if rate is None else rate.words()
        words = [id_, quantity, published, ours, band, band_from, means, verdict, seeds, others]
        lines.append(_line([*first, *words]))
    return lines


def _chapter_lines(chapter: Chapter) -> list[str]:
    experiment = chapter.experiment
    lines = [f"## {experiment.name}", "", f"{experiment.title}. Source: {experiment.source}."]
    lines += ["", _run_words(chapter)]
    if chapter.summary:
        lines += ["", *_summary_lines(chapter.summary)]
    elif not experiment.targets and chapter.results:
        values = [_line([result.id, number_words(result.ours)]) for result in chapter.results]
        lines += ["", _line(["value", "ours"]), _line(["---"] * 2), *values]
    if experiment.targets and chapter.results:
        lines[-1] += f" {tally(chapter.results)}."
    if noted := notes(experiment, chapter.results):
        lines += ["", *(f"- {note}" for note in noted)]
    if experiment.choices:
        lines += [
            "",
            "Where the source is silent, the parameter that makes another choice in []:",
            "",
        ]
        lines += [f"- {choice_words(choice)}" for choice in experiment.choices]
    return lines


def _summary_lines(rows: Sequence[Row]) -> list[str]:
    columns = [key for key in rows[0] if key != "kind"]
    head_cells = [key.replace("_", " ") for key in columns]
    body = [_line([number_words(row[key]) for key in columns]) for row in rows]
    return [_line(head_cells), _line(["---"] * len(columns)), *body]


def _run_words(chapter: Chapter) -> str:
    if chapter.manifest is None:
        return f"Not run yet: iod sim run {chapter.experiment.name}"
    by = f"by iodaemon {chapter.manifest.version}, seeds {seed_words(chapter.manifest.seeds)}"
    if chapter.run is None:
        return f"Run {by}."
    cores = "1 core" if chapter.run.processes == 1 else f"{chapter.run.processes} cores"
    when = chapter.run.ended.partition("T")[0]
    return f"Run on {when} {by}, {chapter.run.elapsed_s:.3g} s on {cores}."


def _result(target: Target, ours: float | None) -> Result:
    return Result(
        id=target.id,
        quantity=target.quantity,
        published=target.published,
        ours=None if ours is None else finite(float(ours)),
        low=target.low,
        high=target.high,
        verdict=target.verdict(ours),
        band_from=target.band_from if target.has_band else None,
        means=target.means,
    )


def _without_target(id_: str, ours: float | None) -> Result:
    return Result(
        id=id_,
        quantity=id_,
        published=None,
        ours=None if ours is None else finite(float(ours)),
        low=None,
        high=None,
        verdict="report",
    )


def _stressed(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict == "miss" else verdict


def _line(row: Iterable[str]) -> str:
    """A row of a table in Markdown; what is in a cell stays in it."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
