"""D5 and R2: the memory and the CPU time that the daemon takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from bench_daemon import Daemon, private_daemon, submission
from bench_figure import Check, Section, Series
from bench_plan import Plan

MIB = 1024.0 * 1024.0
WRITER = "i=0; while :; do echo some words > {}; sleep 0.1; done"
"""A job that does some I/O, and starts processes for it."""
WRITERS = 4


def memory_bytes(pid: int) -> dict[str, float]:
    """Rss, Pss and Private (clean and dirty) of /proc/PID/smaps_rollup."""
    found = {"Rss": 0.0, "Pss": 0.0, "Private": 0.0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        key = name.partition("_")[0] if name.startswith("Private") else name
        if key in found and name != "Private_Hugetlb":
            found[key] += int(rest.split()[0]) * 1024.0
    return found


def cpu_s(pid: int) -> float:
    """CPU time of the process without its children, s (/proc/PID/schedstat of its threads)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure_memory(plan: Plan) -> Section:
    """D5."""
    pending, running = (2000, 20) if plan.is_quick else (10_000, 100)
    with private_daemon() as daemon:
        empty = memory_bytes(daemon.pid)
        daemon.submit(*[["/bin/sleep", "1000"]] * 2)
        daemon.post(submission([["/bin/true"]] * pending, daemon.environment))
        time.sleep(2.0)
        full = memory_bytes(daemon.pid)
    growth = max(0.0, _growth_bytes(running))
    return Section(
        title=f"D5: memory with {pending:,} waiting jobs, and of a running one",
        series=[
            Series("daemon, Rss", [full["Rss"] / MIB], "MiB"),
            Series("daemon, Pss", [full["Pss"] / MIB], "MiB"),
            Series("daemon without jobs, Rss", [empty["Rss"] / MIB], "MiB"),
            Series("all processes, growth a running job", [growth / running / MIB], "MiB"),
        ],
        checks=[
            Check("daemon, Rss", full["Rss"] / 1e6, 120.0, "MB"),
            Check("a running job: growth of ours", growth / running / 1e6, 2.0, "MB"),
        ],
        notes=[f"{running} running jobs; what the job's own program takes is not in it"],
    )


def _growth_bytes(count: int) -> float:
    """Private memory by which daemon and root side grow with so many running jobs."""
    with private_daemon(slots=count) as daemon:
        daemon.finish(daemon.submit(*[["/bin/true"]] * 10))
        pids = (daemon.pid, *daemon.root_side)
        before = sum(memory_bytes(pid)["Private"] for pid in pids)
        start_jobs(daemon, [["/bin/sleep", "1000"]] * count)
        time.sleep(2.0)
        return sum(memory_bytes(pid)["Private"] for pid in pids) - before


def start_jobs(daemon: Daemon, commands: Sequence[list[str]]) -> list[int]:
    """Submit them and wait until all of them run."""
    ids = daemon.post(submission(commands, daemon.environment))
    until_s = time.monotonic() + 120.0
    while time.monotonic() < until_s:
        states = [job["state"] for job in daemon.client.jobs()["jobs"]]
        if states.count("RUNNING") >= len(ids):
            return ids
        time.sleep(0.2)
    raise RuntimeError(f"{len(ids)} jobs do not start: {sorted(set(states))}")


def measure_cpu(plan: Plan) -> Section:
    """R2 with 64 jobs."""
    seconds = 6.0 if plan.is_quick else 20.0
    count = 64
    shares: list[float] = []
    with private_daemon(slots=count) as daemon:
        commands = [["/bin/sleep", "1000"]] * (count - WRITERS)
        for number in range(WRITERS):
            commands.append(["/bin/sh", "-c", WRITER.format(daemon.base / f"out{number}")])
        start_jobs(daemon, commands)
        pids = (daemon.pid, *daemon.root_side)
        time.sleep(3.0)
        for number in range(plan.rounds):
            plan.tell(f"R2, {count} jobs")(number)
            before_s, began_s = sum(map(cpu_s, pids)), time.monotonic()
            time.sleep(seconds / plan.rounds)
            used_s = sum(map(cpu_s, pids)) - before_s
            shares.append(100.0 * used_s / (time.monotonic() - began_s))
    return Section(
        title=f"R2: CPU time of daemon and root side, {count} jobs, % of one core",
        series=[Series("daemon and root side", shares, "%")],
        checks=[Check("all in", statistics.median(shares), 0.5, "%")],
        notes=[
            (
                f"a timeslice of 1 s, {seconds:g} s in all; {count - WRITERS} jobs sleep, {WRITERS}"
                " write and fork; CPU time of all threads"
            )
        ],
    )
