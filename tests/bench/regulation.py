"""The same real jobs under an oracle and under policies: ``make bench-regulation``.

The oracle (oracle.py) runs a bed's commands with the best fixed number of them at a time, found by
trying several. Each policy has a private daemon, which is given the same batch of jobs twice: what
it learned from the first batch can be seen in the second. Caches are cold before each batch, and
the order of the policies alternates from round to round.

Prints a Markdown table of makespans. ``--json FILE`` keeps the runs, and ``--report FILE...`` makes
the table from runs that were kept.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import outcome as outcomes_
import regulation_report as reports
from beds.bed import SIZES, Bed, Size
from beds.catalogue import BEDS
from oracle import TooLong, run_fixed
from outcome import Outcome
from private import private

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs/bench-regulation.md"
QUICK_BEDS = ("reread", "lookups-read", "spin-streams", "plain", "spinners", "arrivals")
"""What a change of regulation must not make slower; under 15 minutes with three rounds."""
ROUNDS = 3
BATCHES = 2
"""That a policy which learns is given; ``none`` and ``dynamic`` learn nothing and have one."""
FORGETFUL = ("none", "dynamic")
GIVE_UP_RATIO = 1.5
"""The oracle gives up a number when it has taken so many times as long as the best one."""
NEAR_RATIO = 1.1
"""Numbers within so much of the best one are tried again in each round."""
INTERRUPTED = 130
"""Exit code, as of a shell's command that SIGINT ended."""
PACKAGES = {
    "nbdkit": "nbdkit",
    "nbdkit-plugin-dev": "nbdkit-plugin-dev",
    "nbdfuse": "libnbd-bin",
    "fusermount3": "fuse3",
    "gcc": "gcc libc6-dev",
    "losetup": "mount",
    "mount": "mount",
    "mkswap": "util-linux",
    "swapon": "mount",
    "mkfs.ext4": "e2fsprogs",
    "gzip": "gzip",
    "tar": "tar",
}
"""Of Debian, by what a bed may be missing."""
ALL = sys.maxsize
"""Jobs at a time: all of them."""
BOUND_SHARES = (0.4, 0.7, 1.0)
"""Bounds of ``dynamic``, as parts of what the jobs move together without regulation."""


class Policy(NamedTuple):
    """A policy that is compared: its name in the table, and what the daemon is given."""

    name: str
    source: str
    regulation: dict[str, float | str]


class Asked(NamedTuple):
    """What one bed is run with."""

    name: str
    size: Size
    rounds: int
    policies: Sequence[str]
    at_once: Sequence[int]
    keep: Callable[[Outcome], None]


class Runner:
    """Runs one bed that is made.

    Args:
        bed: the jobs.
        base: a directory for daemons.
        asked: what is to be run.
    """

    def __init__(self, bed: Bed, base: Path, asked: Asked) -> None:
        self._bed = bed
        self._base = base
        self._asked = asked
        self._here = machine()

    def oracle(self, numbers: Sequence[int], round_: str) -> list[Outcome]:
        """One run with each of these numbers of jobs at a time; all at once comes first."""
        jobs = len(self._bed.work)
        made: list[Outcome] = []
        for number in sorted({min(n, jobs) for n in numbers}, key=lambda n: (n != jobs, n)):
            limit_s = min((one.makespan_s for one in made), default=0.0) * GIVE_UP_RATIO
            made.append(self._fixed(number, round_, limit_s or None))
        return made

    def policy(self, policy: Policy, round_: str) -> list[Outcome]:
        """The batches under this policy, on one daemon."""
        made = []
        batches = 1 if policy.name in FORGETFUL else BATCHES
        with private(self._base, policy.source, self._bed, policy.regulation) as daemon:
            for batch in range(1, batches + 1):
                self._bed.clean()
                began = now()
                result = daemon.run(self._bed.work)
                made.append(
                    self._outcome(
                        policy.name,
                        round_,
                        began,
                        batch=batch,
                        spans=result.spans,
                        suspensions=result.suspensions,
                        most_at_once=result.most_at_once,
                    )
                )
        return made

    def choose_bound(self, round_: str) -> Policy:
        """``dynamic`` with the bound of three under which this bed takes the least time."""
        self._bed.clean()
        with private(self._base, "none", self._bed, {}) as daemon:
            free = daemon.run(self._bed.work)
        rate = free.moved_bytes / max(span.end_s for span in free.spans)
        tried = [
            Policy("dynamic", "dynamic", {"io_bound": max(1, round(share * rate))})
            for share in BOUND_SHARES
        ]
        return min(tried, key=lambda policy: self.policy(policy, round_)[0].makespan_s)

    def _fixed(self, number: int, round_: str, limit_s: float | None) -> Outcome:
        self._bed.clean()
        began, mark = now(), f"{self._base.name}-oracle"
        try:
            spans = run_fixed(self._bed.work, number, mark, limit_s=limit_s)
        except TooLong:
            return self._outcome(
                f"k={number}", round_, began, spans=[], is_cut=True, limit_s=limit_s or 0.0
            )
        most = outcomes_.most_at_once(spans)
        return self._outcome(f"k={number}", round_, began, spans=spans, most_at_once=most)

    def _outcome(self, rule: str, round_: str, began: str, **figures) -> Outcome:  # type: ignore[no-untyped-def]
        made = Outcome(
            bed=self._asked.name,
            about=self._bed.about,
            size=self._asked.size,
            rule=rule,
            round=round_,
            at=began,
            machine=self._here,
            **figures,
        )
        what = f"{made.bed} ({made.size}) {reports.name(made)}"
        if made.is_cut:
            say(f"{what}: given up after {made.limit_s:.1f} s")
        else:
            say(
                f"{what}: makespan {made.makespan_s:.1f} s, mean turnaround "
                f"{made.turnaround_s:.1f} s, {made.suspensions} suspensions, "
                f"{made.most_at_once} at once"
            )
        return made


def run_bed(asked: Asked) -> None:
    """All rounds on one bed; each run is kept as soon as it was made."""
    base = Path(tempfile.mkdtemp(prefix="iod-bench-", dir="/var/tmp"))
    try:
        with BEDS[asked.name].make(base, asked.size) as bed:
            say(f"{asked.name}: {bed.about}")
            runner = Runner(bed, base, asked)
            fixed: list[Outcome] = []
            for number in range(asked.rounds):
                for one in run_round(runner, asked, fixed, number):
                    asked.keep(one)
                    fixed += [one] if reports.is_fixed(one) else []
    finally:
        shutil.rmtree(base)


def run_round(
    runner: Runner, asked: Asked, fixed: Sequence[Outcome], number: int
) -> Iterator[Outcome]:
    """One round: the oracle, then each policy, in another order than in the round before.

    Args:
        runner: of the bed.
        asked: what is to be run.
        fixed: the oracle's runs of earlier rounds.
        number: of the round, from 0.
    """
    round_ = f"{now()} {number + 1}"
    yield from runner.oracle(near_best(fixed) or asked.at_once, round_)
    policies = [
        runner.choose_bound(round_) if text == "dynamic" else named(text) for text in asked.policies
    ]
    first = number % max(1, len(policies))
    for policy in policies[first:] + policies[:first]:
        yield from runner.policy(policy, round_)


def near_best(fixed: Sequence[Outcome]) -> list[int]:
    """The numbers that are worth another run: about as good as the best, and all at once."""
    if not fixed:
        return []
    best_s = min(one.makespan_s for one in fixed)
    near = {int(one.rule[2:]) for one in fixed if one.makespan_s <= best_s * NEAR_RATIO}
    return sorted(near | {max(int(one.rule[2:]) for one in fixed)})


def named(text: str) -> Policy:
    """A policy by its name or the path of its file."""
    path = Path(text)
    if path.suffix == ".toml":
        return Policy(path.stem, str(path.resolve()), {})
    return Policy(text, text, {})


# -- the report ------------------------------------------------------------------------------------


def summary(made: Sequence[Outcome]) -> str:
    """The tables."""
    return f"{reports.table(made)}\n\n{reports.details(made)}\n\n{reports.tried(made)}"


def page(made: Sequence[Outcome]) -> str:
    """docs/bench-regulation.md."""
    about = {one.bed: one.about for one in made}
    beds = "\n".join(f"- **{name}**: {text}." for name, text in about.items())
    days = sorted({one.at[:10] for one in made})
    machines = "; ".join(dict.fromkeys(one.machine for one in made))
    return f"""# Regulation on real beds

Measured by `make bench-regulation` on {" to ".join(dict.fromkeys((days[0], days[-1])))}.
Machine: {machines}.

Makespans in seconds: median [lowest, highest]. The *oracle* runs the same commands without a
daemon, the best fixed number k of them at a time. A ratio below 1 is a gain; it is the median over
the rounds with its 95 % interval (bootstrap).

{reports.table(made)}

Slowdown of a job: its time from submission to end over the same under `none`, in the run of the
same round, or else in the median one. `latest job / none`: of the job that is latest beside its end
under `none`, one end over the other.

{reports.details(made)}

What the oracle tried:

{reports.tried(made)}

## Beds

{beds}

Caches are cold before each batch. A policy's private daemon has the machine as it is detected, one
slot for each logical CPU and a timeslice of 1 s. Under `none` all jobs start at once. The spinning
disk is an imitation (one arm, first come first served, seeks of 1 to 15 ms, 7200 rpm, 150 MB/s),
its data in memory.
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


def now() -> str:
    """The time, ISO 8601, UTC."""
    return datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="milliseconds")


def say(text: str) -> None:
    """A line of progress, on standard error."""
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)  # noqa: DTZ005


# -- the command -----------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--bed", action="append", choices=BEDS, help="only this one; may be repeated")
    add("--size", choices=SIZES, help="of the beds; normal unless --quick")
    add("--rounds", type=int, help=f"of each bed; {ROUNDS} if not given")
    add("--quick", action="store_true", help="six small beds without an oracle (12 minutes)")
    add(
        "--policies",
        default="none,default",
        help="names or TOML files, with commas; dynamic: under the best of three bounds",
    )
    add("--oracle", help="how many jobs at a time it tries, with commas, for 1,2,3,4")
    add("--no-oracle", action="store_true", help="policies only")
    add("--json", type=Path, metavar="FILE", help="append each run to this file")
    add("--reuse", action="store_true", help="no oracle where the file has its runs of a bed")
    add("--report", type=Path, nargs="+", metavar="FILE", help="from these files; run nothing")
    add("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    return parser.parse_args()


def at_once(asked: argparse.Namespace, name: str, size: str, known: Sequence[Outcome]) -> list[int]:
    """How many jobs at a time the oracle tries on this bed."""
    is_known = any((one.bed, one.size) == (name, size) and reports.is_fixed(one) for one in known)
    if asked.no_oracle or asked.quick or is_known or not BEDS[name].oracle:
        return []
    if asked.oracle is not None:
        return [*map(int, asked.oracle.split(",")), ALL]
    return [*BEDS[name].oracle, ALL]


def how_to_get(lacks: Sequence[str]) -> str:
    """What is missing, and the command that installs what can be installed."""
    packages = " ".join(dict.fromkeys(PACKAGES[one] for one in lacks if one in PACKAGES))
    hint = f"; apt-get install {packages}" if packages else ""
    return f"this machine lacks {', '.join(lacks)}{hint}"


def run_all(asked: argparse.Namespace) -> tuple[list[Outcome], bool]:
    """Every bed that can be made here; the runs, and whether something required is missing."""
    made = outcomes_.load([asked.json]) if asked.reuse and asked.json.exists() else []
    size: Size = asked.size or ("small" if asked.quick else "normal")
    names = asked.bed or (QUICK_BEDS if asked.quick else tuple(BEDS))

    def keep(one: Outcome) -> None:
        made.append(one)
        if asked.json is not None:
            outcomes_.append(asked.json, one)

    required = os.environ.get("IOD_REQUIRE", "").split(",")
    is_short = False
    for name in names:
        if lacks := BEDS[name].missing():
            say(f"{name} is left out: {how_to_get(lacks)}")
            is_short = is_short or not set(lacks).isdisjoint(required)
            continue
        run_bed(
            Asked(
                name=name,
                size=size,
                rounds=asked.rounds or ROUNDS,
                policies=[text for text in asked.policies.split(",") if text],
                at_once=at_once(asked, name, size, made),
                keep=keep,
            )
        )
    return made, is_short


def main() -> int:
    """Run, print, write; 1 when a bed is left out for lack of what IOD_REQUIRE names."""
    asked = options()
    if asked.reuse and asked.json is None:
        sys.exit("--reuse needs --json FILE")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    if asked.report:
        made, is_short = outcomes_.load(asked.report), False
    else:
        try:
            made, is_short = run_all(asked)
        except KeyboardInterrupt:
            return INTERRUPTED
    print(summary(made))
    if asked.write:
        REPORT.write_text(page(made))
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main())
