"""One virtual server for all tests of this folder; ``make vm-test`` runs them."""

import functools
import os
import subprocess
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from machine import ACCELERATION, Machine
from page import Record
from recipe import SUITE, find_or_build
from server import Service

HERE = Path(__file__).parent
PATIENCE_S = 900
"""For one test, both tries; the first one also waits for the image."""
RECORD = Record(SUITE)


def pytest_addoption(parser):
    parser.addoption("--write", action="store_true", help="put the table into docs/vm.md")
    parser.addoption("--once", action="store_true", help="a test that failed is not tried again")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vm)
            item.add_marker(pytest.mark.timeout(PATIENCE_S, method="signal"))
    items.sort(key=lambda item: item.path.name != "test_vm_machine.py")  # it is what all else needs


def pytest_runtest_protocol(item, nextitem):
    """As pytest does it, but what failed is tried once more, on a machine that is booted anew."""
    if not item.path.is_relative_to(HERE):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [report for report in reports if report.failed]
    again = bool(failed) and not item.config.getoption("--once", False)
    if failed:
        item.session._setupstate.teardown_exact(None)  # nobody goes on with this machine
    if again:
        RECORD.first_failures.append((item.nodeid, "\n".join(each.longreprtext for each in failed)))
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if any(report.failed for report in reports):
            item.session._setupstate.teardown_exact(None)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    RECORD.add(item, reports, again=again)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if not RECORD.checks:
        return
    for name, text in RECORD.first_failures:
        terminalreporter.section(f"failed at the first try: {name}")
        terminalreporter.write_line(text)
    terminalreporter.section("virtual server")
    terminalreporter.write_line(RECORD.section(int(exitstatus)))
    if config.getoption("--write", False):
        RECORD.write(int(exitstatus))


@functools.cache
def get_image():
    began_s = time.monotonic()
    image, is_new = find_or_build()
    RECORD.step("image built" if is_new else "image found", began_s)
    return image


@pytest.fixture(scope="session")
def image():
    return get_image()


@pytest.fixture(scope="session")
def machine(image):
    """The server as it comes from its installation, running."""
    began_s = time.monotonic()
    with Machine(image) as machine:
        RECORD.step("boot", began_s)
        RECORD.facts = facts(machine)
        yield machine


def facts(machine):
    """What it is made of, as it says itself."""
    said = machine.sh(
        "sed 's/^/Debian /' /etc/debian_version; uname -sr; systemctl --version | head -1"
    )
    qemu = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True)
    version = qemu.stdout.split("\n")[0].partition("(")[0].replace("emulator version ", "")
    how = f"{version.strip()} ({ACCELERATION.split(',')[0]})"
    return [*said.split("\n"), f"{how} on {os.cpu_count()} cores"]


@pytest.fixture(scope="session")
def installed(machine):
    """The service, once installed from this tree's wheel."""
    began_s = time.monotonic()
    service = Service(machine)
    service.install()
    service.await_ready()
    RECORD.step("installation", began_s)
    return service


@pytest.fixture
def service(installed):
    """The service, ready and without jobs; it is left so, and nothing stands still."""
    installed.await_ready()
    yield installed
    installed.await_ready()
    installed.cancel_all()
    assert [] == installed.frozen()
    assert "" == installed.leftovers()
