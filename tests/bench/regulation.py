"""The same real jobs under ``none``, ``dynamic`` and ``bounded``: ``make bench-regulation``.

Every bed (see bed.py) is made once. ``dynamic`` is run three times (``--quick``: once) with each of
three bounds and goes on with the one whose median is best; then rounds follow, each run with a
private daemon and cold caches. In a round ``none`` and ``bounded`` come one after the other, in
turns the one and the other first, and make a pair: what the machine does besides is nearly the same
to both. Prints a Markdown table, and writes docs/bench-regulation.md when it ran on every bed and
not ``--quick``.
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
from bench_figure import median_interval
from private import private

from iodaemon.api.model import Job
from iodaemon.core.measure import jain_index

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs/bench-regulation.md"
BEDS = ("thrash", "spin", "plain")
QUICK_BEDS = ("spin", "plain")
ROUNDS = {"thrash": 10, "spin": 10, "plain": 40}
"""At least 10 pairs; where 3 % are to be told from the noise of a shared disk, more."""
DYNAMIC_ROUNDS = 10
"""Rounds in which ``dynamic`` runs too; the others are there for the pairs."""
RULES = ("none", "dynamic", "bounded")
"""In the order of the table."""
ORDERS = (
    ("none", "bounded", "dynamic"),
    ("bounded", "none", "dynamic"),
    ("dynamic", "none", "bounded"),
    ("dynamic", "bounded", "none"),
)
LEAST_RATIO = {"thrash": 2.0, "spin": 2.0, "plain": 0.97}
"""What ``bounded`` is to reach, in times as fast as ``none``: beds with something to give have
2 to 5 times of it, and where there is nothing it may cost 3 %."""
BOUND_SHARES = (0.4, 0.7, 1.0)
"""Bounds that are tried, as parts of what the jobs move together without regulation."""
TRIALS = 3
"""Runs with each bound, of which the median counts."""


class Run(NamedTuple):
    """What one run was worth, in the order of the table's columns."""

    makespan_s: float
    turnaround_s: float
    jain: float
    suspended_s: float
    suspensions: int
    bytes: int


class Result(NamedTuple):
    """One bed, all its rounds: of each, the runs by rule."""

    bed: str
    about: str
    bound: float
    trials: dict[float, list[Run]]
    rounds: list[dict[str, Run]]

    def runs(self, rule: str) -> list[Run]:
        """All runs of one rule."""
        return [one[rule] for one in self.rounds if rule in one]

    def ratios(self, rule: str) -> list[float]:
        """How many times as fast as ``none`` in the same round, each round."""
        pairs = [(one["none"], one[rule]) for one in self.rounds if rule in one]
        return [free.makespan_s / run.makespan_s for free, run in pairs]


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
    with private(base, policy, limits) as daemon:
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


def choose_bound(bed: beds_.Bed, base: Path, times: int) -> tuple[float, dict[float, list[Run]]]:
    """The bound under which ``dynamic`` needs least time here, of three, each tried so often."""
    free = run_once(bed, base, "none")
    rate = free.bytes / free.makespan_s
    trials: dict[float, list[Run]] = {share * rate: [] for share in BOUND_SHARES}
    for _ in range(times):
        for bound, runs in trials.items():
            runs.append(run_once(bed, base, "dynamic", bound))
    return min(trials, key=lambda bound: middle_makespan_s(trials[bound])), trials


def middle_makespan_s(runs: Sequence[Run]) -> float:
    """The median."""
    return statistics.median(run.makespan_s for run in runs)


def run_bed(name: str, base: Path, rounds: int, *, is_small: bool, logs: Path | None) -> Result:
    """All rounds on one bed."""
    with beds_.make(name, base, is_small=is_small) as bed:
        say(f"{name}: {bed.about}")
        bound, trials = choose_bound(bed, base, 1 if is_small else TRIALS)
        results: list[dict[str, Run]] = []
        for number in range(rounds):
            made: dict[str, Run] = {}
            for rule in order(number):
                keep = "" if logs is None else str(logs / f"{name}-{number}-{rule}.log")
                limit = bound if rule == "dynamic" else None
                made[rule] = run_once(bed, base, rule, limit, keep)
            results.append(made)
        return Result(bed=name, about=bed.about, bound=bound, trials=trials, rounds=results)


def order(number: int) -> list[str]:
    """Who comes when in this round."""
    rules = ORDERS[number % len(ORDERS)]
    return [rule for rule in rules if rule != "dynamic" or number < DYNAMIC_ROUNDS]


# -- the report ------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """Medians, and ranges in brackets; one line a bed and rule."""
    columns = (
        *("bed", "regulation", "runs", "makespan s", "mean turnaround s", "Jain index"),
        *("suspended s", "suspensions", "times as fast as none"),
    )
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for result in results:
        for rule in RULES:
            name = f"dynamic, {result.bound / 1e6:.0f} MB/s" if rule == "dynamic" else rule
            runs = result.runs(rule)
            cells = [
                str(len(runs)),
                spread([run.makespan_s for run in runs], 1),
                spread([run.turnaround_s for run in runs], 1),
                spread([run.jain for run in runs], 2),
                spread([run.suspended_s for run in runs], 0),
                spread([float(run.suspensions) for run in runs], 0),
                "1" if rule == "none" else paired(result.ratios(rule)),
            ]
            lines.append(f"| {result.bed} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paired(ratios: Sequence[float]) -> str:
    """Median (95 % interval of the median)."""
    low, high = median_interval(ratios)
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def verdicts(results: Sequence[Result]) -> str:
    """Whether ``bounded`` is what it is to be; one line a bed."""
    lines = []
    for result in results:
        ratios, least = result.ratios("bounded"), LEAST_RATIO[result.bed]
        low, high = median_interval(ratios)
        verdict = "shown" if low >= least else "not so" if high < least else "not decided"
        suspensions = [run.suspensions for run in result.runs("bounded")]
        lines.append(
            f"- {result.bed}: `bounded` at least {least:g} times as fast as `none`: {verdict}, "
            f"{paired(ratios)} in {len(ratios)} pairs; it suspended in "
            f"{sum(count > 0 for count in suspensions)} of {len(suspensions)} runs, "
            f"{sum(suspensions)} times in all"
        )
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Median [lowest, highest]."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def report(results: Sequence[Result], load: float) -> str:
    """The page."""
    now = datetime.datetime.now(tz=datetime.UTC)
    beds = "\n".join(f"- **{result.bed}**: {result.about}." for result in results)
    trials = "\n".join(
        f"- {result.bed}: "
        + ", ".join(
            f"{b / 1e6:.0f} MB/s {spread([run.makespan_s for run in runs], 1)} s"
            for b, runs in result.trials.items()
        )
        for result in results
    )
    return f"""# Regulation on three real beds

Measured by `make bench-regulation` on {now:%Y-%m-%d}; rounds of alternating runs, median
[lowest, highest].
Machine: {machine()}; load average before the first run {load:.1f}.

{table(results)}

The last column compares runs of the same round, one after the other: the median of the ratios, and
its 95 % interval (bootstrap). The Jain index is that of the jobs' turnarounds: 1 when all took
equally long, so jobs that run one after the other score lower however soon each of them ends.

{verdicts(results)}

## Beds

{beds}

All jobs are submitted together to a private daemon with 8 slots on two sockets and a timeslice of
1 s; the files are out of the page cache before every run. The spinning disk is an imitation (one
arm, first come first served, seeks of 1 to 15 ms, 7200 rpm, 150 MB/s), its data in memory.

## Bounds tried for `dynamic`

The one with the best median is the one in the table; makespans of {TRIALS} runs each:

{trials}
"""


def machine() -> str:
    """Kernel, cores and their model, memory, disk."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    disks = ", ".join(
        f"{path.name} {'rotational' if rotational(path) else 'not rotational'}"
        for path in sorted(Path("/sys/block").iterdir())
        if (path / "device").exists()
    )
    cores = f"{os.cpu_count()} cores ({cpu_model()})"
    return f"Linux {platform.release()}, {cores}, {memory:.0f} GiB, disk {disks}"


def cpu_model() -> str:
    """What the kernel calls the processor; on machines whose kernel does not, its architecture."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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
    parser.add_argument("--rounds", type=int, help=f"of every bed, for {ROUNDS}")
    parser.add_argument("--bed", action="append", choices=BEDS, help="this one only; repeatable")
    parser.add_argument("--logs", type=Path, help="keep the daemons' logs in this directory")
    return parser.parse_args()


def main() -> int:
    """Run, print, write; 1 when a bed cannot be made here."""
    asked = options()
    names = asked.bed or (QUICK_BEDS if asked.quick else BEDS)
    lacks = {name: beds_.missing(name) for name in names}
    for name, lacking in lacks.items():
        if lacking:
            print(f"bed {name} needs {', '.join(lacking)}", file=sys.stderr)
            return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    load, results = os.getloadavg()[0], []
    for name in names:
        base = Path(tempfile.mkdtemp(prefix="iod-bench-", dir="/var/tmp"))
        try:
            rounds = asked.rounds or (1 if asked.quick else ROUNDS[name])
            results.append(run_bed(name, base, rounds, is_small=asked.quick, logs=asked.logs))
        finally:
            shutil.rmtree(base)
    print(f"{table(results)}\n\n{verdicts(results)}")
    if not asked.quick and tuple(names) == BEDS:
        REPORT.write_text(report(results, load))
    return 0


if __name__ == "__main__":
    sys.exit(main())
