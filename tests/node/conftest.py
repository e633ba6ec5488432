"""Real daemons for the tests of this directory."""

import pytest
from harness import _lasting_server, make_server, means, server, shared
from keeping import ServiceKeeper

__all__ = ["_lasting_server", "make_server", "means", "server", "shared"]


@pytest.fixture
def keeper():
    """A keeper as the service has it: root's, obeying one user; jobs run as who submits."""
    with ServiceKeeper("signals") as keeper:
        yield keeper
