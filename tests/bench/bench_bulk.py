"""D3: many jobs at once, and a job that comes when many wait already."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench_daemon import Daemon, private_daemon, submission
from bench_figure import Check, Section, Series, alternate
from bench_peer import CLIENT_S, missing, spooler
from bench_plan import Plan

SPOOLER_MOST = 950
"""It stops accepting at about a thousand waiting jobs."""
SPOOLER_S = 20.0
ONE_BY_ONE = 100


def _block(daemon: Daemon) -> None:
    """Jobs that hold every slot."""
    daemon.submit(*[["/bin/sleep", "1000"]] * 2)


def _request_rate(checkout: Path, count: int) -> float:
    """Jobs per second of one request, from sending it to the acknowledgement."""
    with private_daemon(checkout=checkout) as daemon:
        _block(daemon)
        body = submission([["/bin/true"]] * count, daemon.environment)
        began_s = time.monotonic()
        daemon.post(body)
        return count / (time.monotonic() - began_s)


def _command_rate(checkout: Path, count: int, commands: Path) -> float:
    """Jobs per second of ``iod submit --from``, the whole command."""
    with private_daemon(checkout=checkout) as daemon:
        _block(daemon)
        words = ["submit", "--from", str(commands), "-o", "/dev/null"]
        command = [sys.executable, "-m", "iodaemon.cli", "--api", daemon.client.socket_path, *words]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        began_s = time.monotonic()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, cwd="/")
        return count / (time.monotonic() - began_s)


def _depth_ms(checkout: Path, depth: int) -> tuple[float, float]:
    """One submission among few that wait, and one when so many do: medians."""
    with private_daemon(checkout=checkout) as daemon:
        _block(daemon)
        _each_ms(daemon)  # the daemon's first requests are slower
        first_ms = _each_ms(daemon)
        left = depth - 3 * ONE_BY_ONE
        daemon.post(submission([["/bin/true"]] * left, daemon.environment))
        return first_ms, _each_ms(daemon)


def _each_ms(daemon: Daemon) -> float:
    body = submission([["/bin/true"]], daemon.environment)
    found = []
    for _ in range(ONE_BY_ONE):
        began_s = time.monotonic()
        daemon.post(body)
        found.append((time.monotonic() - began_s) * 1000.0)
    return statistics.median(found)


def measure_bulk(plan: Plan) -> Section:
    """D3: rates."""
    count = 4000 if plan.is_quick else 20_000
    rounds = 2 if plan.is_quick else plan.rounds
    commands = plan.base / "commands"
    commands.write_text("/bin/true\n" * count)
    variants: dict[str, Callable[[], float]] = {}
    for name, checkout in plan.checkouts.items():
        variants[f"{name}, one request"] = lambda tree=checkout: _request_rate(tree, count)
        variants[f"{name}, iod submit --from"] = lambda tree=checkout: _command_rate(
            tree, count, commands
        )
    results = alternate(variants, rounds, plan.tell("D3, rate"))
    series = [
        Series(name, found, "jobs/s", is_peer=place > 1 and place % 2 == 0)
        for place, (name, found) in enumerate(results.items())
    ]
    checks = [
        Check(one.name, statistics.median(one.values), 20_000.0, "jobs/s", is_floor=True)
        for one in series[:2]
    ]
    return Section(
        title=f"D3: {count:,} jobs, acknowledged durable",
        series=series,
        checks=checks,
        notes=["two jobs block all slots; from sending to the acknowledgement; the command: all"],
    )


def measure_depth(plan: Plan) -> Section:
    """D3: the price of a long queue."""
    depth = 2000 if plan.is_quick else 10_000
    rounds = 2 if plan.is_quick else plan.rounds
    variants = {
        name: (lambda tree=tree: _depth_ms(tree, depth)) for name, tree in plan.checkouts.items()
    }
    results = alternate(variants, rounds, plan.tell("D3, depth"))
    series = []
    for name, found in results.items():
        series.append(Series(f"{name}, nearly empty queue", [few for few, _ in found], "ms"))
        series.append(Series(f"{name}, behind {depth:,} jobs", [many for _, many in found], "ms"))
    ratio = statistics.median(many / few for few, many in results[next(iter(results))])
    peers, notes = _spooler_depth(plan)
    return Section(
        title=f"D3: one submission, alone and as number {depth:,}",
        series=[*series, *peers],
        checks=[Check("the last to the first, within a round", ratio, 1.5, "times")],
        notes=[f"each value is a median of {ONE_BY_ONE} requests on one connection", *notes],
    )


def _spooler_depth(plan: Plan) -> tuple[list[Series], list[str]]:
    """The same of task-spooler, once: it is bounded by itself."""
    if "task-spooler" in missing():
        return [], []
    most = 200 if plan.is_quick else SPOOLER_MOST
    found: list[float] = []
    until_s = time.monotonic() + SPOOLER_S
    with spooler(slots=1) as server:
        server.run("-n", "/bin/sleep", "1000")
        while len(found) < most and time.monotonic() < until_s:
            began_s = time.monotonic()
            if not server.run("-n", "/bin/true", patience_s=CLIENT_S):
                break
            found.append((time.monotonic() - began_s) * 1000.0)
        server.run("-k", patience_s=CLIENT_S)
    few, many = found[:ONE_BY_ONE], found[-ONE_BY_ONE:]
    series = [
        Series("task-spooler (a client each), first", [statistics.median(few)], "ms", is_peer=True),
        Series(f"task-spooler, behind {len(found)}", [statistics.median(many)], "ms"),
    ]
    end = "as many as were tried" if len(found) == most else "then a client hung"
    return series, [f"task-spooler took {len(found)} waiting jobs: {end}"]
