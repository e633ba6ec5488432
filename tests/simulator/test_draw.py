"""Figures: the same data give the same bytes, and every kind is drawn."""

import msgspec
import pytest
from matplotlib.figure import Figure as Canvas

from iodaemon.errors import RequestError
from iodaemon.simulator import draw as drawing
from iodaemon.simulator.draw import draw
from iodaemon.simulator.experiment import Figure, Series

NAMES = ("First-Fit", "S = 1", "S = alpha", "longest remaining")


def series(label="ours", x=NAMES, y=(1.0, 2.0, 0.5, 4.0), **fields):
    return Series(label=label, x=x, y=y, **fields)


def figure(kind="bar", *made, **fields):
    base = {"name": "figure-1", "title": "t", "x_label": "x", "y_label": "y", "kind": kind}
    return Figure(**base | {"series": made or (series(),)} | fields)


RANGED = series(low=(0.5, 1.5, 0.4, 3.0), high=(1.5, 2.5, 0.6, 5.0))
PAPER = series("paper", x=("S = 1",), y=(1.9,), is_published=True)
NUMBERS = series(x=(1, 10, 100), y=(0.1, 1.0, 10.0), low=(0.05, 0.5, 5.0), high=(0.2, 2.0, 20.0))
SAMPLE = series(x=("a", "a", "a", "b", "b"), y=(1.0, 2.0, 4.0, 3.0, 5.0))
ALL = {
    "bars": figure("bar", RANGED, series("other"), PAPER, line_y=1.0),
    "stacks": figure("stack", series(), series("other"), PAPER),
    "lines": figure("line", NUMBERS, log_x=True, log_y=True),
    "lines over names": figure("line", RANGED, PAPER),
    "points": figure("point", NUMBERS),
    "traces": figure("trace", NUMBERS, *(series(f"{n}", x=(1, 2), y=(n, n)) for n in range(4))),
    "boxes": figure("box", SAMPLE, series("other", x=("a", "b"), y=(2.0, 3.0)), log_y=True),
    "a box a series": figure(
        "box", series("a", x=("a",), y=(1.0,)), series("b", x=("b",), y=(2.0,))
    ),
    "many": figure("bar", *(series(f"policy {number}") for number in range(12))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALL))
def test_the_same_data_give_the_same_bytes(tmp_path, name):
    first, second = ([path.read_bytes() for path in draw(ALL[name], tmp_path)] for _ in range(2))

    assert first == second
    assert first[0].startswith(b"<?xml")
    assert first[1].startswith(b"\x89PNG")


def test_no_date_is_in_a_picture(tmp_path):
    svg, png = draw(ALL["bars"], tmp_path)

    assert "dc:date" not in svg.read_text()
    assert b"Software" not in png.read_bytes()
    assert ("figure-1.svg", "figure-1.png") == (svg.name, png.name)


@pytest.fixture
def axes():
    """Draw one without a file; its axes."""

    def axes(figure):
        made = Canvas().add_subplot()
        drawing._draw_axes(made, figure)
        return made

    return axes


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_what_is_published_is_a_hollow_marker_and_named_so(axes):
    made = axes(ALL["bars"])

    marker = next(line for line in made.lines if line.get_markeredgecolor() == "#000000")
    assert "none" == marker.get_markerfacecolor()
    assert "None" == marker.get_linestyle()
    assert "paper (published)" in legend(made)


def test_points_of_one_category_hide_none_of_equal_value(axes):
    rules = [series(rule, y=(100.0,) * 4) for rule in ("random", "round_robin", "worst_fit")]
    paper = series("round_robin", x=("S = 1",), y=(99.0,), is_published=True)

    made = axes(figure("point", *rules, paper))

    drawn = [tuple(line.get_xdata()) for line in made.lines if len(line.get_xdata()) == 4]
    assert len(set(drawn)) == len(drawn) == 3
    assert all(abs(x - place) < 0.5 for points in drawn for place, x in enumerate(points))
    (published,) = (line for line in made.lines if list(line.get_ydata()) == [99.0])
    assert published.get_xdata()[0] == drawn[1][1]


def test_a_bar_beyond_the_cut_is_broken_and_bears_its_value(axes):
    high, low = series("slowdown", y=(523.0, 761.0, 40.0, 60.0)), series("throughput")
    paper = series("slowdown", x=("S = 1",), y=(-2.9,), is_published=True)

    made = axes(figure("bar", low, high, paper, cut_y=120.0))

    assert made.get_ylim()[1] == 120.0
    assert -20.0 < made.get_ylim()[0] < -2.9
    assert [text.get_text() for text in made.texts] == ["523", "761"]
    assert axes(figure("bar", low, high)).get_ylim()[1] > 761.0


def test_stacked_bars_lie_on_each_other(axes):
    made = axes(figure("stack", series(), series("other")))

    below, above = (container.patches for container in made.containers)
    assert [bar.get_height() for bar in below] == [bar.get_y() for bar in above]
    assert ["other", "ours"] == legend(made)


def test_series_differ_in_more_than_their_colour(axes):
    made = axes(figure("line", *(series(f"policy {number}") for number in range(8))))

    looks = {(line.get_marker(), line.get_color()) for line in made.lines}
    assert 8 == len({marker for marker, _ in looks}) == len({colour for _, colour in looks})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (msgspec.structs.replace(figure(), series=()), "nothing to draw"),
        (figure("bar", series(y=(1.0,))), "series 'ours': 4 x and 1 y"),
        (figure("bar", series(low=(1.0,))), "series 'ours': 1 low for 4 y"),
        (figure("bar", series(), series()), "series 'ours': there are two"),
    ],
)
def test_a_figure_that_contradicts_itself_is_refused(tmp_path, bad, message):
    with pytest.raises(RequestError, match=f"figure figure-1.*{message}"):
        draw(bad, tmp_path)
