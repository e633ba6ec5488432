"""The knee is where readers that ask for more take longer; one disturbed step does not move it."""

import math

import msgspec
import pytest
from calibrating import MB, calibration, leaf, paced, point
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.calibration.knee import (
    BOUND_SHARE,
    DEGRADED,
    curves,
    disputed,
    draw,
    find_knees,
    next_rate,
    recommended,
)
from iodaemon.calibration.record import Knee
from iodaemon.calibration.store import keep, kept_of
from iodaemon.cli.calibrate import draw_figure, lines_of, replaced_words

RATES = st.floats(min_value=1e5, max_value=1e10)
SOCKETS = st.integers(min_value=1, max_value=8)


def on_device(capacity, sockets, totals):
    """Paced readers on a device that serves so much and shares it fairly."""
    return [paced(sockets, total, max(1.0, total / capacity)) for total in totals]


@given(RATES, SOCKETS, st.lists(RATES, min_size=1, max_size=20))
def test_the_knee_of_a_device_lies_about_its_capacity(capacity, sockets, totals):
    (knee,) = find_knees(on_device(capacity, sockets, totals))

    edge = DEGRADED * capacity
    fine = [total for total in totals if total / capacity <= DEGRADED]
    beyond = [total for total in totals if total / capacity > DEGRADED]
    assert knee.sockets == sockets
    assert knee.fine_bytes_per_s == max(fine, default=0.0)
    assert knee.degraded_bytes_per_s == min(beyond, default=None)
    assert knee.fine_bytes_per_s <= edge * (1 + 1e-9)


@given(st.lists(st.tuples(SOCKETS, RATES, st.floats(1.0, 50.0)), max_size=30), st.randoms())
def test_the_order_of_the_steps_does_not_matter(steps, rng):
    loads = [paced(*step) for step in steps]
    mixed = loads[:]
    rng.shuffle(mixed)

    assert find_knees(loads) == find_knees(mixed)
    assert disputed(loads) == disputed(mixed)


@given(RATES, SOCKETS, st.sets(st.integers(1, 100), min_size=6, max_size=20), st.data())
def test_one_disturbed_step_far_below_the_knee_moves_nothing(capacity, sockets, percents, data):
    totals = sorted(percent / 50 * capacity for percent in percents)
    fine = [total for total in totals if total <= capacity]
    if len(fine) < 3:
        return
    loads = on_device(capacity, sockets, totals)
    hit = data.draw(st.integers(0, len(fine) - 3))

    disturbed = [*loads[:hit], paced(sockets, totals[hit], 9.0), *loads[hit + 1 :]]

    assert find_knees(disturbed) == find_knees(loads)
    assert disputed(disturbed) == ((sockets, totals[hit]),)


@given(RATES, SOCKETS, st.lists(RATES, min_size=1, max_size=20), st.data())
def test_a_step_that_is_measured_again_counts_by_the_better_one(capacity, sockets, totals, data):
    loads = on_device(capacity, sockets, totals)
    again = data.draw(st.sampled_from(loads))

    worse = paced(sockets, again.asked_bytes_per_s, again.run_ratio * 5)

    assert find_knees([*loads, worse]) == find_knees(loads)


def test_unpaced_readers_say_nothing_of_the_knee():
    unpaced = paced(2, 100 * MB, 3.0)

    assert find_knees([type(unpaced)(**{**_fields(unpaced), "asked_bytes_per_s": None})]) == ()


def _fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


@pytest.mark.parametrize(
    ("fine", "degraded", "bound"),
    [(45.0 * MB, 48.0 * MB, 40.0 * MB), (45.0 * MB, None, None), (0.0, 10.0 * MB, None)],
)
def test_the_bound_is_the_papers_part_of_what_all_sockets_had_in_time(fine, degraded, bound):
    knees = [
        Knee(sockets=1, fine_bytes_per_s=200 * MB, degraded_bytes_per_s=210 * MB),
        Knee(sockets=8, fine_bytes_per_s=fine, degraded_bytes_per_s=degraded),
    ]

    found = recommended(knees)

    assert found == (bound if bound is None else pytest.approx(bound))
    assert math.isclose(BOUND_SHARE, 40 / 45)


def test_the_next_step_is_half_way_between_fine_and_degraded():
    knees = find_knees(on_device(50 * MB, 2, [20 * MB, 40 * MB, 80 * MB]))

    assert next_rate(knees, 2, 1e9) == 60 * MB
    assert next_rate(knees, 4, 1e9) is None


def test_while_nothing_was_degraded_the_next_step_asks_for_more_than_the_last():
    knees = find_knees(on_device(50 * MB, 2, [20 * MB]))

    assert next_rate(knees, 2, 1e9) == pytest.approx(28 * MB)
    assert next_rate(knees, 2, 24 * MB) == 24 * MB
    assert next_rate(knees, 2, 20 * MB) is None


@given(RATES, st.lists(RATES, min_size=1, max_size=6, unique=True))
def test_closing_in_halves_what_is_not_known(capacity, totals):
    loads = on_device(capacity, 4, [*totals, 4 * capacity])
    while (total := next_rate(knees := find_knees(loads), 4, 1e12)) is not None:
        (knee,) = knees
        width = knee.degraded_bytes_per_s - knee.fine_bytes_per_s
        loads += on_device(capacity, 4, [total])
        (closer,) = find_knees(loads)
        left = closer.degraded_bytes_per_s - closer.fine_bytes_per_s
        assert left <= width * 0.5 * (1 + 1e-6)
    (knee,) = find_knees(loads)
    assert knee.fine_bytes_per_s <= DEGRADED * capacity * (1 + 1e-9)
    assert DEGRADED * capacity <= knee.degraded_bytes_per_s <= 1.06 * knee.fine_bytes_per_s


def test_a_curve_of_figure_14_is_the_run_time_over_that_on_one_socket():
    loads = [
        paced(1, 10 * MB, 1.25),
        paced(2, 20 * MB, 2.5),
        paced(4, 40 * MB, 1.0),
        paced(1, 30 * MB),
        paced(2, 60 * MB, 3.0),
        paced(4, 77 * MB, 9.0),
    ]

    assert curves(loads) == {10 * MB: {1: 1.0, 2: 2.0, 4: 1.0}, 30 * MB: {1: 1.0, 2: 3.0}}


# -- the picture, and a calibration in words -------------------------------------------------------

STEPS = st.tuples(st.integers(1, 8), st.floats(1e4, 1e11), st.floats(1.0, 1e4))


@given(st.lists(STEPS, max_size=30))
def test_every_curve_is_a_line_of_the_table_and_the_picture_is_straight(steps):
    found = curves([paced(*step) for step in steps])

    lines = draw(found)

    assert len([line for line in lines if "MB/s a socket" in line]) == min(26, len(found))
    assert len({line.index("|") for line in lines if "|" in line}) <= 1
    assert (lines == []) == (found == {})


def test_what_degrades_stands_above_what_does_not():
    steps = [(1, 10.0, 1.0), (2, 20.0, 1.0), (1, 40.0, 1.0), (2, 80.0, 4.0)]
    lines = draw(curves([paced(sockets, rate * MB, ratio) for sockets, rate, ratio in steps]))

    assert "b" in lines[0]
    assert "4x" in lines[0]
    assert lines[11].count("a") == 2
    assert lines[-1].split()[-2:] == ["1.00", "4.00"]


def test_nothing_measured_is_no_picture():
    assert draw({}) == []
    assert draw_figure(calibration(loads=()), None) == ()


def test_in_words_a_request_that_was_split_has_a_star_and_one_not_measured_a_hyphen():
    split = point(size=1 << 20, service_s=0.002)
    split = type(split)(**{**_fields(split), "size_bytes": float(1 << 19)})
    lines = lines_of(calibration(leaf(points=[point(service_s=0.00012), split])))

    (small,) = [line for line in lines if line.strip().startswith("4 KiB")]
    (large,) = [line for line in lines if line.strip().startswith("1 MiB")]
    assert small.split() == ["4", "KiB", "0.120", "ms", "-", "-", "-"]
    assert "2.000 ms*" in large


def test_in_words_a_bound_that_cannot_be_recommended_is_said():
    assert any("none recommended" in line for line in lines_of(_without_bound()))
    assert any('"40 MB/s" recommended' in line for line in lines_of(calibration()))


def _without_bound():
    return calibration(io_bound_bytes_per_s=None)


# -- in words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fine", "degraded", "words"),
    [
        (45 * MB, 48 * MB, "between 45.0 and 48.0 MB/s of all"),
        (1701 * MB, 1702 * MB, "between 1.701 and 1.702 GB/s of all"),
        (1701 * MB, 1701 * MB + 1, "about 1.7 GB/s of all"),
        (0.0, 5800 * MB, "below 5.8 GB/s of all"),
        (2800 * MB, None, "not seen up to 2.8 GB/s of all"),
        (0.4 * MB, 0.41 * MB, "between 0.40 and 0.41 MB/s of all"),
    ],
)
def test_the_ends_of_a_knee_differ_as_they_are_written(fine, degraded, words):
    knee = Knee(sockets=2, fine_bytes_per_s=fine, degraded_bytes_per_s=degraded)

    (line,) = [
        each for each in lines_of(calibration(knees=(knee,))) if each.startswith("knee, 2 sockets")
    ]

    assert words in line


@pytest.mark.parametrize(
    ("is_forced", "words"), [(False, "on a quiet machine"), (True, "on a busy machine")]
)
def test_whose_place_a_new_one_takes_is_said(tmp_path, is_forced, words):
    made = calibration()
    method = msgspec.structs.replace(made.method, forced=is_forced)
    first = msgspec.structs.replace(made, method=method, path="/one")
    assert replaced_words(kept_of(tmp_path, first)) == ""

    keep(tmp_path, first)
    said = replaced_words(kept_of(tmp_path, msgspec.structs.replace(made, path="/two")))

    assert said.startswith(" in place of that of ")
    assert said.endswith(f", measured {words}")
