"""What systemd has handed over, and a root side that is its service.

No systemd runs where most tests do: a script stands for systemd-run, and a socket for its ear.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from harness import find_state, until
from root_side import CAN_FREEZE, UNIFIED, by_either_means, is_alive, remove_cgroup

from iodaemon.supervisor.anchor import thaw_all
from iodaemon.supervisor.systemd import SCOPE, SLICE, find_unit, is_delegated

pytestmark = pytest.mark.node
needs_cgroup = pytest.mark.skipif(not CAN_FREEZE, reason="no writable cgroup")
PLACE = UNIFIED / SLICE / SCOPE
RUN = f"""#!/bin/sh
mkdir -p {PLACE}
echo $$ > {PLACE}/cgroup.procs
echo "$@" >> "$(dirname "$0")/said"
while [ "$1" != sleep ]; do shift; done
exec "$@"
"""


def test_a_unit_is_found_by_its_name_and_its_mark(tmp_path):
    unit = tmp_path / "user.slice" / "iodaemon.service"
    base = unit / "iodaemon-0" / "jobs"
    base.mkdir(parents=True)

    assert (str(unit), str(unit)) == (find_unit(str(base)), find_unit(str(unit)))
    assert find_unit(str(unit.parent)) is None

    try:
        assert not is_delegated(str(unit))
        os.setxattr(unit, "user.delegate", b"1")
    except OSError:
        pytest.skip("no attributes on this file system")

    assert is_delegated(str(unit))


@pytest.fixture
def service(make_root, tmp_path, monkeypatch):
    """As a service whose jobs get a scope."""
    (tmp_path / "systemd-run").write_text(RUN)
    (tmp_path / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    root = make_root("cgroup", cgroup="auto", is_service=True)
    root.cgroup = PLACE
    yield root
    root.end()
    remove_cgroup(PLACE.parent)


@needs_cgroup
def test_the_jobs_of_a_service_are_in_a_scope_and_nobody_else_is(service, tmp_path):
    daemon = service.connect()
    daemon.run("1.1", *service.gate.wait_and("exit 7"))
    hello = daemon.hello
    others = [service.process.pid, service.role("iod-supervisor"), service.role("iod-launcher")]
    said = (tmp_path / "said").read_text().splitlines()

    assert (str(PLACE), SCOPE) == (hello["base"], hello["unit"])
    assert service.members("1.1")
    assert not [pid for pid in others if SCOPE in Path(f"/proc/{pid}/cgroup").read_text()]
    assert [1, True, True] == [len(said), "-p Delegate=yes" in said[0], "TasksMax=" in said[0]]

    daemon.hold("1.1")
    service.kill("iod-supervisor")
    daemon = service.connect()
    service.gate.open()
    daemon.sync(**{"1_1": "run"})

    assert 7 == daemon.await_state("1.1", "ended")["exit"]["code"]


@needs_cgroup
def test_who_stops_the_scope_is_told_apart_and_the_next_job_gets_another(service, tmp_path):
    daemon = service.connect()
    for key in ("1.1", "2.1"):
        daemon.run(key, "sleep", "1000")
    daemon.run("3.1", "sh", "-c", "kill -TERM $$")
    daemon.say("signal", key="2.1", number=15)

    assert not daemon.await_state("2.1", "ended")["from_outside"]
    assert not daemon.await_state("3.1", "ended")["from_outside"]

    pids = [int(word) for file in PLACE.rglob("cgroup.procs") for word in file.read_text().split()]
    for pid in sorted(pids, key=service.members("1.1").count, reverse=True):  # the job first
        os.kill(pid, signal.SIGTERM)
    ended = daemon.await_state("1.1", "ended")

    assert (15, True) == (ended["exit"]["signal"], ended["from_outside"])

    until(lambda: remove_cgroup(PLACE))
    daemon.start("4.1", "sleep", "1000")
    daemon.await_end()
    daemon = service.connect()
    for number in range(4, 8):
        daemon.start(f"{number}.1", "sleep", "1000")
    for number in range(4, 8):
        daemon.await_state(f"{number}.1", "running")

    assert 2 == len((tmp_path / "said").read_text().splitlines())

    daemon.run("8.1", "sh", "-c", "kill -TERM $$")

    assert not daemon.await_state("8.1", "ended")["from_outside"]


@needs_cgroup
def test_a_root_side_that_is_begun_elsewhere_finds_the_jobs_of_the_last_one(make_root):
    place = UNIFIED / f"iod-test-begun-{os.getpid()}"
    enter = ["sh", "-c", 'mkdir -p $0 && echo $$ > $0/cgroup.procs && exec "$@"']
    root = make_root("cgroup", *enter, str(place / "first.service"), cgroup="auto")
    root.cgroup = place
    daemon = root.connect()
    pid = daemon.run("1.1", *root.gate.wait_and("exit 7"))["pid"]
    before = daemon.hello["ledger"]
    root.kill_both()
    root.begin(*enter, str(place / "second.scope"))
    daemon = root.find("1.1", "2.1")

    assert ("first.service", before) == (daemon.hello["unit"], daemon.hello["ledger"])
    assert pid == daemon.await_state("1.1", "running")["pid"]
    assert "absent" == daemon.states["2.1"]["state"]

    root.gate.open()
    ended = daemon.await_state("1.1", "lost", "ended")  # the zombie may be there for a while

    assert not ended["whole"]
    assert ended.get("exit") in (None, {"code": 7, "signal": None})
    root.end()


class Ear:
    """The socket that systemd listens on, and what was said."""

    def __init__(self, path: Path) -> None:
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.line.bind(str(path))
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.line.recv(4096):
                self.said.append(data.decode())


@pytest.fixture
def ear(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    return Ear(tmp_path / "notify")


def test_systemd_is_told_and_its_next_anchor_waits_until_nothing_runs(ear, make_root):
    root = make_root("cgroup", is_service=True)
    daemon = root.connect()
    until(lambda: ear.said)

    assert f"READY=1\nSTATUS=suspends by {daemon.hello['detail']}" == ear.said[0]

    daemon.run("1.1", *root.gate.wait_and("exit 5"))
    root.kill("iod-anchor")
    root.process.wait()
    daemon.await_message(lambda m: m.get("protected") is False)
    supervisor = daemon.hello["pid"]
    root.begin()
    until(lambda: len(ear.said) == 2)

    assert is_alive(supervisor)

    root.gate.open()

    assert 5 == daemon.await_state("1.1", "ended")["exit"]["code"]

    until(lambda: not is_alive(supervisor))
    daemon = root.find("1.1")

    assert 5 == daemon.await_state("1.1", "ended")["exit"]["code"]
    assert daemon.hello["protected"]


@by_either_means
def test_all_are_let_go_where_neither_anchor_nor_supervisor_is_left(root):
    daemon = root.connect()
    pids = [daemon.run(f"{number}.1", "sleep", "1000")["pid"] for number in range(3)]
    for key in ("0.1", "1.1"):
        daemon.hold(key)
    root.kill_both()

    assert 2 == thaw_all(root.config)
    until(lambda: {"S"} == {find_state(pid) for pid in pids})
    assert 0 == thaw_all(root.config)

    for pid in pids:
        os.kill(pid, signal.SIGKILL)
