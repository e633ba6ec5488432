"""The controller decides what it decided when the traces were recorded (``make references``)."""

import pytest
import traces
from reference import told


@pytest.mark.parametrize("name", traces.names())
def test_the_same_events_make_the_same_plans(name):
    assert told(traces.replay(name)) == ""


def test_there_are_three_recorded_hours():
    assert len(traces.names()) == 3
