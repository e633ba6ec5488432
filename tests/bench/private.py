"""A private daemon for one run, with the settings of the benchmarks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from iodaemon.api.model import Job, JobSpec
from iodaemon.trial import private as trial

SLOTS = 8


class Private:
    """A daemon that is up. Use ``private`` to make one."""

    def __init__(self, daemon: trial.Private) -> None:
        self.log = daemon.log
        self.suspensions = daemon.suspensions
        self._daemon = daemon

    def run(self, specs: Sequence[JobSpec]) -> list[Job]:
        """Submit them together and wait for all.

        Raises:
            RuntimeError: one did not complete with exit code 0.
        """
        client = self._daemon.client
        ids = client.submit(specs, self._daemon.environment)
        jobs = sorted(client.wait(ids)["jobs"], key=lambda job: job["id"])
        for job in jobs:
            if job["state"] != "COMPLETED" or job["exit_code"] != 0:
                raise RuntimeError(
                    f"job {job['id']} ({job['name']}) is {job['state']}, exit code "
                    f"{job['exit_code']}; see {self.log}"
                )
        return jobs


@contextlib.contextmanager
def private(base: Path, policy: str, regulation: dict[str, float | str]) -> Iterator[Private]:
    """A daemon under this policy in a directory of its own, gone afterwards with its jobs."""
    with trial.private(base, settings(policy, regulation)) as daemon:
        yield Private(daemon)


def settings(policy: str, regulation: dict[str, float | str]) -> dict[str, object]:
    """Two sockets, divided by configuration, with room for all jobs at once."""
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    halves = [cpus[:half], cpus[half:]] if half else [cpus]
    return {
        "policy": policy,
        "topology": {
            "sockets": [",".join(map(str, one)) for one in halves],
            "slot": "thread",
            "oversubscribe": max(1, -(-SLOTS // len(cpus))),
        },
        "regulation": {"timeslice": "1 s", **regulation},
    }
