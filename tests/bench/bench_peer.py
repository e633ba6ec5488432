"""What ours is measured beside: task-spooler, GNU parallel, xargs; and whether SimPy is there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CLIENT_S = 5.0
"""A client of task-spooler that has not come back by then hangs."""


def missing() -> list[str]:
    """Packages of peers that are not installed."""
    needs = {"tsp": "task-spooler", "parallel": "parallel", "xargs": "findutils"}
    absent = [package for program, package in needs.items() if not _is_there(program)]
    return absent if importlib.util.find_spec("simpy") else [*absent, "SimPy"]


def _is_there(program: str) -> bool:
    """Whether it is installed; of the two programs called parallel, GNU's."""
    path = shutil.which(program)
    if path is None or program != "parallel":
        return path is not None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return "GNU" in said.stdout


class Spooler:
    """A task-spooler server of its own. Use ``spooler`` to make one."""

    def __init__(self, base: Path, slots: int) -> None:
        self._program = shutil.which("tsp") or "tsp"
        place = {"TS_SOCKET": str(base / "socket"), "TMPDIR": str(base), "TS_SLOTS": str(slots)}
        self._environment = {**os.environ, **place}
        self._quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]

    def run(self, *words: str, patience_s: float | None = None) -> bool:
        """One client; False when it hangs."""
        pid = os.posix_spawn(
            self._program, ["tsp", *words], self._environment, file_actions=self._quiet
        )
        if patience_s is None:
            os.waitpid(pid, 0)
            return True
        fd = os.pidfd_open(pid)
        try:
            ended = _is_readable(fd, patience_s)
            if not ended:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        finally:
            os.close(fd)
        return ended


@contextlib.contextmanager
def spooler(slots: int = 2) -> Iterator[Spooler]:
    """A private server with so many slots, gone afterwards."""
    base = Path(tempfile.mkdtemp(prefix="iod-bench-tsp-"))
    server = Spooler(base, slots)
    try:
        server.run("-S", str(slots))
        yield server
    finally:
        server.run("-K", patience_s=CLIENT_S)
        time.sleep(0.05)
        shutil.rmtree(base, ignore_errors=True)


def _is_readable(fd: int, patience_s: float) -> bool:
    import select

    return bool(select.select([fd], [], [], patience_s)[0])


def spooler_rate(server: Spooler, count: int) -> float:
    """Jobs per second: a client each, two at a time, without output."""
    began_s = time.monotonic()
    for _ in range(count):
        server.run("-n", "/bin/true")
    server.run("-w")
    return count / (time.monotonic() - began_s)


def parallel_rate(count: int) -> float:
    """The same of GNU parallel, from its start."""
    return _piped_rate(["parallel", "-j2", "--will-cite", "/bin/true", "#"], count)


def xargs_rate(count: int) -> float:
    """The same of xargs."""
    return _piped_rate(["xargs", "-P2", "-n1", "/bin/true"], count)


def floor_rate(count: int) -> float:
    """The same of Python forks without a daemon (see bench_floor)."""
    program = Path(__file__).with_name("bench_floor.py")
    command = [sys.executable, "-I", "-S", str(program), str(count)]
    return float(subprocess.check_output(command))


def _piped_rate(command: list[str], count: int) -> float:
    lines = "".join(f"{number}\n" for number in range(count)).encode()
    began_s = time.monotonic()
    subprocess.run(command, input=lines, stdout=subprocess.DEVNULL, check=True)
    return count / (time.monotonic() - began_s)
