"""Series made of what was found at each place."""

import statistics

from iodaemon.simulator.experiment import Series
from iodaemon.simulator.series import printed, ranged


def test_a_series_has_the_middle_and_the_range_at_each_place_in_their_order():
    found = {"b": [3.0, 1.0, 8.0], "a": [2.0]}

    assert Series(label="x", x=("b", "a"), y=(4.0, 2.0), low=(1.0, 2.0), high=(8.0, 2.0)) == ranged(
        "x", found
    )
    assert (3.0, 2.0) == ranged("x", found, statistics.median).y


def test_what_is_printed_is_told_from_what_was_found():
    series = printed("paper", {1.0: 5.0, 8.0: 4.0})

    assert Series(label="paper", x=(1.0, 8.0), y=(5.0, 4.0), is_published=True) == series
