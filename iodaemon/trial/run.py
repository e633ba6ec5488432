"""One run: all jobs submitted together to a private daemon, watched until the last has ended."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

import msgspec

from iodaemon.api.client import Client
from iodaemon.api.model import FINAL_STATES, Job, JobSpec
from iodaemon.core.platform import DeviceId
from iodaemon.ending import on_ending
from iodaemon.errors import IodaemonError, RequestError
from iodaemon.node.devices import read_disks
from iodaemon.node.sampler.proc_files import known, parse_meminfo
from iodaemon.text import printable
from iodaemon.trial.latency import Look
from iodaemon.trial.private import Private, private
from iodaemon.trial.site import Site

_POLL_S: Final = 0.25
_INTERVAL_S: Final = 0.5
"""Between two looks at disks and memory."""
_FEW_LOOKS: Final = 4
"""Two of them are at the beginning and at the end."""
_TAIL_LINES: Final = 10
"""Of the output of a job that failed."""
_LEAST_S: Final = 1e-6
_WELL: Final = ("COMPLETED", 0)


class CommandFailedError(RequestError):
    """A job did not do its work; ``tail`` is what it said last, a line each."""

    def __init__(self, message: str, tail: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tail = tail


class InterruptedTrialError(Exception):
    """A signal asked the trial to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@contextlib.contextmanager
def interruptible(on_signal: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Obey signals that end between two steps, so that what was begun is tidied up in order.

    An exception out of nowhere would tear holes into the tidying itself, so further signals change
    nothing: it takes seconds. The first one calls ``on_signal``, to say that it was heard.

    Yields:
        To be called between two steps; raises InterruptedTrialError once a signal came.
    """
    received: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            on_signal()

    def check() -> None:
        if received:
            raise InterruptedTrialError(received[0])

    with on_ending(receive):
        yield check


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one run.

    Attributes:
        jobs: in the order of submission, all of them completed.
        looks: from the submission to the last end.
        suspensions: so many.
    """

    jobs: tuple[Job, ...]
    looks: tuple[Look, ...]
    suspensions: int

    @property
    def makespan_s(self) -> float:
        last_s = max(job["ended_s"] or 0.0 for job in self.jobs)
        return max(_LEAST_S, last_s - min(job["submitted_s"] for job in self.jobs))

    @property
    def moved_bytes(self) -> int:
        """Read and written by all jobs, as far as it is known."""
        return sum((job["read_bytes"] or 0) + (job["written_bytes"] or 0) for job in self.jobs)

    @property
    def used_ratio(self) -> float | None:
        """Most memory that was in use, of all."""
        return max((x.used_ratio for x in self.looks if x.used_ratio is not None), default=None)


def short_notes(raws: Sequence[Raw]) -> tuple[str, ...]:
    """What a reader must know of runs that were hardly looked at; nothing of others."""
    short = sum(len(raw.looks) < _FEW_LOOKS for raw in raws)
    if not short:
        return ()
    note = (
        f"{short} of {len(raws)} runs took less than {(_FEW_LOOKS - 2) * _INTERVAL_S:g} s: "
        f"waiting, serving and contention are looked at every {_INTERVAL_S:g} s, and say little "
        "of them; make their jobs larger"
    )
    return (note,)


def run_s(job: Job) -> float:
    """From start to end, suspended time included: what Lv et al. call a job's run time."""
    return max(_LEAST_S, (job["ended_s"] or 0.0) - (job["started_s"] or 0.0))


@contextlib.contextmanager
def fresh_daemon(place: Site, settings: Mapping[str, Any]) -> Iterator[Private]:
    """A private daemon, with what the workload says of machine and regulation, and clean caches."""
    workload = place.workload
    common = {"regulation": workload.regulation} if workload.regulation else {}
    topology = msgspec.to_builtins(workload.topology)
    merged = {"topology": topology, **common, **settings}
    with private(place.runtime, merged, calibration=place.calibration) as daemon:
        place.clean()
        yield daemon


def run_jobs(
    daemon: Private,
    specs: Sequence[JobSpec],
    place: Site,
    on_look: Callable[[Mapping[str, int]], None],
    *,
    what: str,
) -> Raw:
    """Submit all jobs to a daemon of theirs, and wait until they have ended.

    Args:
        on_look: is given the states' codes with their numbers of jobs; raises where the trial is to
            end.
        what: the run, for messages.

    Raises:
        CommandFailedError: a job did not end well; the others are left to the daemon's end.
        RequestError: the daemon refuses a job, or has set a rule of the policy aside.
    """
    suspended = daemon.suspensions()
    looks = [_look(place.devices)]
    ids = daemon.client.submit(specs, daemon.environment)
    while True:
        jobs = daemon.client.jobs(select=f"{ids[0]}-{ids[-1]}")["jobs"]
        for job in jobs:
            if job["state"] in FINAL_STATES and (job["state"], job["exit_code"]) != _WELL:
                raise _failure(daemon.client, job, what)
        on_look(Counter(job["code"] for job in jobs))
        if all(job["state"] in FINAL_STATES for job in jobs):
            break
        if time.monotonic() >= looks[-1].at_s + _INTERVAL_S:
            looks.append(_look(place.devices))
        time.sleep(_POLL_S)
    looks.append(_look(place.devices))
    check_rules(daemon.client.policy(), what)
    return Raw(
        jobs=tuple(sorted(jobs, key=lambda job: job["id"])),
        looks=tuple(looks),
        suspensions=daemon.suspensions() - suspended,
    )


def check_rules(policy: Mapping[str, Any], what: str) -> None:
    """Refuse a run of which a part was under another policy than it is called by.

    Args:
        policy: as the daemon shows it after the run.
        what: the run, for messages.
    """
    for fault in policy.get("set_aside", ()):
        raise RequestError(
            f"{what}: {fault['kind']} rule {fault['rule']!r} failed at {fault['place']}: "
            f"{fault['problem']}; mend it, 'iod policy check' runs it"
        )


def _look(devices: Sequence[DeviceId]) -> Look:
    return Look(at_s=time.monotonic(), devices=read_disks(devices), used_ratio=_used_ratio())


def _used_ratio() -> float | None:
    read = known("/proc/meminfo", parse_meminfo)
    if read is None or read.available_bytes is None:
        return None
    return 1.0 - read.available_bytes / read.total_bytes


def _failure(client: Client, job: Job, what: str) -> CommandFailedError:
    how = f"exit code {job['exit_code']}" if job["signal"] is None else f"signal {job['signal']}"
    if job["reason"] and job["reason"]["text"]:
        how = job["reason"]["text"]
    tail = _tail(client, job)
    said = f"it said last: {tail[-1]!r}" if tail else "it said nothing"
    return CommandFailedError(
        f"{what}: job {job['name']} is {job['state']}: {how}; {said}; mend it and try again", tail
    )


def _tail(client: Client, job: Job) -> tuple[str, ...]:
    """The last lines of what it said, errors last."""
    lines: list[str] = []
    for stream in ("stdout", "stderr") if job["stdout"] != job["stderr"] else ("stdout",):
        with contextlib.suppress(IodaemonError):
            text = b"".join(client.logs(job["id"], stream_name=stream, tail=_TAIL_LINES))
            lines += [printable(line) for line in text.decode(errors="replace").splitlines()]
    return tuple(line for line in lines if line.strip())[-_TAIL_LINES:]
