"""The main job, on this machine's own disk, in at most 90 seconds: ``make demo``.

A private daemon in a temporary directory runs the same mix of real jobs twice, with regulation off
and on: sequential readers and writers that truly reach the disk, small random readers, programs
that compute and save a little, and one that forks many short children. It says what each job got,
whether regulation paid on this disk, and fails if a job was lost, run twice, left frozen, or did
not do its work.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from iodaemon.api.model import Job, JobSpec
from iodaemon.core.measure import mean
from iodaemon.errors import BackendError
from iodaemon.kernels.builtin import BLOCK, FORK_BYTES, PAGE, read, write
from iodaemon.trial.directory import own_directory
from iodaemon.trial.machine import is_direct_possible
from iodaemon.trial.private import Private, private
from iodaemon.units import format_bytes, format_rate

SLOTS = 8
"""Jobs at once: enough for the heavy ones to meet. Cores are shared where there are fewer."""
FILE_BYTES = 256 * BLOCK
BUSY_S = 14.0
"""How long the heavy jobs together keep the disk busy; two runs and all else stay below 90 s."""
BOUND_SHARE = 0.6
"""``io_bound`` as a share of what the disk delivered to four readers at once: Lv et al. bound
their disk at 40 of about 48 MB/s, and fast disks leave less to the sum of the jobs."""
TIMESLICE_S = 0.5
LONGEST_RUN_S = 40.0
LIGHT = ("random", "compute")
COMPUTE_ROUNDS = 60


class Work(NamedTuple):
    """One job of the mix: a kernel, its bytes or rounds, and how many bytes must be counted."""

    kind: str
    file: str
    amount: int
    least_bytes: int


class Run(NamedTuple):
    """One run of the whole mix."""

    name: str
    jobs: list[Job]
    above_s: float


class Demo:
    """A directory on a real disk, one for private daemons, and the mix of jobs."""

    def __init__(self, base: Path, runtime: Path) -> None:
        self.base = base
        self.runtime = runtime
        self.ledger = base / "ledger"
        self.rate = 0.0
        self.bound = 0.0
        self.alone_s: dict[str, float] = {}

    def prepare(self) -> None:
        """Make the files and see what the disk delivers to four readers at once."""
        say(f"writing {format_bytes(4 * FILE_BYTES)} below {self.base} past the page cache")
        for number in range(4):
            write(str(self.base / f"data{number}"), FILE_BYTES)
        began_s = time.monotonic()
        with ThreadPoolExecutor(4) as readers:
            list(readers.map(lambda n: read(str(self.base / f"data{n}"), FILE_BYTES), range(4)))
        self.rate = 4 * FILE_BYTES / (time.monotonic() - began_s)
        self.bound = BOUND_SHARE * self.rate
        say(
            f"the disk gave four readers {format_rate(self.rate)} together; "
            f"io_bound is set to {format_rate(self.bound)}"
        )

    def mix(self) -> list[Work]:
        """The jobs, in the order of submission: the heavy ones first, as it happens in life."""
        each = max(64 * BLOCK, int(self.rate * BUSY_S / 5) // BLOCK * BLOCK)
        data = [str(self.base / f"data{number}") for number in range(4)]
        return [
            Work("read", data[0], each, each),
            Work("write", str(self.base / "out0"), each // 2, each // 2),
            Work("read", data[1], each, each),
            Work("fork", data[3], 150 * FORK_BYTES, 150 * FORK_BYTES),
            self.light("random"),
            self.light("compute"),
            Work("write", str(self.base / "out1"), each // 2, each // 2),
            self.light("random"),
            Work("read", data[2], each, each),
            self.light("compute"),
        ]

    def light(self, kind: str) -> Work:
        """A job that does little I/O, or small I/O."""
        if kind == "random":
            count = 20_000 if self.rate > 500e6 else 200
            return Work(kind, str(self.base / "data3"), count * PAGE, count * PAGE)
        return Work(kind, str(self.base / f"checkpoint{time.monotonic_ns()}"), COMPUTE_ROUNDS, 0)

    def spec(self, work: Work) -> JobSpec:
        """The job as it is submitted."""
        amount = "--rounds" if work.kind == "compute" else "--size"
        return {
            "command": [
                *(sys.executable, "-P", "-m", "iodaemon.kernels.builtin", work.kind, work.file),
                *(amount, str(work.amount), "--ledger", str(self.ledger)),
            ],
            "name": work.kind,
            "cwd": str(self.base),
            "walltime_s": LONGEST_RUN_S,
        }

    def settings(self, policy: str) -> dict[str, Any]:
        """Two sockets, divided by configuration where the machine has one."""
        cpus = sorted(os.sched_getaffinity(0))
        half = len(cpus) // 2
        divided = half > 0 and packages() == 1
        lists = [cpus[:half], cpus[half:]] if divided else []
        regulation = {"timeslice": TIMESLICE_S}
        if policy == "dynamic":
            regulation["io_bound"] = round(self.bound)
        return {
            "policy": policy,
            "topology": {
                "sockets": [",".join(map(str, one)) for one in lists],
                "oversubscribe": max(1, -(-SLOTS // len(cpus))),
            },
            "regulation": regulation,
        }

    def time_alone(self, daemon: Private) -> None:
        """How long each kind of light job takes with the machine to itself."""
        for kind in LIGHT:
            [job_id] = daemon.client.submit([self.spec(self.light(kind))], daemon.environment)
            [job] = daemon.client.wait([job_id])["jobs"]
            self.alone_s[kind] = job["run_s"] + 1e-9
            say(f"a {kind} job alone takes {job['run_s']:.2f} s")

    def run(self, name: str, daemon: Private) -> Run:
        """Submit the mix, watch it, and return what became of it."""
        specs = [self.spec(work) for work in self.mix()]
        ids = daemon.client.submit(specs, daemon.environment)
        select = f"{ids[0]}-{ids[-1]}"
        began_s = seen_s = time.monotonic()
        above_s = 0.0
        while True:
            answer = daemon.client.jobs(select=select)
            now_s = time.monotonic()
            rate = (answer["node"]["read_bytes_per_s"] or 0.0) + (
                answer["node"]["written_bytes_per_s"] or 0.0
            )
            above_s += now_s - seen_s if rate > self.bound else 0.0
            seen_s = now_s
            progress(name, now_s - began_s, answer["jobs"], rate)
            if all(job["ended_s"] is not None for job in answer["jobs"]):
                return Run(name, answer["jobs"], above_s)
            time.sleep(0.25)

    def judge(self, run: Run) -> list[str]:
        """What went wrong: lost, run twice, frozen, or work not done; empty when all is well."""
        started, done = Counter[str](), Counter[str]()
        for line in self.ledger.read_text().splitlines():
            word, job_id = line.split()
            (started if word == "start" else done)[job_id] += 1
        problems = []
        for job, work in zip(run.jobs, self.mix(), strict=True):
            name = f"{run.name}: job {job['id']} ({job['name']})"
            key = str(job["id"])
            if job["state"] != "COMPLETED" or job["exit_code"] != 0:
                problems.append(f"{name} is {job['state_shown']}, exit code {job['exit_code']}")
            if started[key] != 1 or done[key] != 1:
                problems.append(f"{name} began {started[key]} times, finished {done[key]} times")
            if total_bytes(job) < 0.99 * work.least_bytes:
                problems.append(f"{name} moved {total_bytes(job)} of {work.least_bytes} bytes")
        return problems


def packages() -> int:
    """How many CPU packages this machine has."""
    paths = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    return len({path.read_text() for path in paths})


def total_bytes(job: Job) -> int:
    """Read and written."""
    return (job["read_bytes"] or 0) + (job["written_bytes"] or 0)


def say(text: str) -> None:
    """A line of progress, on standard error."""
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def progress(name: str, elapsed_s: float, jobs: list[Job], rate: float) -> None:
    """One line that is overwritten on a terminal, and one every five seconds elsewhere."""
    states = Counter(job["code"] for job in jobs)
    ended = sum(1 for job in jobs if job["ended_s"] is not None)
    text = (
        f"[{name}] {elapsed_s:5.1f} s  running {states['R']}  suspended {states['SI']}  "
        f"queued {states['PD']}  done {ended}/{len(jobs)}  I/O {format_rate(rate)}"
    )
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif elapsed_s % 5.0 < 0.26:
        print(text, file=sys.stderr, flush=True)


def print_jobs(run: Run) -> None:
    """One line a job."""
    print(f"\nregulation {run.name}")
    print("  job kind     socket   run s  suspended s       bytes  exit")
    for job in run.jobs:
        suspended_s = job["suspended_io_s"] + job["suspended_user_s"]
        print(
            f"  {job['id']:>3} {job['name']:<8} {job['socket']!s:>6} {job['run_s']:>7.2f} "
            f"{suspended_s:>12.2f} {format_bytes(total_bytes(job)):>11} {job['exit_code']!s:>5}"
        )


def measures(run: Run, alone_s: dict[str, float]) -> dict[str, float]:
    """What the run was worth."""
    starts = [job["submitted_s"] for job in run.jobs]
    ends = [job["ended_s"] or 0.0 for job in run.jobs]
    light = [job for job in run.jobs if job["name"] in alone_s]
    slowdowns = [
        ((job["ended_s"] or 0.0) - (job["started_s"] or 0.0)) / alone_s[job["name"]]
        for job in light
    ]
    return {
        "makespan s": max(ends) - min(starts),
        "mean turnaround s": mean([e - s for e, s in zip(ends, starts, strict=True)]),
        "slowdown of the light jobs": mean(slowdowns),
        "seconds above the bound": run.above_s,
        "GB done": sum(map(total_bytes, run.jobs)) / 1e9,
    }


def print_verdict(off: dict[str, float], on: dict[str, float]) -> None:
    """Both runs side by side, and plainly whether it paid."""
    print(f"\n{'':<28}{'off':>9}{'on':>9}")
    for key, value in off.items():
        print(f"{key:<28}{value:>9.2f}{on[key]:>9.2f}")
    change = {key: 100.0 * (on[key] / off[key] - 1.0) for key in off if off[key] > 0}
    figures = (
        f"makespan {change['makespan s']:+.0f} %, "
        f"mean turnaround {change['mean turnaround s']:+.0f} %, "
        f"slowdown of the light jobs {change['slowdown of the light jobs']:+.0f} %"
    )
    gains = [change[key] < -3.0 for key in ("makespan s", "mean turnaround s")]
    harms = [change[key] > 3.0 for key in ("makespan s", "mean turnaround s")]
    if any(harms):
        verdict = "Regulation did not pay on this disk"
    elif any(gains):
        verdict = "Regulation paid on this disk"
    else:
        verdict = "Regulation made no difference on this disk"
    print(f"\n{verdict}: {figures} (one run each).")


def place() -> Path:
    """A directory on a disk that can be read past the page cache."""
    for parent in (tempfile.gettempdir(), "/var/tmp", str(Path.cwd())):
        if os.access(parent, os.W_OK) and is_direct_possible(Path(parent)):
            return Path(tempfile.mkdtemp(prefix="iod-demo-", dir=parent))
    sys.exit("no directory on a disk found; set TMPDIR to one")


def main() -> int:
    """Both runs and the verdict; 1 when anything was lost, doubled, frozen or left undone."""
    base = place()
    problems = [f"the demo did not finish; what there is lies in {base}"]
    try:
        with own_directory(Path("/tmp")) as runtime:
            problems = run_both(Demo(base, runtime))
    except BackendError as error:
        problems = [str(error)]
    finally:
        if not problems:
            shutil.rmtree(base)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def run_both(demo: Demo) -> list[str]:
    """Regulation off, then on; prints everything, returns what went wrong."""
    demo.prepare()
    problems: list[str] = []
    results = []
    for name, policy in (("off", "none"), ("on", "dynamic")):
        with private(demo.runtime, demo.settings(policy)) as daemon:
            if not demo.alone_s:
                demo.time_alone(daemon)
            demo.ledger.unlink(missing_ok=True)
            run = demo.run(name, daemon)
        shutil.copy(daemon.log, demo.base)
        print_jobs(run)
        problems += demo.judge(run)
        results.append(measures(run, demo.alone_s))
    print_verdict(*results)
    return problems


if __name__ == "__main__":
    sys.exit(main())
