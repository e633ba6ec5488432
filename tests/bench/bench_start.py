"""D1 and D2: from submitting to starting, and how many jobs a second."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench_daemon import ROOT, Daemon, private_daemon, submission
from bench_figure import Check, Section, Series, alternate
from bench_peer import (
    Spooler,
    floor_rate,
    missing,
    parallel_rate,
    spooler,
    spooler_rate,
    xargs_rate,
)
from bench_plan import Plan

STAMP_S = 20.0
"""A job that has not said when it began by then never will."""


class Stamp:
    """A job that says when it began; through a pipe, so that whoever waits disturbs nobody."""

    def __init__(self, base: Path) -> None:
        base.mkdir(exist_ok=True)
        self.pipe = str(base / "pipe")
        os.mkfifo(self.pipe)
        self._fd = os.open(self.pipe, os.O_RDWR)
        self.correction_ns = 0
        program = base / "stamp"
        source = ROOT / "tests/bench/stamp.c"
        if shutil.which("gcc") is not None:
            subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
            self.command = [str(program), self.pipe]
            self.idle = [str(program)]
            self.kind = "a C program that stamps CLOCK_MONOTONIC at main()"
        else:
            code = f"import time; t = time.monotonic_ns(); print(t, file=open({self.pipe!r}, 'w'))"
            self.command = [sys.executable, "-I", "-S", "-c", code]
            self.idle = ["/bin/sleep", "infinity"]
            starts = [self.spawn_ns() for _ in range(10)]
            self.correction_ns = int(statistics.median(starts))
            self.kind = (
                "python -I -S, without a C compiler; the median of its own start "
                f"({self.correction_ns / 1e6:.1f} ms) is subtracted"
            )

    def spawn_ns(self) -> int:
        """From the beginning of a plain posix_spawn to the stamp."""
        began_ns = time.monotonic_ns()
        pid = os.posix_spawn(self.command[0], self.command, os.environ)
        stamped_ns = self.read_ns()
        os.waitpid(pid, 0)
        return stamped_ns - began_ns

    def read_ns(self) -> int:
        """Wait for the next stamp."""
        return int(os.read(self._fd, 64)) - self.correction_ns

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._fd)


def _latencies_ms(daemon: Daemon, stamp: Stamp, count: int) -> list[float]:
    body = submission([stamp.command], daemon.environment)
    found = []
    for _ in range(count):
        began_ns = time.monotonic_ns()
        ids = daemon.post(body)
        found.append((stamp.read_ns() - began_ns) / 1e6)
        daemon.finish(ids)
    return found


def _spooler_latencies_ms(server: Spooler, stamp: Stamp, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began_ns = time.monotonic_ns()
        server.run("-n", *stamp.command)
        found.append((stamp.read_ns() - began_ns) / 1e6)
        server.run("-w")
    return found


def measure_latency(plan: Plan) -> Section:
    """D1."""
    count = 10 if plan.is_quick else 30
    stamp = Stamp(plan.base / "start")
    with ExitStack() as stack:
        stack.callback(stamp.close)
        variants: dict[str, Callable[[], list[float]]] = {}
        for name, checkout in plan.checkouts.items():
            daemon = stack.enter_context(private_daemon(checkout=checkout))
            variants[name] = lambda daemon=daemon: _latencies_ms(daemon, stamp, count)
        if "task-spooler" not in missing():
            server = stack.enter_context(spooler())
            variants["task-spooler (not durable)"] = lambda: _spooler_latencies_ms(
                server, stamp, count
            )
        variants["posix_spawn, no daemon"] = lambda: [stamp.spawn_ns() / 1e6 for _ in range(count)]
        results = alternate(variants, plan.rounds, plan.tell("D1"))
    series = [
        Series(name, [value for one in found for value in one], "ms", is_peer=place > 0)
        for place, (name, found) in enumerate(results.items())
    ]
    ours = series[0].values
    return Section(
        title="D1: from submitting to the job's first instruction",
        series=series,
        checks=[Check("median", statistics.median(ours), 2.0, "ms")],
        notes=[
            (
                f"{plan.rounds} rounds of {count}, one after the other, on a connection that stays "
                "open; durable before the acknowledgement and before the start"
            ),
            f"the job: {stamp.kind}",
        ],
    )


def _rate(daemon: Daemon, count: int) -> float:
    body = submission([["/bin/true"]] * count, daemon.environment)
    began_s = time.monotonic()
    return count / (daemon.finish(daemon.post(body)) - began_s)


def measure_rate(plan: Plan) -> Section:
    """D2."""
    count = 60 if plan.is_quick else 400
    with ExitStack() as stack:
        variants: dict[str, Callable[[], float]] = {}
        for name, checkout in plan.checkouts.items():
            daemon = stack.enter_context(private_daemon(checkout=checkout))
            variants[name] = lambda daemon=daemon: _rate(daemon, count)
        if "task-spooler" not in missing():
            server = stack.enter_context(spooler())
            variants["task-spooler (not durable)"] = lambda: spooler_rate(server, count)
        if "parallel" not in missing():
            variants["GNU parallel -j2"] = lambda: parallel_rate(count)
        if "findutils" not in missing():
            variants["xargs -P2"] = lambda: xargs_rate(count)
        variants["Python: fork, exec, no daemon"] = lambda: floor_rate(count)
        results = alternate(variants, plan.rounds, plan.tell("D2"))
    series = [
        Series(name, found, "jobs/s", is_peer=place > 0)
        for place, (name, found) in enumerate(results.items())
    ]
    rate = statistics.median(series[0].values)
    return Section(
        title="D2: jobs that do nothing, two at a time",
        series=series,
        checks=[Check("median", rate, 800.0, "jobs/s", is_floor=True)],
        notes=[
            (
                f"{plan.rounds} rounds of {count} times /bin/true; ours: starts and ends durable, "
                "one request for all; task-spooler: a client each"
            ),
        ],
    )
