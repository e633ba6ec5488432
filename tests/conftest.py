"""Fixtures that verify the invariants after every test."""

import signal
from collections.abc import Iterator

import pytest
from builders import Rig, platform
from hypothesis import HealthCheck, settings

from iodaemon.core.state import State

# No wall time decides here: the machines that run this are shared. The same examples every time,
# so that a change is blamed for what it breaks; `make explore` has others, of a seed that it tells.
settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "random",
    settings.get_profile("gate"),
    derandomize=False,
    max_examples=100,
    database=None,
    print_blob=True,
)
settings.load_profile("gate")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; children
    signal.signal(signal.SIGINT, signal.default_int_handler)  # that a test interrupts inherit it


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
