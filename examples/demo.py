"""What regulation is good for, with real jobs and the shipped policy, in 90 s: ``make demo``.

1. **Past a memory limit**: six jobs go over a file each, again and again. Two of the files fit into
   the memory that the jobs may use; with all six there, each reads from the disk what another one
   has just displaced. It needs root and a memory controller, for the limit.
2. **This machine's own disk**: six jobs read a file each, once. There is nothing to gain, and
   nothing may be lost.

Each part runs twice, in a private daemon in a temporary directory: without regulation, all jobs at
once, and under policy ``default``. It fails if a job was lost, run twice, or did not end well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from iodaemon.api.model import Job, JobSpec
from iodaemon.core.measure import mean
from iodaemon.errors import BackendError
from iodaemon.trial.directory import own_directory
from iodaemon.trial.private import Private, private
from iodaemon.units import format_bytes, format_rate

MIB: Final = 1 << 20
JOBS: Final = 6
FILE_BYTES: Final = 150 * MIB
LIMIT_BYTES: Final = 400 * MIB
"""Two of the files fit, three do not."""
THRASH_S: Final = 18.0
"""How long the first part takes without regulation, about."""
PASSES: Final = (5, 60)
"""Least and most times that a file is gone over."""
LONGEST_S: Final = 60.0
LOST: Final = 0.03
"""More than this part of the time is a difference on a quiet machine."""
V1: Final = Path("/sys/fs/cgroup/memory")
V2: Final = Path("/sys/fs/cgroup")

REREAD: Final = """
[ -z "$3" ] || echo $$ > "$3" || exit 1
echo "start $IOD_JOB_ID" >> "$4"
for pass in $(seq "$2"); do wc -l "$1" || exit 1; done > /dev/null
echo "done $IOD_JOB_ID" >> "$4"
"""
"""File, passes, cgroup.procs of the group with the limit, ledger."""


class Run(NamedTuple):
    """One run of a part."""

    name: str
    jobs: list[Job]
    most_at_once: int

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end, s."""
        begin_s = min(job["submitted_s"] for job in self.jobs)
        return max(job["ended_s"] or 0.0 for job in self.jobs) - begin_s

    @property
    def turnaround_s(self) -> float:
        """From a job's submission to its end in the mean, s."""
        return mean([(job["ended_s"] or 0.0) - job["submitted_s"] for job in self.jobs])


class Demo:
    """Files on a disk, a short directory for daemons, and what the jobs wrote down."""

    def __init__(self, base: Path, runtime: Path) -> None:
        self.runtime = runtime
        self.files = [base / f"data{number}" for number in range(JOBS)]
        self.ledger = base / "ledger"
        self.problems: list[str] = []

    def prepare(self) -> float:
        """Write the files, past the page cache, and read one; its rate, bytes/s."""
        say(f"writing {format_bytes(JOBS * FILE_BYTES)} below {self.ledger.parent}")
        block = os.urandom(MIB)
        for file in self.files:
            with file.open("wb") as out:
                for _ in range(FILE_BYTES // MIB):
                    out.write(block)
                os.fsync(out.fileno())
        self.forget()
        began_s = time.monotonic()
        with self.files[0].open("rb", buffering=0) as data:
            while data.read(MIB):
                pass
        return FILE_BYTES / (time.monotonic() - began_s)

    def forget(self) -> None:
        """Take the files out of the page cache."""
        for file in self.files:
            with file.open("rb") as data:
                os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def compare(self, passes: int, procs: Path | None) -> tuple[Run, Run]:
        """Both runs of a part."""
        return self.run("none", passes, procs), self.run("default", passes, procs)

    def run(self, policy: str, passes: int, procs: Path | None) -> Run:
        """Submit all jobs at once and watch them to their end."""
        self.forget()
        self.ledger.unlink(missing_ok=True)
        with private(self.runtime, settings(policy)) as daemon:
            ids = daemon.client.submit(
                [self.spec(file, passes, procs) for file in self.files], daemon.environment
            )
            run = watch(policy, daemon, ids)
        self.problems += self.judge(run)
        return run

    def spec(self, file: Path, passes: int, procs: Path | None) -> JobSpec:
        """The job that goes over this file."""
        group = "" if procs is None else str(procs)
        words = ("sh", "-c", REREAD, "wc", str(file), str(passes), group, str(self.ledger))
        where = {"cwd": str(file.parent), "walltime_s": LONGEST_S}
        return {"command": list(words), "shares_cores": True, **where}  # type: ignore[typeddict-item]

    def judge(self, run: Run) -> list[str]:
        """What went wrong: a job that was lost, run twice, or did not end well."""
        told = Counter(self.ledger.read_text().splitlines())
        problems = []
        for job in run.jobs:
            name = f"{run.name}: job {job['id']}"
            if job["state"] != "COMPLETED":
                problems.append(f"{name} is {job['state_shown']}, exit code {job['exit_code']}")
            times = [told[f"{word} {job['id']}"] for word in ("start", "done")]
            if times != [1, 1]:
                problems.append(f"{name} began {times[0]} times, finished {times[1]} times")
        return problems


def settings(policy: str) -> dict[str, Any]:
    """Without regulation there is room for all jobs; ``default`` finds out how many it takes."""
    cpus = len(os.sched_getaffinity(0))
    many: int | str = -(-JOBS // cpus) if policy == "none" else "auto"
    return {"policy": policy, "topology": {"slot": "thread", "oversubscribe": many}}


def watch(name: str, daemon: Private, ids: list[int]) -> Run:
    """Follow the jobs to their end."""
    began_s, most = time.monotonic(), 0
    while True:
        answer = daemon.client.jobs(select=f"{ids[0]}-{ids[-1]}")
        states = Counter(job["code"] for job in answer["jobs"])
        most = max(most, states["R"])
        progress(name, time.monotonic() - began_s, states)
        if all(job["ended_s"] is not None for job in answer["jobs"]):
            return Run(name, answer["jobs"], most)
        time.sleep(0.25)


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Path | None]:
    """The ``cgroup.procs`` of a group with this limit; None where none can be had."""
    is_v1 = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if is_v1 else V2) / f"iodaemon-demo-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if is_v1 else "memory.max")
    try:
        group.mkdir()
        try:
            limit.write_text(str(limit_bytes))
        except OSError:
            group.rmdir()
            raise
    except OSError:
        yield None
        return
    try:
        yield group / "cgroup.procs"
    finally:
        while pids := (group / "cgroup.procs").read_text().split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        group.rmdir()


def say(text: str) -> None:
    """A line of progress, on standard error."""
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def progress(name: str, elapsed_s: float, states: Counter[str]) -> None:
    """One line that is overwritten on a terminal, and one every five seconds elsewhere."""
    text = (
        f"[{name}] {elapsed_s:5.1f} s  running {states['R']}  suspended {states['SI']}  "
        f"queued {states['PD']}"
    )
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif elapsed_s % 5.0 < 0.26:
        print(text, file=sys.stderr, flush=True)


def print_part(title: str, none: Run, default: Run) -> float:
    """Both runs side by side; how many times as fast it was under ``default``."""
    say("")
    print(f"\n{title}\n{'':<32}{'no regulation':>16}{'policy default':>16}")
    print(f"{'all jobs done after':<32}{none.makespan_s:>14.1f} s{default.makespan_s:>14.1f} s")
    print(f"{'a job done after, mean':<32}{none.turnaround_s:>14.1f} s", end="")
    print(f"{default.turnaround_s:>14.1f} s")
    print(f"{'jobs at once, at most':<32}{none.most_at_once:>16}{default.most_at_once:>16}")
    return none.makespan_s / default.makespan_s


def both_parts(demo: Demo) -> None:
    """Run them, and say what each shows."""
    rate = demo.prepare()
    say(f"one reader gets {format_rate(rate)} of this disk")
    size = format_bytes(FILE_BYTES)
    with memory_limit(LIMIT_BYTES) as procs:
        if procs is not None:
            passes = round(min(PASSES[1], max(PASSES[0], rate * THRASH_S / (JOBS * FILE_BYTES))))
            title = (
                f"Past a memory limit: {JOBS} jobs go {passes} times over a file of {size} each, "
                f"with {format_bytes(LIMIT_BYTES)} of memory for all"
            )
            times = print_part(title, *demo.compare(passes, procs))
            print(f"Under regulation the work was done {times:.1f} times as fast (one run each).")
    title = f"This machine's own disk: {JOBS} jobs read a file of {size} each, once"
    times = print_part(title, *demo.compare(1, None))
    if times < 1.0 - LOST:
        print(f"Regulation took {1 / times - 1:.0%} more time (one run each, of a short batch).")
    else:
        print("There was nothing to gain, and nothing was lost (one run each).")
    if procs is None:
        print("A memory limit needs root and a memory controller, so the first part was left out.")


def place() -> Path:
    """A directory on a disk: not in memory."""
    for parent in ("/var/tmp", tempfile.gettempdir(), str(Path.cwd())):
        if os.access(parent, os.W_OK) and shutil.disk_usage(parent).free > 2 * JOBS * FILE_BYTES:
            return Path(tempfile.mkdtemp(prefix="iod-demo-", dir=parent))
    sys.exit(f"no directory with {format_bytes(2 * JOBS * FILE_BYTES)} of room; set TMPDIR to one")


def main() -> int:
    """Both parts; 1 when a job was lost, doubled, or did not end well."""
    base = place()
    problems: list[str] = []
    try:
        with own_directory(Path("/tmp")) as runtime:
            demo = Demo(base, runtime)
            both_parts(demo)
            problems = demo.problems
    except BackendError as error:
        problems = [str(error)]
    finally:
        shutil.rmtree(base)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
