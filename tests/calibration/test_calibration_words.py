"""A calibration in words says something of every figure."""

import msgspec
import pytest
from calibrating import MB, calibration

from iodaemon.calibration.record import Knee
from iodaemon.calibration.store import keep, kept_of
from iodaemon.cli.calibrate import lines_of, replaced_words


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
