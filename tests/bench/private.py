"""A private daemon for the batches of one policy, with the settings of the benchmark."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import toml
from beds.bed import Bed, Work
from oracle import Span

from iodaemon.api.model import Job
from iodaemon.config import load_config
from iodaemon.errors import ConfigError
from iodaemon.trial import private as trial

MOST_TIMES = 64
"""How many jobs may share a CPU at most (iodaemon.config)."""


class Batch(NamedTuple):
    """What became of jobs that were submitted to the daemon.

    Attributes:
        spans: one a job, in the order of submission.
        suspensions: of all of them.
        most_at_once: how many of them were running, and not suspended, at the same time.
        moved_bytes: read and written by all of them.
    """

    spans: list[Span]
    suspensions: int
    most_at_once: int
    moved_bytes: int


class Private:
    """A daemon that is up. Use ``private`` to make one."""

    def __init__(self, daemon: trial.Private) -> None:
        self.log = daemon.log
        self._daemon = daemon

    def run(self, work: Sequence[Work]) -> Batch:
        """Submit each job at its arrival and wait for all.

        Raises:
            RuntimeError: one did not complete with exit code 0, or a rule failed.
        """
        client = self._daemon.client
        ids: list[int] = []
        began_s = time.monotonic()
        for arrival_s, several in groupby(work, key=lambda one: one.arrival_s):
            time.sleep(max(0.0, began_s + arrival_s - time.monotonic()))
            ids += client.submit([one.spec for one in several], self._daemon.environment)
        jobs = sorted(client.wait(ids)["jobs"], key=lambda job: job["id"])
        for job in jobs:
            if job["state"] != "COMPLETED" or job["exit_code"] != 0:
                raise RuntimeError(
                    f"job {job['id']} ({job['name']}) is {job['state']}, exit code "
                    f"{job['exit_code']}; see {self.log}"
                )
        for fault in client.policy().get("set_aside", ()):
            raise RuntimeError(f"rule {fault['rule']} failed: {fault['problem']}; see {self.log}")
        return self._measured(jobs)

    def _measured(self, jobs: Sequence[Job]) -> Batch:
        ids = {job["id"] for job in jobs}
        events = self._daemon.client.events(since_s=0.0, follow=False)
        steps = [
            (step.get("before"), step.get("after"))
            for step in events
            if step.get("job_id") in ids and "after" in step
        ]
        running = most = 0
        for before, after in steps:
            running += (after == "RUNNING") - (before == "RUNNING")
            most = max(most, running)
        began_s = min(job["submitted_s"] for job in jobs)
        return Batch(
            spans=[
                Span(
                    job["submitted_s"] - began_s,
                    (job["started_s"] or 0.0) - began_s,
                    (job["ended_s"] or 0.0) - began_s,
                )
                for job in jobs
            ],
            suspensions=sum(step == ("RUNNING", "SUSPENDED_IO") for step in steps),
            most_at_once=most,
            moved_bytes=sum((job["read_bytes"] or 0) + (job["written_bytes"] or 0) for job in jobs),
        )


@contextlib.contextmanager
def private(
    base: Path, policy: str, bed: Bed, regulation: Mapping[str, float | str]
) -> Iterator[Private]:
    """A daemon under this policy in a directory of its own, gone afterwards with its jobs.

    Args:
        base: where its directory is made.
        policy: name or path.
        bed: a batch of it is to run.
        regulation: settings of the rule beside the timeslice.
    """
    given = settings(base, policy, len(bed.work), regulation)
    with trial.private(base, given, launcher=bed.launcher) as daemon:
        yield Private(daemon)


def settings(
    base: Path, policy: str, jobs: int, regulation: Mapping[str, float | str]
) -> dict[str, Any]:
    """The machine as it is detected, one slot a logical CPU, and enough of them for all jobs.

    Only ``none`` and ``dynamic`` need that: the others choose how many run, where they can.
    """
    cpus = len(os.sched_getaffinity(0))
    enough = min(MOST_TIMES, -(-jobs // cpus))
    chosen: dict[str, Any] = {
        "policy": policy,
        "topology": {"slot": "thread", "oversubscribe": "auto"},
        "regulation": {"timeslice": "1 s", **regulation},
    }
    if policy in ("none", "dynamic") or not is_accepted(base, chosen):
        chosen["topology"]["oversubscribe"] = enough
    return chosen


def is_accepted(base: Path, chosen: Mapping[str, Any]) -> bool:
    """Whether this version of the daemon has such settings."""
    path = base / "tried.toml"
    path.write_text(toml.dumps(chosen))
    try:
        load_config(path, {}, os.getuid(), {})
    except ConfigError:
        return False
    return True
