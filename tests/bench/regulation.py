"""The same real jobs under ``none``, ``dynamic`` and ``bounded``: ``make bench-regulation``.

Every bed (see bed.py) is made once. ``dynamic`` is run once with each of three bounds and goes on
with the best; then all three are run in rounds whose order rotates, each run with a private daemon
and cold caches. Prints a Markdown table and writes docs/bench-regulation.md, unless ``--quick``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import bed as beds_
from private import private

from iodaemon.api.model import Job
from iodaemon.core.measure import jain_index

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs/bench-regulation.md"
BEDS = ("thrash", "spin", "plain")
QUICK_BEDS = ("spin", "plain")
RULES = ("none", "dynamic", "bounded")
BOUND_SHARES = (0.4, 0.7, 1.0)
"""Bounds that are tried, as parts of what the jobs move together without regulation."""


class Run(NamedTuple):
    """What one run was worth, in the order of the table's columns."""

    makespan_s: float
    turnaround_s: float
    jain: float
    suspended_s: float
    suspensions: int
    bytes: int


class Result(NamedTuple):
    """One bed, all its runs."""

    bed: str
    about: str
    bound: float
    trials: dict[float, Run]
    runs: dict[str, list[Run]]


def measure(jobs: Sequence[Job], suspensions: int) -> Run:
    """The figures of one run whose jobs were submitted together."""
    turnarounds = [(job["ended_s"] or 0.0) - job["submitted_s"] for job in jobs]
    moved = [(job["read_bytes"] or 0) + (job["written_bytes"] or 0) for job in jobs]
    return Run(
        makespan_s=max(job["ended_s"] or 0.0 for job in jobs)
        - min(job["submitted_s"] for job in jobs),
        turnaround_s=statistics.mean(turnarounds),
        jain=jain_index(turnarounds),
        suspended_s=sum(job["suspended_io_s"] for job in jobs),
        suspensions=suspensions,
        bytes=sum(moved),
    )


def run_once(
    bed: beds_.Bed, base: Path, rule: str, bound: float | None = None, keep: str = ""
) -> Run:
    """One run on the bed with cold caches."""
    bed.clean()
    limits: dict[str, float | str] = {} if bound is None else {"io_bound": round(bound)}
    policy = "none" if rule == "none" else str(write_policy(base, rule))
    with private(base / "daemon", policy, limits) as daemon:
        run = measure(daemon.run(bed.jobs), daemon.suspensions())
        if keep:
            shutil.copy(daemon.log, keep)
    what = rule if bound is None else f"{rule} {bound / 1e6:.0f} MB/s"
    say(
        f"{bed.name} {what}: makespan {run.makespan_s:.1f} s, mean turnaround "
        f"{run.turnaround_s:.1f} s, {run.suspensions} suspensions"
    )
    return run


def write_policy(base: Path, rule: str) -> Path:
    """A policy that differs from the others in its regulation alone."""
    path = base / f"{rule}.toml"
    path.write_text(
        '[admission]\nrule = "fcfs"\n\n[placement]\nrule = "least_io"\n\n'
        f'[regulation]\nrule = "{rule}"\ntimeslice = "1 s"\n'
    )
    return path


def choose_bound(bed: beds_.Bed, base: Path) -> tuple[float, dict[float, Run]]:
    """The bound under which ``dynamic`` needs least time here, of three."""
    free = run_once(bed, base, "none")
    rate = free.bytes / free.makespan_s
    trials = {share * rate: run_once(bed, base, "dynamic", share * rate) for share in BOUND_SHARES}
    return min(trials, key=lambda bound: trials[bound].makespan_s), trials


def run_bed(name: str, base: Path, rounds: int, *, is_small: bool, logs: Path | None) -> Result:
    """All rounds on one bed."""
    with beds_.make(name, base, is_small=is_small) as bed:
        say(f"{name}: {bed.about}")
        bound, trials = choose_bound(bed, base)
        runs: dict[str, list[Run]] = {rule: [] for rule in RULES}
        for number in range(rounds):
            for rule in order(number):
                keep = "" if logs is None else str(logs / f"{name}-{number}-{rule}.log")
                limit = bound if rule == "dynamic" else None
                runs[rule].append(run_once(bed, base, rule, limit, keep))
        return Result(bed=name, about=bed.about, bound=bound, trials=trials, runs=runs)


def order(number: int) -> tuple[str, ...]:
    """Who comes when in this round: ABC, ACB, BCA, BAC, CAB, CBA and so on."""
    first = (number // 2) % len(RULES)
    turned = (*RULES[first:], *RULES[:first])
    return turned if number % 2 == 0 else (turned[0], turned[2], turned[1])


# -- the report ------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """Medians, and ranges in brackets; one line a bed and rule."""
    columns = (
        *("bed", "regulation", "makespan s", "mean turnaround s", "Jain index", "suspended s"),
        *("suspensions", "times as fast as none"),
    )
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for result in results:
        for rule, runs in result.runs.items():
            name = f"dynamic, {result.bound / 1e6:.0f} MB/s" if rule == "dynamic" else rule
            cells = [
                spread([run.makespan_s for run in runs], 1),
                spread([run.turnaround_s for run in runs], 1),
                spread([run.jain for run in runs], 2),
                spread([run.suspended_s for run in runs], 0),
                spread([float(run.suspensions) for run in runs], 0),
                spread(gains(result, rule), 2),
            ]
            lines.append(f"| {result.bed} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gains(result: Result, rule: str) -> list[float]:
    """How many times as fast as ``none`` in the same round, each round."""
    pairs = zip(result.runs["none"], result.runs[rule], strict=True)
    return [free.makespan_s / run.makespan_s for free, run in pairs]


def spread(values: Sequence[float], digits: int) -> str:
    """Median [lowest, highest]."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def report(results: Sequence[Result], rounds: int) -> str:
    """The page."""
    now = datetime.datetime.now(tz=datetime.UTC)
    beds = "\n".join(f"- **{result.bed}**: {result.about}." for result in results)
    trials = "\n".join(
        f"- {result.bed}: "
        + ", ".join(
            f"{b / 1e6:.0f} MB/s {run.makespan_s:.1f} s" for b, run in result.trials.items()
        )
        for result in results
    )
    return f"""# Regulation on three real beds

Measured by `make bench-regulation` on {now:%Y-%m-%d}; {rounds} rounds of alternating runs, median
[lowest, highest].
Machine: {machine()}.
Other work ran on its cores and its disk at the same time, hence the ranges on the plain disk: a
difference smaller than they are says nothing. Compare runs of one round, not of two dates.

{table(results)}

The last column compares runs of the same round. The Jain index is that of the jobs' turnarounds:
1 when all took equally long, so jobs that run one after the other score lower however soon each
of them ends.

## Beds

{beds}

All jobs are submitted together to a private daemon with 8 slots on two sockets and a timeslice of
1 s; the files are out of the page cache before every run. The spinning disk is an imitation (one
arm, first come first served, seeks of 1 to 15 ms, 7200 rpm, 150 MB/s), its data in memory.

## Bounds tried for `dynamic`

The best of three, each tried once, is the one in the table; makespans:

{trials}
"""


def machine() -> str:
    """Kernel, cores, memory, disk."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    disks = ", ".join(
        f"{path.name} {'rotational' if rotational(path) else 'not rotational'}"
        for path in sorted(Path("/sys/block").iterdir())
        if (path / "device").exists()
    )
    return f"Linux {platform.release()}, {os.cpu_count()} cores, {memory:.0f} GiB, disk {disks}"


def rotational(path: Path) -> bool:
    """Whether the kernel takes it for a disk with an arm."""
    return (path / "queue/rotational").read_text().strip() == "1"


def say(text: str) -> None:
    """A line of progress, on standard error."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)  # noqa: DTZ005


def options() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round on two small beds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beds", default="", help=f"of {','.join(BEDS)}")
    parser.add_argument("--logs", type=Path, help="keep the daemons' logs in this directory")
    return parser.parse_args()


def main() -> int:
    """Run, print, write; 1 when a bed cannot be made here."""
    asked = options()
    names = asked.beds.split(",") if asked.beds else QUICK_BEDS if asked.quick else BEDS
    lacks = {name: beds_.missing(name) for name in names}
    for name, lacking in lacks.items():
        if lacking:
            print(f"bed {name} needs {', '.join(lacking)}", file=sys.stderr)
            return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rounds = 1 if asked.quick else asked.rounds
    results = []
    for name in names:
        base = Path(tempfile.mkdtemp(prefix="iod-bench-", dir="/var/tmp"))
        try:
            results.append(run_bed(name, base, rounds, is_small=asked.quick, logs=asked.logs))
        finally:
            shutil.rmtree(base)
    print(table(results))
    if not asked.quick and tuple(names) == BEDS:
        REPORT.write_text(report(results, rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
