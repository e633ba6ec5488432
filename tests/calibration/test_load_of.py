"""What readers had together."""

import pytest

from iodaemon.calibration.measure import load_of
from iodaemon.kernels.paced import Told


def told(moved, run_s):
    return Told(None, moved, 4, run_s, run_s / 2)


def test_readers_of_which_one_takes_longer_had_all_of_it_until_that_one_was_done():
    load = load_of(2, None, [told(100, 1.0), told(300, 4.0)])

    assert load.had_bytes_per_s == pytest.approx(100.0)
    assert (2, 2) == (load.sockets, load.readers)
    assert load.wait_s == pytest.approx(2.5 / 8)
