"""The daemon's side of the sampler: has one started, asks for sweeps, and knows the totals.

What has to outlive a sampler is kept here: what was seen of each job at most, and what was waited
for outside of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from iodaemon.core.job import IoTotals, JobId
from iodaemon.core.platform import Device, DeviceId, Partition
from iodaemon.core.sample import JobCounters, NodeCounters, Sample
from iodaemon.node.devices import disk_counters, find_mount_devices, find_number
from iodaemon.node.sampler.proc_files import parse_mount
from iodaemon.supervisor.ledger import Key, Use
from iodaemon.supervisor.syscalls import peer_of

log = logging.getLogger(__name__)

_START_WITHIN_S: Final = 2.0
"""It begins in 0.1 s on an idle machine. A sample does without one that takes longer."""
_AGAIN_S: Final = 5.0
"""Before another one is asked for in place of one that never came."""
_ANSWER_WITHIN_S: Final = 10.0
"""After that another one is started: this one is stopped, or hangs unnoticed (``Watch``)."""
_MOST_TRIES: Final = 8
"""Samplers that may end in one sample."""
_APART: Final = 64
"""Samples for which a job is left out that ended two samplers, one after the other."""
_MOUNTS_KEPT: Final = 256
_LARGEST: Final = 1 << 26
"""Bytes of an answer, at most: of 100,000 jobs with as many devices each as are common."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_GAUGES: Final = (
    *("cpu_s", "user_s", "io_stall_s", "resident_bytes", "memory_stall_s", "output_bytes"),
    *("device_read_bytes", "device_written_bytes"),
)
"""In a row, fields of ``JobCounters``."""
_GAUGE_FIELDS: Final = msgspec.Meta(min_length=len(_GAUGES), max_length=len(_GAUGES))
_DISK_FIELDS: Final = msgspec.Meta(min_length=17, max_length=17)


class _Row(msgspec.Struct, array_like=True, frozen=True, gc=False):
    job: _Count
    attempt: _Count
    silent_pid: _Count | None
    moved: tuple[_Count, _Count, _Count, _Count, _Count, _Count] | None
    gauges: Annotated[tuple[int | float | None, ...], _GAUGE_FIELDS]


class _Answer(msgspec.Struct, frozen=True):
    """What the sampler says (the package's ``__init__``)."""

    silent: tuple[_Count, _Count] | None = None
    jobs: tuple[_Row, ...] = ()
    disks: dict[DeviceId, Annotated[tuple[_Count, ...], _DISK_FIELDS]] = {}
    node: NodeCounters = NodeCounters()
    files: tuple[tuple[_Count, _Count, list[str] | None], ...] = ()


class Track:
    """What is known of one job.

    Attributes:
        holder: the process that holds it; None: it has a cgroup.
        reaped: what its processes moved that were waited for; None: the supervisor has not said.
        row: the last one; None: there was none.
        highest: totals of what it moved; no counter of them falls.
        looks: disks that its open files were on at the last two looks; None: not known.
        devices: at any of the two, for programs close and reopen files; None: not known.
        silent: the process that a sampler could not read; None: there is none.
        apart_until: which sample is the next that it is in; 0: it is in all.
    """

    def __init__(self, key: Key, holder: int | None, reaped: Use | None) -> None:
        self.key = key
        self.holder = holder
        self.reaped = reaped
        self.row: _Row | None = None
        self.highest = Use()
        self.looks: tuple[frozenset[DeviceId] | None, ...] = ()
        self.devices: tuple[DeviceId, ...] | None = None
        self.silent: int | None = None
        self.apart_until = 0

    def counters(self) -> JobCounters:
        """Its counters, as far as they are known."""
        row = self.row
        if row is None:
            return JobCounters(silent_pid=self.silent, devices=self.devices)
        known: dict[str, Any] = dict(zip(_GAUGES, row.gauges, strict=True))
        if self.reaped is not None and row.moved is not None:
            total = map(int.__add__, self.reaped, row.moved)
            highest = self.highest = Use(*map(max, self.highest, total))
            known |= {
                "read_bytes": highest.read_bytes,
                "written_bytes": max(0, highest.written_bytes - highest.cancelled_bytes),
                "operations": highest.calls,
                "logical_bytes": highest.logical_bytes,
            }
        return JobCounters(**known, devices=self.devices, silent_pid=row.silent_pid)

    def take_look(self, found: frozenset[DeviceId] | None) -> None:
        self.looks = found, *self.looks[:1]
        known = [look for look in self.looks if look is not None]
        self.devices = tuple(sorted(frozenset().union(*known))) if known else None


class _Line(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int


class SamplerClient:
    """Samples of jobs, devices and the node. Use from one event loop.

    Args:
        start: has a sampler started that connects to this address (``sweep.Settings``); False: it
            cannot be had now.
        devices: leaf disks to read.
        partitions: whose CPUs' idle time is read.
    """

    def __init__(
        self,
        start: Callable[[str], bool],
        devices: Sequence[Device],
        partitions: Sequence[Partition] = (),
        *,
        root: Path = Path("/"),
    ) -> None:
        self._start = start
        self._devices = {device.id: find_number(device.id, root) for device in devices}
        cpus = {each.id: [c for slot in each.slots for c in slot.cpus] for each in partitions}
        self._opening = {"devices": self._devices, "cpus": cpus}
        self._decode = msgspec.json.Decoder(_Answer).decode
        self._find_devices = lru_cache(_MOUNTS_KEPT)(lambda line: _find_devices(line, root))
        self._tracks: dict[JobId, Track] = {}
        self._counters: dict[JobId, JobCounters] = {}
        self._unknown: set[JobId] = set()
        self._used: dict[JobId, Use] = {}
        self._is_told = False
        self._samples = 0
        self._listener: socket.socket | None = None
        self._asked_s = 0.0
        self._line: _Line | None = None

    def add(self, key: Key, holder: int | None = None, *, is_adopted: bool = False) -> None:
        """Read this attempt from now on.

        Args:
            holder: the process that holds it; None: it has a cgroup.
            is_adopted: what was waited for of it is not known yet.
        """
        job_id = JobId(key.job)
        self.remove(job_id)
        self._tracks[job_id] = Track(key, holder, None if is_adopted else Use())
        self._counters[job_id] = JobCounters()
        self._unknown.add(job_id)

    def remove(self, job_id: JobId) -> None:
        """Read it no more."""
        self._is_told = False
        self._tracks.pop(job_id, None)
        self._counters.pop(job_id, None)
        self._used.pop(job_id, None)
        self._unknown.discard(job_id)

    def take_use(self, key: Key, use: Mapping[str, int]) -> None:
        """Take in what was waited for of an attempt; it counts from the next sweep on.

        Who ends during a sweep is missing in it once, never doubled.
        """
        if self._find(*key) is not None:
            self._used[JobId(key.job)] = Use(**use)

    def known_totals(self, job_id: JobId) -> IoTotals:
        """The job's I/O as last read."""
        counters = self._counters.get(job_id, JobCounters())
        return IoTotals(
            read_bytes=counters.read_bytes,
            written_bytes=counters.written_bytes,
            operations=counters.operations,
        )

    async def read(self, at_s: float) -> Sample:
        """One sample of everything; what no sampler says is unknown."""
        self._samples += 1
        used, self._used = self._used, {}
        for job_id, use in used.items():
            self._tracks[job_id].reaped = use
        answer = await self._sweep(sorted({*used, *self._unknown}))
        if answer is None:
            return Sample(at_s=at_s, jobs={job_id: JobCounters() for job_id in self._tracks})
        self._take_jobs(answer, used)
        return Sample(
            at_s=at_s,
            jobs=dict(self._counters),
            devices={
                name: disk_counters(fields)
                for name, fields in answer.disks.items()
                if name in self._devices
            },
            node=answer.node,
        )

    def ask_again(self) -> None:
        """There is another supervisor: what the one before was asked for may be lost."""
        if self._listener is not None:
            self._start(self._listener.getsockname().hex())

    def close(self) -> None:
        """End the sampler, and close what is open."""
        self._hang_up()
        self._close_listener()

    # -- what the sampler says ---------------------------------------------------------------------

    def _take_jobs(self, answer: _Answer, used: Iterable[JobId]) -> None:
        touched = {*used, *self._unknown}
        for row in answer.jobs:
            if (track := self._find(row.job, row.attempt)) is not None:
                track.row, track.silent = row, row.silent_pid
                touched.add(JobId(row.job))
        for job, attempt, lines in answer.files:
            if (track := self._find(job, attempt)) is not None:
                found = None if lines is None else chain(*map(self._find_devices, lines))
                track.take_look(None if found is None else frozenset(found))
                touched.add(JobId(job))
        for job_id in touched & self._tracks.keys():
            self._set(job_id)

    def _set(self, job_id: JobId) -> None:
        """The same object as before says that the job has not run; of one unknown nobody knows."""
        counters = self._tracks[job_id].counters()
        if counters.read_bytes is None:
            self._unknown.add(job_id)
        elif counters == self._counters[job_id]:
            return
        else:
            self._unknown.discard(job_id)
        self._counters[job_id] = counters

    def _find(self, job: int, attempt: int) -> Track | None:
        """None: the job is gone since the sweep began, or has another attempt."""
        track = self._tracks.get(JobId(job))
        return track if track is not None and track.key.attempt == attempt else None

    def _set_aside(self, job: int, pid: int) -> None:
        """Remember which process a sampler could not read."""
        if (track := self._tracks.get(JobId(job))) is not None:
            if track.silent is not None:
                track.apart_until = self._samples + _APART
            track.silent, track.row = pid, None
            self._set(JobId(job))

    # -- the line ----------------------------------------------------------------------------------

    async def _sweep(self, wanted: list[JobId]) -> _Answer | None:
        """One sweep, by another sampler where one ends; None: there is none."""
        unexpected = 0
        for _ in range(_MOST_TRIES):
            if self._line is None and not await self._connect():
                return None
            line = self._line
            assert line is not None
            try:
                line.writer.write(self._request(wanted))
                said = await asyncio.wait_for(line.reader.readline(), _ANSWER_WITHIN_S)
                answer = self._decode(said) if said.endswith(b"\n") else None
            except (TimeoutError, ValueError, msgspec.DecodeError, RecursionError) as error:
                problem = str(error) or "it does not answer"
                log.warning("event=sampler_killed pid=%d problem=%r", line.pid, problem)
                self._hang_up()
                return None
            except ConnectionError:
                answer = None
            if answer is None:
                log.warning("event=sampler_lost pid=%d", line.pid)
                self._hang_up()
                unexpected += 1
                if unexpected > 1:
                    return None
            elif answer.silent is None:
                return answer
            else:
                self._set_aside(*answer.silent)
                self._hang_up()
        return None

    def _request(self, wanted: list[JobId]) -> bytes:
        for job_id in self._unknown:  # those that were left out for long enough
            track = self._tracks[job_id]
            if track.apart_until and self._samples >= track.apart_until:
                track.apart_until, self._is_told = 0, False
        request: dict[str, Any] = {"read": wanted}
        if not self._is_told:
            tracks = [track for track in self._tracks.values() if not track.apart_until]
            request["jobs"] = [[*each.key, each.holder, each.silent] for each in tracks]
        self._is_told = True
        return json.dumps(request).encode() + b"\n"

    async def _connect(self) -> bool:
        """Have a sampler started, and tell it what to read; False: there is none now."""
        try:
            line = await self._await_sampler()
        except (TimeoutError, OSError):  # it is not there yet, or no descriptor is left
            return False
        if line is None:
            return False
        reader, writer = await asyncio.open_unix_connection(sock=line, limit=_LARGEST)
        self._line = _Line(reader, writer, peer_of(line)[0])
        self._is_told = False
        writer.write(json.dumps(self._opening).encode() + b"\n")
        return True

    async def _await_sampler(self) -> socket.socket | None:
        """The line to the next one; None: it cannot be asked for.

        Raises:
            TimeoutError: it does not come in time.
            OSError: no descriptor is left.
        """
        loop = asyncio.get_running_loop()
        if self._listener is None or loop.time() >= self._asked_s + _AGAIN_S:
            self._close_listener()
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.setblocking(False)  # noqa: FBT003
            self._listener.bind("")  # the kernel finds a name
            self._listener.listen()
            if not self._start(self._listener.getsockname().hex()):
                self._close_listener()
                return None
            self._asked_s = loop.time()
        async with asyncio.timeout(max(0.0, self._asked_s + _START_WITHIN_S - loop.time())):
            while True:
                line, _ = await loop.sock_accept(self._listener)
                if peer_of(line)[1] == os.geteuid():
                    break
                line.close()
        self._close_listener()
        return line

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _hang_up(self) -> None:
        """The sampler ends with its line; before there is another, the supervisor kills it."""
        if self._line is not None:
            self._line.writer.close()
            self._line = None


def _find_devices(line: str, root: Path) -> tuple[DeviceId, ...]:
    mount = parse_mount(line.encode("latin-1", "replace"))
    found = () if mount is None else find_mount_devices(mount, root=root).devices
    return tuple(device.id for device in found)
