"""The process that reads counters: who it is, what it may do, and when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import until
from root_side import Daemon, is_alive

from iodaemon.supervisor.syscalls import peer_of

pytestmark = pytest.mark.node
SAMPLER = "iod-sampler"
NOBODY = 65534
READING = 1 << 2 | 1 << 19
"""CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE."""


class Ear:
    """Where a sampler connects to, and the line to it."""

    def __init__(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.settimeout(60)
        self.listener.bind("")
        self.listener.listen()
        self.address = self.listener.getsockname().hex()

    def accept(self) -> socket.socket:
        line, _ = self.listener.accept()
        line.settimeout(60)
        return line


@pytest.fixture
def ear():
    ear = Ear()
    yield ear
    ear.listener.close()


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Be seen as this user, and group, by whoever is connected to."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def begin(daemon: Daemon, ear: Ear) -> tuple[socket.socket, int]:
    """Have one started; the line to it, and its number."""
    daemon.say("sampler", address=ear.address)
    line = ear.accept()
    return line, peer_of(line)[0]


def sweep(line: socket.socket, **request: object) -> list[list[object]]:
    """The rows of jobs in the answer."""
    line.sendall(json.dumps(request).encode() + b"\n")
    with line.makefile("rb") as file:
        rows: list[list[object]] = json.loads(file.readline())["jobs"]
    return rows


def status(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return line.split()[1:]


def is_refused_to(uid: int, path: str, mode: str) -> bool:
    """Whether a process that is of this user, and has no capabilities, may not open it."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with open(path, mode):
                os._exit(0)
        except PermissionError:
            os._exit(13)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13


def test_it_is_the_daemons_user_who_may_only_read_what_is_others(make_root):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    root = make_root("cgroup", daemon_uid=NOBODY, daemon_gid=NOBODY, min_uid=1)
    root.role("iod-supervisor")
    with as_user(NOBODY):
        ear, daemon = Ear(), root.connect()
    with contextlib.closing(ear.listener):
        daemon.run("7.1", "sleep", "1000", uid=1, directory="/")
        line, pid = begin(daemon, ear)
        line.sendall(b'{"devices": {}, "cpus": {}}\n')
        [row] = sweep(line, jobs=[[7, 1, None, None]])

        assert [7, 1, None] == row[:3]
        assert row[3] is not None
        assert [str(NOBODY)] * 4 == status(pid, "Uid") == status(pid, "Gid")
        assert [] == status(pid, "Groups")
        for name in ("CapEff", "CapPrm"):
            assert READING == int(status(pid, name)[0], 16)
        assert [0, 0] == [int(status(pid, name)[0], 16) for name in ("CapInh", "CapAmb")]
        assert ["1"] == status(pid, "NoNewPrivs")
        assert "/jobs/" not in Path(f"/proc/{pid}/cgroup").read_text()
        for name, mode in (("mem", "r+b"), ("environ", "rb"), ("maps", "rb")):
            assert is_refused_to(NOBODY, f"/proc/{pid}/{name}", mode)
        line.close()


def is_gone(pid: int) -> bool:
    """Whether it has ended, and its parent has waited for it."""
    return not Path(f"/proc/{pid}").exists()


def test_it_lasts_as_long_as_its_line_its_supervisor_and_no_other_one(root, ear):
    daemon = root.connect()
    lines, pids = zip(*(begin(daemon, ear) for _ in range(2)), strict=True)
    until(lambda: is_gone(pids[0]), "an end when another one begins")

    assert b"" == lines[0].recv(1)

    daemon.say("reexec")  # it goes on while the supervisor becomes the installed program
    daemon.await_end()
    lines[1].sendall(b'{"devices": {}, "cpus": {}}\n')

    assert [] == sweep(lines[1])
    assert is_alive(pids[1])

    root.connect()
    root.kill("iod-supervisor")
    until(lambda: is_gone(pids[1]), "an end with the supervisor")
    line, pid = begin(root.connect(), ear)

    assert is_alive(pid)

    line.close()
    until(lambda: is_gone(pid), "an end with its line")
    for line in lines:
        line.close()


def test_what_is_no_address_starts_nothing(shared):
    daemon = shared.connect()
    addresses = ["", "x", "0", "00", "0101", 5, None, ["00"]]
    for address in addresses:
        daemon.say("sampler", address=address)
    daemon.run("1.1", "true")
    daemon.await_state("1.1", "ended")

    refused = [message for message in daemon.reports if "error" in message]
    assert ["sampler"] * len(addresses) == [message["wish"] for message in refused]
