from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from root_side import UNIFIED, RootSide

from iodaemon.supervisor.launch import PROGRAM

CAN_FREEZE = os.access(UNIFIED, os.W_OK)
MEANS = [
    pytest.param("cgroup", marks=pytest.mark.skipif(not CAN_FREEZE, reason="no writable cgroup")),
    "processes",
]


@pytest.fixture(params=MEANS)
def means(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_root() -> Iterator[Callable[..., RootSide]]:
    """Begins root sides, and ends all that is left of them."""
    assert os.access(PROGRAM, os.X_OK), "'make setup' compiles it"
    made: list[RootSide] = []

    def make(means: str = "cgroup", *before: str, **config: Any) -> RootSide:
        root = RootSide(means, **config)
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
