"""Figure 14 of a machine, in characters and as files, and a calibration in words."""

import msgspec
import pytest
from calibrating import MB, calibration, leaf, paced, point
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.calibration.knee import curves, draw
from iodaemon.calibration.record import Knee
from iodaemon.calibration.store import keep, kept_of
from iodaemon.cli.calibrate import draw_figure, lines_of, replaced_words

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


def _fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


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
