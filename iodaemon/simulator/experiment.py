"""What an experiment is: a published result, how ours is made, and how the two compare.

An experiment is one TOML file under ``sim/experiments/``; what it computes is a study
(``iodaemon/simulator/study/``). Everything here is data; nothing runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

Row = dict[str, str | int | float]
"""One line of a study's table; the same keys in every row of one ``kind``."""
Verdict = Literal["pass", "miss", "report"]
BandFrom = Literal["paper", "ours"]
"""``paper``: it prints the bounds, or words that mean them. ``ours``: written after a first result
of our own, to notice a change of it; a pass says that nothing moved, not that the paper is met."""

Means = Literal["by construction", "fitted", "directional", "published", "own"]
"""What a pass of a band says; ``iodaemon.simulator.report.LEGEND`` has it in words."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity that the paper gives, and the band in which ours counts as the same.

    Attributes:
        id: short, and the same in every report, for example ``C1a``.
        quantity: in words, with its unit.
        source: where the paper prints it: section, figure or table.
        published: the value as printed (a number, or the paper's words).
        low: ours must not be below; None with ``high`` None: reported only.
        high: ours must not be above.
        band_from: where ``low`` and ``high`` come from; what nobody claims of the paper is ours.
        means: what a pass says. None: nobody has judged it, or there is no band.
        note: what a reader must know to judge ours.
    """

    id: str
    quantity: str
    source: str
    published: float | str
    low: float | None = None
    high: float | None = None
    band_from: BandFrom = "ours"
    means: Means | None = None
    note: str = ""

    @property
    def has_band(self) -> bool:
        """Whether ours is judged, not only reported."""
        return self.low is not None or self.high is not None

    def verdict(self, ours: float | None) -> Verdict:
        """``pass`` within the band, ends included; ``report`` where there is none.

        Args:
            ours: None: the study has no value, which no band lets pass.
        """
        if not self.has_band:
            return "report"
        if ours is None:
            return "miss"
        above = self.low is None or ours >= self.low
        below = self.high is None or ours <= self.high
        return "pass" if above and below else "miss"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A point on which the paper is silent or contradicts itself, and what we took.

    Attributes:
        silent: what is not said.
        chosen: what we took.
        why: the reason, with the number if there is one.
        option: the parameter of the study that selects it; empty: none.
    """

    silent: str
    chosen: str
    why: str
    option: str = ""


class SeedSets(msgspec.Struct, frozen=True, kw_only=True):
    """Bands that are also tried on other sets of as many seeds.

    Attributes:
        targets: their ids.
        parameters: replace the study's, so that no more is run than these targets take.
    """

    targets: tuple[str, ...]
    parameters: dict[str, Any] = {}


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment file.

    Attributes:
        name: the file's name without ``.toml``.
        title: one line.
        source: the publication and its sections.
        study: the module of ``iodaemon.simulator.study`` that computes it.
        seeds: one whole repetition each.
        parameters: of the study: platform, workload, policies, measures.
        quick: parameters and ``seeds`` that replace these in the quick mode (under a minute).
        seed_sets: which targets are tried on other seeds as well. None: none.
        targets: what is compared.
        choices: what the paper leaves unstated.
    """

    name: str
    title: str
    source: str
    study: str
    seeds: tuple[int, ...]
    parameters: dict[str, Any] = {}
    quick: dict[str, Any] = {}
    seed_sets: SeedSets | None = None
    targets: tuple[Target, ...] = ()
    choices: tuple[Choice, ...] = ()


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One set of points of a figure.

    Attributes:
        label: for the legend.
        x: numbers, or names for categories.
        y: as many.
        low: lower ends of ranges over seeds, as many; empty: none.
        high: upper ends.
        is_published: points that the paper prints as numbers: drawn as markers of their own.
        is_fit: of lines and points: a smooth line without markers, in the colour of the series
            before it; its range is shaded.
    """

    label: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    is_published: bool = False
    is_fit: bool = False


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One picture, as data; ``draw`` turns it into SVG and PNG.

    Attributes:
        name: file name without suffix, for example ``figure-10``.
        title: what is seen, and which figure of the paper it redraws.
        x_label: with unit.
        y_label: with unit.
        kind: lines with markers, unconnected points, traces (many points each: the first red and
            solid, the second blue and dashed, no markers), bars side by side, bars stacked, or
            boxes (each series is then one sample; ``x`` names the boxes, one value a point).
        series: what is drawn.
        log_x: logarithmic axis.
        log_y: logarithmic axis.
        line_y: a horizontal reference line.
        cut_y: of bars: the axis ends here, and a bar beyond it is broken and bears its value.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    kind: Literal["line", "point", "trace", "bar", "stack", "box"]
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    line_y: float | None = None
    cut_y: float | None = None


class Study(Protocol):
    """How an experiment is computed. Deterministic: same parameters and seed, same rows."""

    def tasks(self, seeds: Sequence[int]) -> Sequence[Any]:
        """Independent pieces of work, each small to send to another process (picklable)."""
        ...

    def run(self, task: Any) -> Sequence[Row]:
        """One piece, in any process, in any order; its rows in a fixed order."""
        ...

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Our value of each target by id, from all rows in the order of the tasks.

        What is true or false is 1 or 0. None: published, but nothing here can measure it; the
        target's note says why. Ids without a target are refused by a test.
        """
        ...

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """The pictures."""
        ...
