"""The main job, on this machine's own disk, in at most 90 seconds: ``make demo``.

A private daemon in a temporary directory runs the same mix of real jobs twice, with regulation off
and on: sequential readers and writers that truly reach the disk, small random readers, programs
that compute and save a little, and one that forks many short children. It says what each job got,
whether regulation paid on this disk, and fails if a job was lost, run twice, left frozen, or did
not do its work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import toml

from iodaemon.api.client import Client
from iodaemon.api.model import Job, JobSpec
from iodaemon.core.measure import mean
from iodaemon.errors import NoDaemon
from iodaemon.kernels.builtin import BLOCK, FORK_BYTES, PAGE, read, write
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
    """A directory on a real disk, a private daemon in it, and the mix of jobs."""

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

    @contextlib.contextmanager
    def daemon(self, policy: str) -> Iterator[Client]:
        """A private daemon under this policy, gone afterwards with all that it made."""
        config = self.base / f"{policy}.toml"
        config.write_text(self.config(policy))
        log = (self.base / "daemon.log").open("ab")
        command = [sys.executable, "-m", "iodaemon.cli", "--config", str(config), "daemon"]
        with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                yield connect(self.runtime / "iod.sock", process)
            finally:
                process.send_signal(signal.SIGTERM)
                if process.wait(timeout=20) != 0:
                    sys.exit(f"the daemon failed; see {self.base / 'daemon.log'}")

    def config(self, policy: str) -> str:
        """Two sockets, divided by config where the machine has one."""
        cpus = sorted(os.sched_getaffinity(0))
        half = len(cpus) // 2
        divided = half > 0 and packages() == 1
        lists = [cpus[:half], cpus[half:]] if divided else []
        regulation = {"timeslice": TIMESLICE_S}
        if policy == "dynamic":
            regulation["io_bound"] = round(self.bound)
        return toml.dumps(
            {
                "state_dir": str(self.base / f"state-{policy}"),
                "runtime_dir": str(self.runtime),
                "policy": policy,
                "topology": {
                    "sockets": [",".join(map(str, one)) for one in lists],
                    "oversubscribe": max(1, -(-SLOTS // len(cpus))),
                },
                "regulation": regulation,
            }
        )

    def time_alone(self, client: Client) -> None:
        """How long each kind of light job takes with the machine to itself."""
        for kind in LIGHT:
            [job_id] = client.submit([self.spec(self.light(kind))], dict(os.environ))
            [job] = client.wait([job_id])["jobs"]
            self.alone_s[kind] = job["run_s"] + 1e-9
            say(f"a {kind} job alone takes {job['run_s']:.2f} s")

    def run(self, name: str, client: Client) -> Run:
        """Submit the mix, watch it, and return what became of it."""
        ids = client.submit([self.spec(work) for work in self.mix()], dict(os.environ))
        select = f"{ids[0]}-{ids[-1]}"
        began_s = seen_s = time.monotonic()
        above_s = 0.0
        while True:
            answer = client.jobs(select=select)
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


def connect(socket: Path, process: subprocess.Popen[bytes]) -> Client:
    """A client of a daemon that is just starting."""
    client = Client(str(socket))
    for _ in range(500):
        with contextlib.suppress(NoDaemon):
            client.jobs()
            return client
        if process.poll() is not None:
            break
        time.sleep(0.02)
    sys.exit(f"the daemon does not start; see {Path(process.args[4]).parent / 'daemon.log'}")  # type: ignore[index, arg-type]  # our own list


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
        probe = Path(parent) / f"iod-demo-probe-{os.getpid()}"
        try:
            os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
        except OSError:
            continue
        finally:
            probe.unlink(missing_ok=True)
        return Path(tempfile.mkdtemp(prefix="iod-demo-", dir=parent))
    sys.exit("no directory on a disk found; set TMPDIR to one")


def main() -> int:
    """Both runs and the verdict; 1 when anything was lost, doubled, frozen or left undone."""
    base = place()
    runtime = Path(tempfile.mkdtemp(prefix="iod-", dir="/tmp"))
    problems = [f"the demo did not finish; what there is lies in {base}"]
    try:
        problems = run_both(Demo(base, runtime))
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
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
        with demo.daemon(policy) as client:
            if not demo.alone_s:
                demo.time_alone(client)
            demo.ledger.unlink(missing_ok=True)
            run = demo.run(name, client)
        print_jobs(run)
        problems += demo.judge(run)
        results.append(measures(run, demo.alone_s))
    print_verdict(*results)
    return problems


if __name__ == "__main__":
    sys.exit(main())
