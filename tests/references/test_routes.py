"""Every route answers as it did when its reference was written (``make references``)."""

import pytest
import routes
from reference import told


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return routes.record(tmp_path_factory.mktemp("daemon"))


def test_each_route_answers_as_recorded(recorded):
    cases, _, _ = recorded

    assert told(routes.compare(cases)) == ""


def test_each_route_has_a_reference(recorded):
    _, served, _ = recorded
    without = sorted(route for route in served if not routes.file_of(route).exists())

    assert without == []


def test_every_answer_has_all_that_its_route_declares_and_nothing_else(recorded):
    _, _, undeclared = recorded

    assert undeclared == []
