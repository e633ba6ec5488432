"""R2 with a thousand jobs: what it costs to read all their counters and to decide."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
from bench_cost import cpu_s
from bench_daemon import ROOT
from bench_figure import Check, Section, Series, alternate
from bench_plan import Plan
from bench_start import Stamp
from bench_step import new_job

from iodaemon.config import load_policy
from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.job import JobId
from iodaemon.core.platform import Partition, PartitionId, Platform, Slot, SlotId
from iodaemon.core.state import State
from iodaemon.node.sampler.client import SamplerClient
from iodaemon.node.sampler.sweep import Settings
from iodaemon.supervisor.anchor import SAMPLER, command
from iodaemon.supervisor.cgroup import Cgroups, find_own_cgroup
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Limits

SWEEPS = 10
"""In each round."""


class Crowd:
    """So many jobs that run and do nothing."""

    def __init__(self, count: int, cgroups: Cgroups | None, command: list[str]) -> None:
        self._cgroups = cgroups
        self._command = command
        self._keys = [Key(number, 1) for number in range(1, count + 1)]
        self.jobs: dict[Key, int | None] = {}
        self.programs: list[int] = []

    def start(self) -> None:
        """Start all of them."""
        for key in self._keys:
            pid = self._start(key)
            self.programs.append(pid)
            self.jobs[key] = os.getpid() if self._cgroups is None else None

    def _start(self, key: Key) -> int:
        if self._cgroups is None:
            return os.posix_spawn(self._command[0], self._command, os.environ)
        place, _ = self._cgroups.prepare(key, Limits())
        os.close(place)
        pid = os.fork()
        if pid == 0:
            Path(self._cgroups.path(key), "cgroup.procs").write_text("0")
            os.execv(self._command[0], self._command)
        return pid

    def end(self) -> None:
        """End them and take their cgroups away."""
        for pid in self.programs:
            os.kill(pid, signal.SIGKILL)
        for pid in self.programs:
            os.waitpid(pid, 0)
        if self._cgroups is not None:
            for key in self._keys:
                self._cgroups.remove(key)


@contextlib.contextmanager
def _own_cgroups(base: Path) -> Iterator[Cgroups | None]:
    """Cgroups of our own, if they can be had; this process is back where it was afterwards."""
    try:
        cgroups = Cgroups(f"{find_own_cgroup()}/{base.name}")
        cgroups.open()
    except OSError:
        yield None
        return
    try:
        yield cgroups
    finally:
        cgroups.leave()


def _controller(count: int) -> Controller:
    """So many running jobs under the default policy."""
    slots = tuple(Slot(id=SlotId(number), cpus=(number,)) for number in range(count))
    state = State(Platform(partitions=(Partition(id=PartitionId(0), slots=slots),), devices=()))
    controller = Controller(
        state, load_policy(str(ROOT / "policies/default.toml"), overrides={}, search=()).rules
    )
    ids = [JobId(number) for number in range(1, count + 1)]
    controller.step([ev.JobSubmitted(at_s=0.0, job=new_job(number)) for number in ids])
    controller.step([ev.JobStarted(at_s=0.0, job_id=number, attempt=1) for number in ids])
    return controller


class Sampling:
    """A client and the sampler that it has had started, for these jobs."""

    def __init__(self, crowd: Crowd, cgroups: Cgroups | None) -> None:
        self._jobs = None if cgroups is None else f"{cgroups.base}/jobs"
        self._sampler: subprocess.Popen[bytes] | None = None
        self._runner = asyncio.Runner()
        self._client = SamplerClient(self._start, ())
        for key, holder in crowd.jobs.items():
            self._client.add(key, holder)

    def _start(self, address: str) -> bool:
        own = Settings(address=address, parent=os.getpid(), uid=os.geteuid(), jobs=self._jobs)
        self._sampler = subprocess.Popen(command(SAMPLER, json.dumps(own._asdict())))
        return True

    def read(self) -> ev.SampleTaken:
        """A sample, as the daemon has it."""
        now_s = time.monotonic()
        sample = self._runner.run(self._client.read(now_s))
        return ev.SampleTaken(at_s=now_s, sample=sample)

    def cpu_s(self) -> float:
        """CPU time of the sampler so far."""
        return 0.0 if self._sampler is None else cpu_s(self._sampler.pid)

    def close(self) -> None:
        """End both."""

        async def leave() -> None:
            self._client.close()

        self._runner.run(leave())
        self._runner.close()
        if self._sampler is not None:
            self._sampler.wait()


def _share(sweep: Callable[[], object], elsewhere_s: Callable[[], float] = lambda: 0.0) -> float:
    """Percent of a core when it is done once a second, with CPU time of another process."""
    before_s = time.process_time() + elsewhere_s()
    for _ in range(SWEEPS):
        sweep()
    return 100.0 * (time.process_time() + elsewhere_s() - before_s) / SWEEPS


def measure_sampling(plan: Plan) -> Section:
    """R2 with a thousand."""
    count = 200 if plan.is_quick else 1000
    with ExitStack() as stack:
        stamp = Stamp(plan.base / "sampling")
        stack.callback(stamp.close)
        cgroups = stack.enter_context(_own_cgroups(plan.base))
        crowd = Crowd(count, cgroups, stamp.idle)
        stack.callback(crowd.end)
        crowd.start()
        sampling = Sampling(crowd, cgroups)
        stack.callback(sampling.close)
        controller = _controller(count)
        samples: list[ev.SampleTaken] = []

        def read() -> None:
            samples.append(sampling.read())

        def decide() -> None:
            controller.step([samples.pop(0)])

        processes = [psutil.Process(pid) for pid in crowd.programs]
        variants: dict[str, Callable[[], float]] = {
            "read": lambda: _share(read, sampling.cpu_s),
            "decide": lambda: _share(decide),
            "psutil": lambda: _share(lambda: [one.io_counters() for one in processes]),
        }
        _share(read)  # descriptors are opened
        results = alternate(variants, plan.rounds, plan.tell("R2, 1,000 jobs"))
    means = "by cgroup" if cgroups is not None else "by the process tree: no cgroup is writable"
    both = [sum(pair) for pair in zip(results["read"], results["decide"], strict=True)]
    return Section(
        title=f"R2: reading and deciding for {count:,} sleeping jobs at 1 Hz, % of one core",
        series=[
            Series("reading and deciding", both, "%"),
            Series("psutil: io_counters() of kept processes", results["psutil"], "%", is_peer=True),
            Series("of it, reading", results["read"], "%"),
            Series("of it, deciding", results["decide"], "%"),
        ],
        checks=[Check("both", statistics.median(both), 0.3 * count / 1000, "%")],
        notes=[
            (
                f"{plan.rounds} rounds of {SWEEPS} sweeps, CPU time of daemon and sampler; "
                f"{means}. Ours: all of a job's processes, its CPU, memory and stall times; "
                "psutil: one process a job"
            )
        ],
    )
