"""Root sides for the tests of this directory: of one's own, or one for all tests of a file.

A test runs once, over the compiled launcher and cgroups, unless it is marked ``by_either_means`` or
``over_both_launchers``.
"""

from __future__ import annotations

import pytest
from root_side import CAN_FREEZE, LAUNCHERS, RootSide
from service import Service


@pytest.fixture
def means():
    return "cgroup" if CAN_FREEZE else "processes"


@pytest.fixture
def launcher():
    """Empty: the one that goes with the means."""
    return ""


@pytest.fixture
def make_root(launcher):
    """Begins root sides, and ends all that is left of them."""
    made: list[RootSide] = []

    def make(means="cgroup", *before, **config):
        root = RootSide(means, launcher, **config)
        made.append(root)
        root.begin(*before)
        return root

    yield make
    for root in made:
        root.end()


@pytest.fixture
def root(means, make_root):
    """A root side of the test's own."""
    return make_root(means)


@pytest.fixture(scope="module")
def _lasting():
    made: dict[tuple[str, str], RootSide] = {}

    def find(means, launcher):
        if (means, launcher) not in made:
            made[means, launcher] = RootSide(means, launcher)
            made[means, launcher].begin()
        return made[means, launcher]

    yield find
    for root in made.values():
        root.end()


@pytest.fixture
def shared(means, launcher, _lasting):
    """A root side for all tests of a file that leave it as it was, but for jobs and files."""
    root = _lasting(means, launcher)
    yield root
    root.clear()


@pytest.fixture(scope="module", params=sorted(LAUNCHERS))
def _lasting_service(request):
    service = Service(request.param)
    yield service
    service.close()


@pytest.fixture
def service(_lasting_service):
    """One for all tests of a file: by either means, and so with either launcher."""
    _lasting_service.lay_out()
    return _lasting_service
