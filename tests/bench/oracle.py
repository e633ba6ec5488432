"""The same commands with a fixed number of them at a time, as ``xargs -P`` runs them.

A job starts when it has arrived, all jobs before it have started and fewer than that number run.
No daemon takes part, so the best such number is what a rule can be compared with.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from beds.bed import Work

from iodaemon.trial.private import MARK, kill_marked


class Span(NamedTuple):
    """When a job arrived, started and ended, in seconds since the first arrival."""

    arrival_s: float
    start_s: float
    end_s: float


class TooLong(Exception):
    """The run was given up at its time limit; nothing of it is left."""


def run_fixed(
    work: Sequence[Work], at_once: int, mark: str, *, limit_s: float | None = None
) -> list[Span]:
    """Run all jobs, so many of them at a time; one span a job, in their order.

    Args:
        work: the jobs, in the order of their arrival.
        at_once: how many may run at a time.
        mark: in the environment of all that is started, so that all of it can be ended.
        limit_s: how long it may take. None: as long as it takes.

    Raises:
        TooLong: it takes longer.
        RuntimeError: a job failed.
    """
    try:
        return _run(work, at_once, {**os.environ, MARK: mark}, limit_s)
    finally:
        kill_marked(mark, patience_s=0.0)


def _run(
    work: Sequence[Work], at_once: int, environment: Mapping[str, str], limit_s: float | None
) -> list[Span]:
    began_s = time.monotonic()
    running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
    starts_s: list[float] = []
    ends_s: dict[int, float] = {}
    poll = select.poll()
    with contextlib.ExitStack() as undo:
        while len(ends_s) < len(work):
            now_s = time.monotonic() - began_s
            if limit_s is not None and now_s > limit_s:
                raise TooLong
            begun = len(starts_s)
            has_room = begun < len(work) and len(running) < at_once
            if has_room and work[begun].arrival_s <= now_s:
                process = _start(work[begun], environment)
                undo.callback(_end, process)
                fd = os.pidfd_open(process.pid)
                undo.callback(os.close, fd)
                poll.register(fd, select.POLLIN)
                running[fd] = (begun, process)
                starts_s.append(now_s)
                continue
            until_s = [work[begun].arrival_s] if has_room else []
            until_s += [] if limit_s is None else [limit_s]
            wait_ms = max(1.0, (min(until_s) - now_s) * 1000.0) if until_s else None
            for fd, _ in poll.poll(wait_ms):
                poll.unregister(fd)
                number, process = running.pop(fd)
                if process.wait() != 0:
                    name = work[number].spec["name"]
                    raise RuntimeError(f"job {number + 1} ({name}) ended with {process.returncode}")
                ends_s[number] = time.monotonic() - began_s
    return [
        Span(one.arrival_s, starts_s[number], ends_s[number]) for number, one in enumerate(work)
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, if it runs; what it has started itself is found by its mark."""
    process.kill()
    process.wait()


def _start(one: Work, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        one.spec["command"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment,
        start_new_session=True,
    )
