"""What regulation is good for, in at most 90 s, with real programs: ``make demo``.

Six jobs, each with a file of its own: two read it again and again with ``wc``, two with ``cat``,
and two look up rows in it with ``sqlite3``.

1. **Past a memory limit** that leaves room for two of the files. With all six at work, each job
   reads from the disk what another one has just displaced. It needs root and a memory controller
   (cgroup version 1 or 2), or a user's systemd.
2. **On this machine's own disk**, without a limit. There is nothing to gain, and nothing may be
   lost.

Each part runs twice, in a private daemon in a temporary directory: all jobs at once (policy
``none``), and regulated (policy ``default``). The exit code is 1 if a job fails. The
files are made in TMPDIR, or else in /var/tmp.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

try:
    from memory_limit import memory_limit

    from iodaemon.api.model import Job, JobSpec
    from iodaemon.core.measure import mean
    from iodaemon.errors import BackendError, IodaemonError
    from iodaemon.trial.private import Private, own_directory, private
    from iodaemon.trial.run import InterruptedTrialError, check_rules, interruptible
    from iodaemon.trial.site import find_disks
    from iodaemon.units import format_bytes, format_rate
except KeyboardInterrupt:
    sys.exit(130)

MIB: Final = 1 << 20
PROGRAMS: Final = ("wc", "cat", "sqlite3", "wc", "cat", "sqlite3")
"""One job each, in the order of submission."""
LEAST_MIB = 32
MOST_MIB = 150
"""Of a file. A slow disk gets smaller ones: what it reads in a second."""
SPARE_MIB = 100
"""Of the memory limit, beside two files: for the daemon, its supervisor and the programs."""
AT_ONCE_S = 20.0
"""How long the jobs take all at once past the limit, about."""
MEASURED_S = 1.5
"""How long the disk is read from to find the number of passes and lookups."""
PASSES: Final = (2, 100)
LOOKUPS: Final = (200, 400_000)
"""Fewest and most of a job."""
LONGEST_S: Final = 60.0
"""A job that takes longer has failed."""
SAME: Final = 0.05
"""A smaller part of the time is no difference."""
ROW_BYTES: Final = 950
"""Four rows in a page of 4 KiB."""

AGAIN: Final = 'for time in $(seq "$0"); do "$@" || exit 1; done'
"""A job: a command so many times."""
LOOKUP: Final = """
import random, sqlite3, sys
path, count, rng = sys.argv[1], int(sys.argv[2]), random.Random(sys.argv[1])
database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
database.execute("PRAGMA cache_size = 100")  # pages; the others are found in the kernel's cache
(rows,) = database.execute("SELECT count(*) FROM item").fetchone()  # reads all of the file
for _ in range(count):
    row = rng.randint(1, rows)
    database.execute("SELECT length(data) FROM item WHERE id = ?", (row,)).fetchone()[0]
"""
RATE: Final = """
import os, random, sys, time
longest_s, path, program, count = float(sys.argv[1]), *sys.argv[2:], 0
file, block, began_s = os.open(path, os.O_RDONLY), bytearray(1 << 20), time.monotonic()
size, is_random = os.fstat(file).st_size, program == "sqlite3"
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM if is_random else os.POSIX_FADV_SEQUENTIAL)
while time.monotonic() < began_s + longest_s:
    if is_random:
        count += bool(os.pread(file, 4096, random.randrange(0, size - 4096, 4096)))
    elif got := os.readv(file, [block]):
        count += got
    else:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(file, 0, os.SEEK_SET)
print(count / (time.monotonic() - began_s))
"""
"""What one job gets of the disk: lookups/s of sqlite3, bytes/s of others."""
Check = Callable[[], None]
"""Raises InterruptedTrialError once a signal has asked for the end."""


class Run(NamedTuple):
    """One run of all jobs."""

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
    """Files on a disk and the jobs that use them."""

    def __init__(self, base: Path, runtime: Path, check: Check) -> None:
        self.runtime = runtime
        self.check = check
        self.files = [base / f"data{number}" for number in range(len(PROGRAMS))]
        self.base = base
        self.size_mib = self.passes = self.lookups = 0

    def prepare(self) -> None:
        """Make the files and find out how many passes and lookups this disk is good for.

        Raises:
            OSError: they cannot be written.
        """
        try:
            self.write()
        except (OSError, sqlite3.Error) as error:
            what = getattr(error, "strerror", None) or str(error)
            raise OSError(errno.EIO, what, str(self.base.parent)) from error
        bytes_per_s, lookups_per_s = measure(self.files)
        say(f"all at once get {format_rate(bytes_per_s)} and {lookups_per_s:,.0f} lookups a second")
        readers = len(PROGRAMS) - PROGRAMS.count("sqlite3")
        self.passes = within(PASSES, AT_ONCE_S * bytes_per_s / (readers * self.size_mib * MIB))
        self.lookups = within(LOOKUPS, AT_ONCE_S * lookups_per_s / PROGRAMS.count("sqlite3"))

    def write(self) -> None:
        """Write the files, smaller ones to a slow disk, and take them out of the page cache."""
        self.size_mib = round(min(MOST_MIB, max(LEAST_MIB, probe(self.base / "probe") / MIB)))
        total = format_bytes(len(self.files) * self.size_mib * MIB)
        say(f"writing {total} in {self.base.parent}")
        make_database(self.files[0], self.size_mib, self.check)
        for file in self.files[1:]:
            shutil.copyfile(self.files[0], file)
            self.check()
        for file in self.files:
            settle(file)
            self.check()

    def compare(self, where: str, launcher: tuple[str, ...]) -> tuple[Run, Run]:
        """All at once and regulated."""
        none = self.run(f"{where}, all at once", "none", launcher)
        return none, self.run(f"{where}, regulated", "default", launcher)

    def run(self, name: str, policy: str, launcher: tuple[str, ...]) -> Run:
        """Submit all jobs at once and watch them to their end."""
        for file in self.files:
            settle(file)
        with private(self.runtime, settings(policy), launcher=launcher) as daemon:
            self.check()
            ids = daemon.client.submit([*map(self.spec, self.files, PROGRAMS)], daemon.environment)
            run = watch(name, daemon, ids, self.check)
            check_rules(daemon.client.policy(), name)
        self.check()
        for job in run.jobs:
            if job["state"] != "COMPLETED":
                how = f"is {job['state_shown']}, exit code {job['exit_code']}"
                raise BackendError(f"{name}: job {job['id']} ({job['name']}) {how}")
        return run

    def spec(self, file: Path, program: str) -> JobSpec:
        """The job of this program."""
        times, command = {
            "wc": (self.passes, ["wc", "-l", str(file)]),
            "cat": (self.passes, ["cat", str(file)]),
            "sqlite3": (1, [sys.executable, "-IS", "-c", LOOKUP, str(file), str(self.lookups)]),
        }[program]
        return {
            "name": program,
            "command": ["sh", "-c", AGAIN, str(times), *command],
            "shares_cores": True,
            "cwd": "/",
            "stdout": "/dev/null",
            "walltime_s": LONGEST_S,
        }


def within(bounds: tuple[int, int], value: float) -> int:
    """The integer within these bounds that is nearest to it."""
    return round(min(bounds[1], max(bounds[0], value)))


def probe(file: Path) -> float:
    """How fast one file is written and read, the slower of both; bytes/s."""
    size = LEAST_MIB * MIB
    began_s = time.monotonic()
    file.write_bytes(os.urandom(MIB) * LEAST_MIB)
    settle(file)
    written_s = time.monotonic()
    file.read_bytes()
    read_s = time.monotonic() - written_s
    file.unlink()
    return size / max(read_s, written_s - began_s)


def make_database(file: Path, size_mib: int, check: Check) -> None:
    """One table of random rows."""
    rows = size_mib * MIB // 4096 * 4

    def contents() -> Iterator[tuple[bytes]]:
        for number in range(rows):
            if number % 4096 == 0:
                check()
            yield (os.urandom(ROW_BYTES),)

    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = off")
        database.execute("PRAGMA synchronous = off")
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        database.executemany("INSERT INTO item (data) VALUES (?)", contents())
        database.commit()


def settle(file: Path) -> None:
    """Have it on the disk and not in the page cache."""
    with file.open("rb") as data:
        os.fsync(data.fileno())
        os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(files: list[Path]) -> tuple[float, float]:
    """What the disk gives to all six jobs at once: bytes/s to the readers, lookups/s."""
    words = [sys.executable, "-IS", "-c", RATE, str(MEASURED_S)]
    children = [
        subprocess.Popen([*words, str(file), program], stdout=subprocess.PIPE, process_group=0)
        for file, program in zip(files, PROGRAMS, strict=True)
    ]
    rates = dict.fromkeys(PROGRAMS, 0.0)
    for child, program in zip(children, PROGRAMS, strict=True):
        rates[program] += float(child.communicate()[0] or 0)
    return rates["wc"] + rates["cat"], rates["sqlite3"]


def settings(policy: str) -> dict[str, Any]:
    """Without regulation there is room for all jobs; ``default`` finds out how many it takes."""
    enough = -(-len(PROGRAMS) // len(os.sched_getaffinity(0)))
    many = enough if policy == "none" else "auto"
    return {"policy": policy, "topology": {"slot": "thread", "oversubscribe": many}}


def watch(name: str, daemon: Private, ids: list[int], check: Check) -> Run:
    """Follow the jobs to their end, with one line that is overwritten, or one every 5 s."""
    began_s, most, next_s = time.monotonic(), 0, 0.0
    while True:
        check()
        jobs = daemon.client.jobs(select=f"{ids[0]}-{ids[-1]}")["jobs"]
        states = Counter(job["code"] for job in jobs)
        most = max(most, states["R"])
        elapsed_s = time.monotonic() - began_s
        text = f"{name}: {elapsed_s:4.1f} s, {states['R']} running, {states['SI']} suspended, "
        text += f"{states['PD']} queued"
        if os.isatty(2):
            say(text, end="")
        elif elapsed_s >= next_s:
            say(text)
            next_s += 5.0
        if all(job["ended_s"] is not None for job in jobs):
            say("", end="")
            return Run(jobs, most)
        time.sleep(0.2)


def say(text: str, end: str = "\n") -> None:
    """Progress, on standard error; also from a signal handler, so without a buffer."""
    line = f"\r\033[K{text}{end}" if os.isatty(2) else f"{text}{end}"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())


def tell(text: str) -> None:
    """A result, on standard output."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def verdict(none: Run, default: Run) -> str:
    """What the two times are to each other."""
    times = none.makespan_s / default.makespan_s
    if abs(times - 1.0) <= SAME:
        return "nothing gained, nothing lost"
    return f"{times:.1f} times as fast" if times > 1.0 else f"{1 / times - 1:.0%} more time"


def table(*runs: Run) -> str:
    """Runs side by side, those all at once first."""
    rows = {
        "": ["all at once", "regulated"],
        "all jobs done after": [f"{run.makespan_s:.1f} s" for run in runs],
        "a job done after, mean": [f"{run.turnaround_s:.1f} s" for run in runs],
        "most jobs at once": [str(run.most_at_once) for run in runs],
    }
    return "\n".join(f"{name:<24}{first:>14}{second:>14}" for name, (first, second) in rows.items())


def both_parts(demo: Demo) -> None:
    """Run them, and tell what was measured."""
    demo.prepare()
    size, limit_bytes = format_bytes(demo.size_mib * MIB), (2 * demo.size_mib + SPARE_MIB) * MIB
    with memory_limit(limit_bytes) as (launcher, why):
        if not why:
            none, default = demo.compare("past the limit", launcher)
            tell(
                f"Past a memory limit of {format_bytes(limit_bytes)}: 2 'wc -l' and 2 'cat' go "
                f"{demo.passes} times over a file of {size} each,\n2 programs with sqlite3 look up "
                f"{demo.lookups:,} rows of such a file each.\n\n{table(none, default)}\n\n"
                f"All at once the jobs took {none.makespan_s:.1f} s, regulated "
                f"{default.makespan_s:.1f} s: {verdict(none, default)}."
            )
    if why:
        tell(
            "The part past a memory limit is left out: it needs root and a memory controller, or "
            f"a user's systemd ({why})."
        )
    none, default = demo.compare("no limit", ())
    tell(
        f"Without a limit, on this machine's own disk, the same jobs took {none.makespan_s:.1f} s "
        f"at once, regulated {default.makespan_s:.1f} s: {verdict(none, default)}."
    )


def place() -> Path:
    """A directory with room for the files, on a disk if there is one.

    Raises:
        OSError: there is none.
    """
    chosen = os.environ.get("TMPDIR")
    needed = 2 * len(PROGRAMS) * MOST_MIB * MIB
    parents = [Path(chosen)] if chosen else [Path("/var/tmp"), Path("/tmp"), Path.cwd()]
    writable = [parent for parent in parents if os.access(parent, os.W_OK | os.X_OK)]
    roomy = [parent for parent in writable if shutil.disk_usage(parent).free > needed]
    if not roomy:
        what = f"less than {format_bytes(needed)} free" if writable else "cannot be written to"
        raise OSError(errno.ENOSPC, f"{what}; set TMPDIR to a directory on a disk", str(parents[0]))
    return min(roomy, key=lambda parent: not find_disks(parent).devices).absolute()


def show(check: Check) -> None:
    """Make the places, run both parts, and remove all of it."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "closed", "standard output")
    parent = place()
    short = parent if len(os.fsencode(parent)) <= 50 else Path("/tmp")  # for sockets (unix(7))
    with own_directory(short) as runtime, own_directory(parent, goes_with=runtime) as base:
        both_parts(Demo(base, runtime, check))
    check()


def main() -> int:
    """The exit code; every failure is one line on standard error."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while there is nothing to remove
    while os.open(os.devnull, os.O_RDWR) <= 2:  # no file of ours gets the number of a closed one
        pass
    try:
        with interruptible(lambda: say("demo: interrupted; removing jobs and files")) as check:
            show(check)
    except InterruptedTrialError as error:
        return 128 + error.signal_number
    except IodaemonError as error:
        say(f"demo: {' '.join(str(error).split())}")
    except OSError as error:
        say(f"demo: {error.filename or 'system call'}: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what could not be written there
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
