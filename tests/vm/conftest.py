"""One virtual server for all tests of this folder; ``make vm-test`` runs them."""

import time
from pathlib import Path

import pytest
from machine import Machine
from recipe import find_or_build
from server import Service

HERE = Path(__file__).parent
PATIENCE_S = 900
"""For one test; the first one also waits for the image."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


@pytest.fixture(scope="session")
def image():
    began_s = time.monotonic()
    image = find_or_build()
    print(f"\nimage {time.monotonic() - began_s:.1f} s: {image.disk}")
    return image


@pytest.fixture(scope="session")
def machine(image):
    """The server as it comes from its installation, running."""
    with Machine(image) as machine:
        print(f"boot {machine.boot_s:.1f} s")
        yield machine


@pytest.fixture(scope="session")
def installed(machine):
    """The service, once installed from this tree's wheel."""
    began_s = time.monotonic()
    service = Service(machine)
    service.install()
    print(f"installed {time.monotonic() - began_s:.1f} s")
    return service


@pytest.fixture
def service(installed):
    """The service, ready and without jobs; it is left so."""
    installed.await_ready()
    yield installed
    installed.await_ready()
    installed.cancel_all()
