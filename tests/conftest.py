"""Fixtures that verify the invariants after every test."""

from collections.abc import Iterator

import pytest
from builders import Rig, platform

from iodaemon.core.state import State


@pytest.fixture
def state() -> Iterator[State]:
    """Two sockets of two slots; whatever a test does, it must not contradict itself."""
    state = State(platform(2, 2))
    yield state
    state.check()


@pytest.fixture
def rig(state: State) -> Iterator[Rig]:
    """A controller over the state and a backend; all decisions must have been taken."""
    rig = Rig(state)
    yield rig
    rig.backend.check()
