"""Draws figures as SVG and PNG with matplotlib (extra ``[sim]``); same data, same bytes.

Colours are those of Okabe and Ito (Color Universal Design, 2008), told apart by the colour-blind;
line styles and markers differ as well. What a paper prints as numbers is a hollow black marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from iodaemon.errors import NoDrawing, RequestError
from iodaemon.simulator.experiment import Figure, Series
from iodaemon.simulator.pool import Pool, TaskFailed

COLOURS: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#8C6D31",
)
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
MARKER_SIZES: Final = MappingProxyType({"P": 6.5, "X": 6.5, "*": 9.0})
"""Of those that look small; the others are 5."""
PUBLISHED_MARKERS: Final = ("o", "s", "^", "D", "v", "p", "h", "8")
STYLES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 3)))
TRACES: Final = (("#D55E00", "-"), ("#0072B2", "--"), ("#009E73", "-."), ("#CC79A7", ":"))
"""Colour and style of the first traces of a picture; others as lines have them."""
TRACE_WIDTH: Final = 1.1
SIZE_INCHES: Final = (7.2, 4.4)
PNG_DOTS_PER_INCH: Final = 150
GROUP_WIDTH: Final = 0.8
"""Of the bars or boxes of one category, where categories are 1 apart."""
BREAK_FROM, BREAK_TO = 0.90, 0.94
"""Where the white line lies that breaks a bar, in parts of the axis above 0."""
BELOW: Final = 0.05
"""Room below the least value of a picture with broken bars, in parts of the axis above 0."""
CUT_PAD: Final = 14.0
"""Points between the axis and the title where values stand above broken bars."""
LEGEND_INSIDE: Final = 4
"""So many entries find room between lines; more, and those of bars, are beside the picture."""
TICKS: Final = 6
"""So many different numbers on the x axis stand there themselves."""
LABEL_LENGTH: Final = 10
"""Labels of categories longer than this are slanted, where there are more than a few."""
_ALONG_NUMBERS: Final = ("line", "point", "trace")
"""Kinds that may have numbers on the x axis."""
_SETTINGS: Final[Mapping[Any, Any]] = MappingProxyType(
    {
        "svg.hashsalt": "iodaemon",  # else ids in the file are random
        "svg.fonttype": "path",
        "font.family": "DejaVu Sans",  # matplotlib's own: the same on every machine
        "font.size": 9.0,
        "axes.titlesize": 10.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.6,
        "hatch.linewidth": 0.5,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
    }
)


def draw_all(figures: Sequence[Figure], folder: Path, *, pool: Pool) -> list[Path]:
    """Draw the figures; the files, in the order of the figures.

    Raises:
        RequestError: as of ``draw``, or a process that drew was killed.
    """
    try:
        drawn = pool.map(partial(draw, folder=folder), figures)
    except TaskFailed as error:
        raise RequestError(_failure(error, figures)) from error.__cause__
    return [path for paths in drawn for path in paths]


def _failure(error: TaskFailed, figures: Sequence[Figure]) -> str:
    """What is wrong with a figure names it; what else may happen does not."""
    if error.is_told:
        return str(error)
    return f"figure {figures[error.number].name} cannot be drawn: {error}"


def lacking(then: str = "") -> str:
    """What is to be installed where figures cannot be drawn, and what draws them ``then``."""
    told = "figures need matplotlib, all else is there: pip install 'iodaemon[sim]'"
    return f"{told}, then {then}" if then else told


def draw(figure: Figure, folder: Path, *, then: str = "'iod sim plot NAME'") -> tuple[Path, Path]:
    """Draw the figure; the SVG and the PNG, in the folder.

    Args:
        figure: what is drawn.
        folder: where it is put.
        then: the command that draws it once matplotlib is there; empty: none.

    Raises:
        NoDrawing: matplotlib is missing.
        RequestError: the figure contradicts itself.
    """
    check(figure)
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise NoDrawing(lacking(then)) from error
    paths = folder / f"{figure.name}.svg", folder / f"{figure.name}.png"
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        canvas = Canvas(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(canvas)
        axes = canvas.add_subplot()
        _draw_axes(axes, figure)
        canvas.savefig(paths[0], metadata={"Date": None, "Creator": None})
        canvas.set_layout_engine("none")  # laid out for the one, and so for the other
        canvas.savefig(paths[1], dpi=PNG_DOTS_PER_INCH, metadata={"Software": None})
    return paths


def check(figure: Figure) -> None:
    """Refuse what cannot be drawn.

    Raises:
        RequestError: names the figure and the series.
    """
    if not figure.series:
        raise RequestError(f"figure {figure.name}: nothing to draw, it has no series")
    ours = [series.label for series in figure.series if not series.is_published]
    for series in figure.series:
        at = f"figure {figure.name}, series {series.label!r}"
        if not series.is_published and ours.count(series.label) > 1:
            raise RequestError(f"{at}: there are two; each has its own label")
        if len(series.x) != len(series.y):
            raise RequestError(f"{at}: {len(series.x)} x and {len(series.y)} y; as many are needed")
        for key, ends in (("low", series.low), ("high", series.high)):
            if len(ends) not in (0, len(series.y)):
                raise RequestError(f"{at}: {len(ends)} {key} for {len(series.y)} y")


def _draw_axes(axes: Any, figure: Figure) -> None:
    kinds: Mapping[str, Callable[[Any, Figure, Mapping[Any, float]], None]] = {
        "line": _draw_lines,
        "point": _draw_lines,
        "trace": _draw_traces,
        "bar": _draw_bars,
        "stack": _draw_stacks,
        "box": _draw_boxes,
    }
    places = _places(figure)
    kinds[figure.kind](axes, figure, places)
    if figure.line_y is not None:
        axes.axhline(figure.line_y, color="#555555", linewidth=1.0, zorder=1.5)
    _scale_axes(axes, figure)
    _label_axes(axes, figure, places)
    _add_legend(axes, figure)


def _scale_axes(axes: Any, figure: Figure) -> None:
    """Logarithmic where it is wanted, with plain numbers: 0.1, 1, 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if figure.log_x:
        axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log")
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for is_log, axis in ((figure.log_x, axes.xaxis), (figure.log_y, axes.yaxis)):
        if is_log:
            low, high = axis.get_view_interval()
            if high < 100.0 * low:  # two decades have room for 1 2 5 10
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(plain)
            axis.set_minor_formatter(plain if high < 4.0 * low else NullFormatter())


def _places(figure: Figure) -> dict[Any, float]:
    """Where each category stands, in the order of their first appearance; none for numbers."""
    names = list(dict.fromkeys(x for series in figure.series for x in series.x))
    if figure.kind in _ALONG_NUMBERS and not any(isinstance(x, str) for x in names):
        return {}
    return {name: float(place) for place, name in enumerate(names)}


def _x(series: Series, places: Mapping[Any, float]) -> list[float]:
    return [places[x] if places else float(x) for x in series.x]


def _looks(figure: Figure) -> Iterable[tuple[Series, str, Any, Any]]:
    """Each computed series with its colour, marker and line style."""
    ours = [series for series in figure.series if not (series.is_published or series.is_fit)]
    return zip(ours, cycle(COLOURS), cycle(MARKERS), cycle(STYLES))


def _draw_fits(axes: Any, figure: Figure, places: Mapping[Any, float]) -> None:
    """Smooth lines, each in the colour of what it belongs to."""
    colours = {series.label: colour for series, colour, *_ in _looks(figure)}
    colour = COLOURS[0]
    for series in figure.series:
        colour = colours.get(series.label, colour)
        if not series.is_fit:
            continue
        x = _x(series, places)
        axes.plot(x, series.y, color=colour, linewidth=1.2, zorder=2.5, label=series.label)
        if series.low or series.high:
            low, high = series.low or series.y, series.high or series.y
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0.0, zorder=1.8)


def _draw_published(
    axes: Any,
    figure: Figure,
    places: Mapping[Any, float],
    *,
    shifts: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Markers; those of a series with the label of one of ours stand where that one stands."""
    published = [series for series in figure.series if series.is_published]
    for series, marker in zip(published, cycle(PUBLISHED_MARKERS)):
        axes.errorbar(
            [x + shifts.get(series.label, 0.0) for x in _x(series, places)],
            series.y,
            yerr=_error_bars(series),
            fmt=marker,
            markersize=8.0,
            markerfacecolor="none",
            markeredgecolor="#000000",
            markeredgewidth=1.4,
            ecolor="#000000",
            capsize=3.0,
            zorder=5.0,
            label=_published_label(series),
        )


def _published_label(series: Series) -> str:
    return series.label if "published" in series.label else f"{series.label} (published)"


def _error_bars(series: Series) -> list[list[float]] | None:
    """Lengths below and above the points; None where there are no ranges."""
    if not series.low and not series.high:
        return None
    low, high = series.low or series.y, series.high or series.y
    below = [max(0.0, y - end) for y, end in zip(series.y, low, strict=True)]
    above = [max(0.0, end - y) for y, end in zip(series.y, high, strict=True)]
    return [below, above]


def _draw_lines(axes: Any, figure: Figure, places: Mapping[Any, float]) -> None:
    """Points of one category stand side by side, so that equal values hide none of them."""
    is_line = figure.kind == "line"
    width = 0.0 if is_line or not places else GROUP_WIDTH / max(1, len(list(_looks(figure))))
    shifts = _shifts(figure, width)
    for series, colour, marker, style in _looks(figure):
        x = [at + shifts[series.label] for at in _x(series, places)]
        axes.errorbar(
            x,
            series.y,
            yerr=None if is_line else _error_bars(series),
            color=colour,
            marker=marker,
            markersize=MARKER_SIZES.get(marker, 5.0),
            markeredgecolor="#FFFFFF",
            markeredgewidth=0.5,
            linestyle=style if is_line else "none",
            elinewidth=1.0,
            capsize=3.0,
            zorder=3.0,
            label=series.label,
        )
        if is_line and (series.low or series.high):
            low, high = series.low or series.y, series.high or series.y
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0.0, zorder=2.0)
    _draw_fits(axes, figure, places)
    _draw_published(axes, figure, places, shifts=shifts)


def _draw_traces(axes: Any, figure: Figure, places: Mapping[Any, float]) -> None:
    looks = [(series, colour, style) for series, colour, _, style in _looks(figure)]
    for number, (series, colour, style) in enumerate(looks):
        own_colour, own_style = TRACES[number] if number < len(TRACES) else (colour, style)
        axes.plot(
            _x(series, places),
            series.y,
            color=own_colour,
            linestyle=own_style,
            linewidth=TRACE_WIDTH,
            zorder=3.0,
            label=series.label,
        )
    _draw_published(axes, figure, places)


def _draw_bars(axes: Any, figure: Figure, places: Mapping[Any, float]) -> None:
    looks = list(_looks(figure))
    width = GROUP_WIDTH / max(1, len(looks))
    shifts = _shifts(figure, width)
    for series, colour, _, _ in looks:
        axes.bar(
            [x + shifts[series.label] for x in _x(series, places)],
            series.y,
            width=width * 0.92,
            color=colour,
            yerr=_error_bars(series),
            error_kw={"capsize": 2.5, "elinewidth": 1.0, "ecolor": "#333333"},
            label=series.label,
        )
    _draw_published(axes, figure, places, shifts=shifts)
    if figure.cut_y is not None:
        _cut_bars(axes, figure, places, width)


def _cut_bars(axes: Any, figure: Figure, places: Mapping[Any, float], width: float) -> None:
    """End the axis, break the bars that go beyond it, and write above them how far they go."""
    end = figure.cut_y
    assert end is not None
    least = min(0.0, *(y for series in figure.series for y in (*series.y, *series.low)))
    axes.set_ylim(least - (BELOW * end if least < 0.0 else 0.0), end)
    shifts = _shifts(figure, width)
    for series, *_ in _looks(figure):
        for x, y in zip(_x(series, places), series.y, strict=True):
            if y > end:
                left, right = (x + shifts[series.label] + side * width / 2.0 for side in (-1, 1))
                axes.plot(
                    (left, right),
                    (BREAK_FROM * end, BREAK_TO * end),
                    color="#FFFFFF",
                    linewidth=3.0,
                    zorder=4.0,
                )
                axes.annotate(
                    f"{y:.0f}",
                    ((left + right) / 2.0, end),
                    xytext=(0.0, 2.0),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    fontsize=8.0,
                    annotation_clip=False,
                )


def _shifts(figure: Figure, width: float) -> dict[str, float]:
    """How far from its category each series stands, by label, side by side."""
    labels = [series.label for series, *_ in _looks(figure)]
    return {label: (n - (len(labels) - 1) / 2.0) * width for n, label in enumerate(labels)}


def _draw_stacks(axes: Any, figure: Figure, places: Mapping[Any, float]) -> None:
    bottoms = dict.fromkeys(places.values(), 0.0)
    for series, colour, _, _ in _looks(figure):
        x = _x(series, places)
        below = [bottoms[at] for at in x]
        axes.bar(
            x,
            series.y,
            bottom=below,
            width=GROUP_WIDTH * 0.75,
            color=colour,
            edgecolor="#FFFFFF",
            linewidth=0.6,
            label=series.label,
        )
        bottoms |= {at: end + y for at, end, y in zip(x, below, series.y, strict=True)}
    _draw_published(axes, figure, places)


def _draw_boxes(axes: Any, figure: Figure, places: Mapping[Any, float]) -> None:
    """A box from quartile to quartile with the median, whiskers to the least and the greatest."""
    looks = list(_looks(figure))
    names = [name for series, *_ in looks for name in dict.fromkeys(series.x)]
    is_shared = len(names) > len(set(names))
    width = GROUP_WIDTH / (len(looks) if is_shared else 1)
    shifts = _shifts(figure, width if is_shared else 0.0)
    for series, colour, _, _ in looks:
        samples: dict[Any, list[float]] = {}
        for name, y in zip(series.x, series.y, strict=True):
            samples.setdefault(name, []).append(y)
        axes.boxplot(
            list(samples.values()),
            positions=[places[name] + shifts[series.label] for name in samples],
            widths=width * (0.8 if is_shared else 0.6),
            whis=(0, 100),
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": colour, "alpha": 0.45, "edgecolor": colour},
            medianprops={"color": "#000000", "linewidth": 1.4},
            whiskerprops={"color": colour},
            capprops={"color": colour},
            label=series.label,
        )
    _draw_published(axes, figure, places, shifts=shifts)


def _label_axes(axes: Any, figure: Figure, places: Mapping[Any, float]) -> None:
    pad = None if figure.cut_y is None else CUT_PAD
    axes.set_title(figure.title, loc="left", wrap=True, pad=pad)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    if not places:
        numbers = sorted({float(x) for series in figure.series for x in series.x})
        if len(numbers) <= TICKS and not figure.log_x:
            axes.set_xticks(numbers, [f"{number:g}" for number in numbers])
        return
    names = [name if isinstance(name, str) else f"{name:g}" for name in places]
    is_slanted = len(names) > 3 and max(map(len, names)) > LABEL_LENGTH
    slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(list(places.values()), names, **(slant if is_slanted else {}))
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="x")


def _add_legend(axes: Any, figure: Figure) -> None:
    if all(set(series.x) == {series.label} for series in figure.series):
        return  # the axis says it all
    if len(figure.series) == 1 and not figure.series[0].is_published:
        return
    handles, labels = axes.get_legend_handles_labels()
    if figure.kind == "stack":  # as they lie: the last one on top
        handles, labels = handles[::-1], labels[::-1]
    is_full = figure.kind == "point" and bool(_places(figure))  # side by side, in all its width
    if figure.kind in _ALONG_NUMBERS and len(figure.series) <= LEGEND_INSIDE and not is_full:
        axes.legend(handles, labels, loc="best")
    else:
        beside: dict[str, Any] = {"bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
        axes.legend(handles, labels, loc="upper left", **beside)
