"""Private daemons for the tests of this directory.

One daemon serves all tests of a module: whoever kills it starts it again, and each test leaves it
without jobs. A module's ``SETTINGS`` are those of its configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import cgroup_is_writable
from system import System


@pytest.fixture(params=["cgroup", "signals"], scope="module")
def freezer(request):
    """How jobs are suspended; for tests that hold by either means."""
    if request.param == "cgroup" and not cgroup_is_writable():
        pytest.skip("no cgroup of one's own here")
    return request.param


def _lasting(request: pytest.FixtureRequest, freezer: str) -> Iterator[System]:
    with System(freezer, **getattr(request.module, "SETTINGS", {})) as system:
        yield system.start()


@pytest.fixture(scope="module")
def _by_either(request, freezer):
    yield from _lasting(request, freezer)


@pytest.fixture(scope="module")
def _by_one(request):
    yield from _lasting(request, "cgroup" if cgroup_is_writable() else "signals")


@pytest.fixture
def system(_by_either):
    """A daemon that serves a module, once with each freezer."""
    yield _by_either.new_page()
    _leave(_by_either)


@pytest.fixture
def plain(_by_one):
    """A daemon that serves a module, for tests in which it does not matter how jobs stand still."""
    yield _by_one.new_page()
    _leave(_by_one)


def _leave(system: System) -> None:
    if not system.is_running():
        system.start()
    system.end_all()
