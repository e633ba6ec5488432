from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from root_side import CAN_FREEZE, RootSide

from iodaemon.supervisor.launch import PROGRAM

MEANS = [
    pytest.param("cgroup", marks=pytest.mark.skipif(not CAN_FREEZE, reason="no writable cgroup")),
    "processes",
]


@pytest.fixture(params=MEANS)
def means(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test runs over both launchers."""
    is_chosen = any(
        "launcher" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")
    )
    if "launcher" in metafunc.fixturenames and not is_chosen:
        metafunc.parametrize("launcher", ["compiled", "python"])


@pytest.fixture
def make_root(launcher: str) -> Iterator[Callable[..., RootSide]]:
    """Begins root sides, and ends all that is left of them."""
    assert launcher == "python" or os.access(PROGRAM, os.X_OK), "'make setup' compiles it"
    made: list[RootSide] = []

    def make(means: str = "cgroup", *before: str, **config: Any) -> RootSide:
        root = RootSide(means, launcher, **config)
        made.append(root)
        root.begin(*before)
        return root

    yield make
    for root in made:
        root.end()


@pytest.fixture
def root(means: str, make_root: Callable[..., RootSide]) -> RootSide:
    """One root side, by each of the means."""
    return make_root(means)
