"""The daemon's side of the sampler: has one started, asks for sweeps, and keeps the totals, which
outlive a sampler.
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

from iodaemon.core.job import JobId
from iodaemon.core.platform import Device, DeviceId, Partition
from iodaemon.core.sample import JobCounters, NodeCounters, Sample
from iodaemon.node.devices import disk_counters, find_mount_devices, find_number
from iodaemon.node.sampler.proc_files import parse_mount
from iodaemon.supervisor.ledger import Key, Use
from iodaemon.supervisor.syscalls import peer_of

log = logging.getLogger(__name__)

_START_WITHIN_S: Final = 2.0
"""It begins in 0.1 s on an idle machine. A sample does not wait longer for it."""
_AGAIN_S: Final = 5.0
"""Until another one is asked for if one does not connect."""
_ANSWER_WITHIN_S: Final = 10.0
"""Until another one is started: this one is stopped, or hangs unnoticed by ``Watch``."""
_MOST_TRIES: Final = 8
"""Samplers that may end during one sample."""
_APART: Final = 64
"""A job that ended two samplers in succession is left out for so many samples."""
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
    """See the package docstring."""

    silent: tuple[_Count, _Count] | None = None
    jobs: tuple[_Row, ...] = ()
    disks: dict[DeviceId, Annotated[tuple[_Count, ...], _DISK_FIELDS]] = {}
    node: NodeCounters = NodeCounters()
    files: tuple[tuple[_Count, _Count, list[str] | None], ...] = ()


class Track:
    """What is known of one job.

    Attributes:
        holder: the process that holds it, if it has no cgroup.
        reaped: the I/O of its reaped processes. None until the supervisor reports it.
        told: a newer value of ``reaped``, for the next sweep.
        row: the last one, if any.
        highest: the highest value of each total.
        counters: the last sample.
        looks: the disks of its open files in the last two looks; None for an unknown one.
        devices: the disks of both looks together, because programs close and reopen files.
        silent: the process that a sampler could not read, if any.
        apart: for how many more samples it is left out.
    """

    def __init__(self, key: Key, holder: int | None, reaped: Use | None) -> None:
        self.key = key
        self.holder = holder
        self.reaped = reaped
        self.told: Use | None = None
        self.row: _Row | None = None
        self.highest = Use()
        self.counters = JobCounters()
        self.looks: tuple[frozenset[DeviceId] | None, ...] = ()
        self.devices: tuple[DeviceId, ...] | None = None
        self.silent: int | None = None
        self.apart = 0

    def count(self) -> JobCounters:
        """Its counters: the same object as before if nothing changed and its I/O is known.

        From the identity of the object the rules see that the job has not run.
        """
        known: dict[str, Any] = {}
        if self.row is not None:
            known = dict(zip(_GAUGES, self.row.gauges, strict=True))
            if self.reaped is not None and self.row.moved is not None:
                total = map(int.__add__, self.reaped, self.row.moved)
                highest = self.highest = Use(*map(max, self.highest, total))
                known |= {
                    "read_bytes": highest.read_bytes,
                    "written_bytes": max(0, highest.written_bytes - highest.cancelled_bytes),
                    "operations": highest.calls,
                    "logical_bytes": highest.logical_bytes,
                }
        counters = JobCounters(**known, devices=self.devices, silent_pid=self.silent)
        if counters.read_bytes is None or counters != self.counters:
            self.counters = counters
        return self.counters

    def note_silence(self, pid: int | None) -> None:
        if pid is not None and self.silent is None:
            log.warning("event=process_silent job=%d pid=%d", self.key.job, pid)
        elif pid is None and self.silent is not None:
            log.info("event=process_answers job=%d", self.key.job)
        self.silent = pid

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
        start: requests a sampler that connects to this address (``sweep.Settings``). Returns False
            if there is no supervisor to start one.
        devices: leaf disks to read.
        partitions: the idle time of their CPUs is read.
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
        self._is_told = False
        self._listener: socket.socket | None = None
        self._asked_s = 0.0
        self._line: _Line | None = None

    def add(self, key: Key, holder: int | None = None, *, is_adopted: bool = False) -> None:
        """Read this attempt from now on. The reaped use of an adopted one is still unknown."""
        self.remove(JobId(key.job))
        self._tracks[JobId(key.job)] = Track(key, holder, None if is_adopted else Use())

    def remove(self, job_id: JobId) -> None:
        """Stop reading the job."""
        self._is_told = False
        self._tracks.pop(job_id, None)

    def take_use(self, key: Key, use: Mapping[str, int]) -> None:
        """Set the use of an attempt's reaped processes, for the next sweep on: a process that ends
        during a sweep is missing from it, and never counted twice.
        """
        if (track := self._find(*key)) is not None:
            track.told = Use(**use)

    def counters(self, job_id: JobId) -> JobCounters:
        """The job's counters as last read."""
        track = self._tracks.get(job_id)
        return JobCounters() if track is None else track.counters

    async def read(self, at_s: float) -> Sample:
        """One sample of everything; without a sampler all is unknown."""
        wanted: list[JobId] = []
        for job_id, track in self._tracks.items():
            if track.apart:
                track.apart -= 1
                self._is_told &= track.apart > 0
            if track.told is not None or track.counters.read_bytes is None:
                wanted.append(job_id)
                track.reaped, track.told = track.told or track.reaped, None
        answer = await self._sweep(wanted)
        if answer is None:
            return Sample(at_s=at_s, jobs={job_id: JobCounters() for job_id in self._tracks})
        self._take_jobs(answer, wanted)
        return Sample(
            at_s=at_s,
            jobs={job_id: track.counters for job_id, track in self._tracks.items()},
            devices={
                name: disk_counters(fields)
                for name, fields in answer.disks.items()
                if name in self._devices
            },
            node=answer.node,
        )

    def ask_again(self) -> None:
        """Repeat an unanswered request, because there is a new supervisor."""
        if self._listener is not None:
            self._start(self._listener.getsockname().hex())

    def close(self) -> None:
        """End the sampler."""
        self._hang_up()
        self._close_listener()

    # -- what the sampler says ---------------------------------------------------------------------

    def _take_jobs(self, answer: _Answer, wanted: Iterable[JobId]) -> None:
        touched = {job_id: self._tracks[job_id] for job_id in wanted if job_id in self._tracks}
        for row in answer.jobs:
            if (track := self._find(row.job, row.attempt)) is not None:
                track.row = row
                track.note_silence(row.silent_pid)
                touched[JobId(row.job)] = track
        for job, attempt, lines in answer.files:
            if (track := self._find(job, attempt)) is not None:
                track.take_look(None if lines is None else self._look_at(lines))
                touched[JobId(job)] = track
        for track in touched.values():
            track.count()

    def _look_at(self, lines: Iterable[str]) -> frozenset[DeviceId] | None:
        try:
            return frozenset(chain(*map(self._find_devices, lines)))
        except OSError:  # no descriptor is left
            return None

    def _find(self, job: int, attempt: int) -> Track | None:
        """None if the job ended since the sweep began, or has another attempt."""
        track = self._tracks.get(JobId(job))
        return track if track is not None and track.key.attempt == attempt else None

    def _set_aside(self, job: int, pid: int) -> None:
        if (track := self._tracks.get(JobId(job))) is not None:
            track.apart = 0 if track.silent is None else _APART
            track.row = None
            track.note_silence(pid)
            track.count()

    # -- the line ----------------------------------------------------------------------------------

    async def _sweep(self, wanted: list[JobId]) -> _Answer | None:
        """One sweep, repeated by the next sampler if one ends. None without a sampler."""
        was_lost = False
        for _ in range(_MOST_TRIES):
            line = self._line or await self._connect()
            if line is None:
                return None
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
            if answer is not None and answer.silent is None:
                return answer
            self._hang_up()
            if answer is not None and answer.silent is not None:
                self._set_aside(*answer.silent)
                continue
            log.warning("event=sampler_lost pid=%d", line.pid)
            if was_lost:
                return None
            was_lost = True
        return None

    def _request(self, wanted: list[JobId]) -> bytes:
        request: dict[str, Any] = {"read": wanted}
        if not self._is_told:
            tracks = [track for track in self._tracks.values() if not track.apart]
            request["jobs"] = [[*each.key, each.holder, each.silent] for each in tracks]
        self._is_told = True
        return json.dumps(request).encode() + b"\n"

    async def _connect(self) -> _Line | None:
        """Have a sampler started and accept its connection. None if it does not come in time."""
        loop = asyncio.get_running_loop()
        try:
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
                line, _ = await loop.sock_accept(self._listener)
                while peer_of(line)[1] != os.geteuid():
                    line.close()
                    line, _ = await loop.sock_accept(self._listener)
        except (TimeoutError, OSError):  # it is not there yet, or no descriptor is left
            return None
        self._close_listener()
        reader, writer = await asyncio.open_unix_connection(sock=line, limit=_LARGEST)
        self._line = _Line(reader, writer, peer_of(line)[0])
        self._is_told = False
        writer.write(json.dumps(self._opening).encode() + b"\n")
        return self._line

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _hang_up(self) -> None:
        """The sampler ends with its line; the supervisor kills it before it starts another."""
        if self._line is not None:
            self._line.writer.close()
            self._line = None


def _find_devices(line: str, root: Path) -> tuple[DeviceId, ...]:
    mount = parse_mount(line.encode("latin-1", "replace"))
    found = () if mount is None else find_mount_devices(mount, root=root).devices
    return tuple(device.id for device in found)
