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
from server import SCRIPT, Service

HERE = Path(__file__).parent
PATIENCE_S = 900
"""For one test, both tries; the first one also waits for the image."""
TRIED_ONCE = frozenset({"test_vm_users.py", "test_vm_bad.py"})
"""What users and administrators may do wrong: what went wrong there once is wrong."""
RECORD = Record(SUITE)
EVIDENCE = """
cat /proc/loadavg /proc/pressure/cpu
for unit in iodaemon iodaemon-supervisor; do
    for task in /proc/$(systemctl show -P MainPID $unit)/task/*; do
        echo "$unit $(cat $task/comm): waits in $(cat $task/wchan), call $(cat $task/syscall)"
    done
done
dmesg | grep -v audit | tail -n 60
journalctl --no-pager -n 40 -u 'iodaemon*' -u by-hand
"""
"""Whether what does not answer waits, and for what, or only starves."""


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
    """As pytest does it, but most that failed is tried once more, on a machine booted anew."""
    if not item.path.is_relative_to(HERE):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [report for report in reports if report.failed]
    is_tried_once = item.config.getoption("--once", False) or item.path.name in TRIED_ONCE
    again = bool(failed) and not is_tried_once
    if failed:
        told = "\n".join([*(each.longreprtext for each in failed), evidence()])
        reporter = item.config.pluginmanager.get_plugin("terminalreporter")
        reporter.section(f"first failure: {item.nodeid}")  # now: a run may be long, or be ended
        reporter.write_line(told)
        item.session._setupstate.teardown_exact(None)  # nobody goes on with this machine
    if again:
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if any(report.failed for report in reports):
            item.session._setupstate.teardown_exact(None)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    RECORD.add(item, reports, again=again)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def evidence():
    """What the machine says of itself after a failure; its silence is told as well."""
    if RECORD.machine is None:
        return "no machine, no evidence"
    try:
        return RECORD.machine.run("bash", "-c", EVIDENCE, check=False).out
    except (OSError, AssertionError) as error:
        return f"no evidence: {error}"


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if not RECORD.checks:
        return
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
        RECORD.facts, RECORD.machine = facts(machine), machine
        yield machine
        RECORD.machine = None


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


@pytest.fixture
def two_jobs(service):
    """One of ann's that runs, one of bob's that he has suspended."""
    running, held = service.submit(SCRIPT), service.submit(SCRIPT, user="bob")
    service.await_state(running, "RUNNING")
    service.await_state(held, "RUNNING")
    service.ask("POST", f"/v1/jobs/{held}/suspend", {}, user="bob")
    service.await_state(held, "SUSPENDED_USER")
    assert [f"{held}.1"] == service.frozen()
    return running, held
