"""A real ``iod daemon`` in a process of its own."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from termios import TIOCOUTQ
from types import MappingProxyType

from iodaemon.api.client import Client
from iodaemon.errors import NoDaemon

READY_S = 30.0
TREE = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
"""Which iodaemon is tested, where it is not the installed one."""


def command(state: Path, runtime: Path, *options: str, backend: str = "simulated") -> list[str]:
    return [
        *(sys.executable, "-m", "iodaemon.cli", "daemon", "--backend", backend),
        *("--state-dir", str(state), "--socket", str(runtime / "iod.sock"), *options),
    ]


def environment(home: Path) -> dict[str, str]:
    """No configuration but what the test gives."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), **TREE}


def fails(state: Path, runtime: Path, *options: str, backend: str = "simulated") -> tuple[int, str]:
    """Start a daemon that cannot start; its exit code and the last line it told."""
    ended = subprocess.run(
        command(state, runtime, *options, backend=backend),
        env=environment(state.parent),
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    assert ended.stdout == ""
    told = [line for line in ended.stderr.splitlines() if " level=" not in line]
    assert len(told) == 1, ended.stderr
    assert told[0].startswith("iod: ")
    return ended.returncode, told[0][len("iod: ") :]


@contextmanager
def daemon(
    state: Path,
    runtime: Path,
    *options: str,
    backend: str = "simulated",
    open_files: int | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """A daemon that serves; it is stopped at the end, whatever happens."""

    def limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    process = subprocess.Popen(
        command(state, runtime, *options, backend=backend),
        env={**environment(state.parent), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limit,
    )
    try:
        yield ready(process, runtime / "iod.sock"), process
    finally:
        stop(process)


def ready(process: subprocess.Popen[str], socket_path: Path) -> Client:
    client = Client(str(socket_path), timeout_s=20.0)
    until_s = time.monotonic() + READY_S
    while True:
        try:
            client.jobs()
        except NoDaemon:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until_s
            time.sleep(0.02)
        else:
            return client


def stop(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> str:
    """End it; what it told."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.communicate(timeout=READY_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    except ValueError:  # it was stopped before
        return ""


def read_until(fd: int, mark: bytes) -> str:
    """What comes from the pipe, up to the line with the mark; fails where it ends before."""
    told = b""
    while mark not in told:
        piece = os.read(fd, 65536)
        assert piece, told
        told += piece
    return told.decode()


def await_read(connection: socket.socket) -> None:
    """Wait until the other end of a Unix socket has read all that was sent to it."""
    assert wait_until(lambda: struct.unpack("i", ioctl(connection, TIOCOUTQ, bytes(4)))[0] == 0)


def iod(socket_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the command line of this daemon."""
    return subprocess.run(
        [sys.executable, "-m", "iodaemon.cli", "--api", str(socket_path), *words],
        env={"PATH": os.environ["PATH"], "HOME": "/", **TREE},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def wait_until(holds, seconds: float = 20.0) -> bool:
    """True as soon as it holds, False after so long."""
    until_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True
