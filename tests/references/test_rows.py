"""The quick experiments give the rows that they gave; all of them: ``make references``."""

import pytest
import rows
from reference import told

from iodaemon.simulator.pool import Pool


@pytest.mark.parametrize("name", sorted({*rows.names()} - rows.LONG))
def test_an_experiment_gives_the_same_rows(name):
    with Pool(1) as pool:
        found = rows.compute(name, pool)

    assert told(rows.compare(name, found)) == ""


def test_each_experiment_has_a_checksum():
    assert sorted(rows.known()) == sorted(rows.names())
