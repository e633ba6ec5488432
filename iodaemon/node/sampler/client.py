"""The daemon's side of the sampler: has one started, asks for sweeps, and knows the totals.

What has to outlive a sampler is kept here: what was seen of each job at most, and what was waited
for outside of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import operator
import os
import select
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from iodaemon.core.job import IoTotals, JobId
from iodaemon.core.platform import Device, DeviceId, Partition
from iodaemon.core.sample import JobCounters, NodeCounters, Sample
from iodaemon.node.devices import (
    device_id,
    disk_counters,
    find_block,
    find_mount_devices,
    is_disk,
)
from iodaemon.node.sampler.job_io import Moved
from iodaemon.node.sampler.proc_files import parse_mount
from iodaemon.supervisor.identity import peer_of
from iodaemon.supervisor.ledger import Key

log = logging.getLogger(__name__)

_START_WITHIN_S: Final = 2.0
"""It begins in 0.1 s on an idle machine. A sample does without one that takes longer."""
_AGAIN_S: Final = 5.0
"""Before another one is asked for in place of one that never came."""
_ANSWER_WITHIN_S: Final = 10.0
"""A sampler that is stopped, or hangs where it does not notice (``Watch``), is killed then."""
_MOST_TRIES: Final = 8
"""Samplers that may end in one sample."""
_MOST_LEFT: Final = 4
"""Samplers that do not end by SIGKILL, since a dead disk keeps them; then there is no other."""
_MOST_APART: Final = 6
"""A job that ended a sampler so often, one after the other, is left out for 2^6 samples."""
_MOUNTS_KEPT: Final = 256
_LARGEST: Final = 1 << 26
"""Bytes of an answer, at most: of 100,000 jobs with as many devices each as are common."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_DISK_FIELDS: Final = msgspec.Meta(min_length=17, max_length=17)


class _Row(msgspec.Struct, array_like=True, frozen=True, gc=False):
    job: _Count
    silent_pid: _Count | None
    moved: tuple[_Count, _Count, _Count, _Count, _Count] | None
    cpu_s: float | None
    user_s: float | None
    resident_bytes: _Count | None
    io_stall_s: float | None
    memory_stall_s: float | None
    output_bytes: _Count | None


class _Answer(msgspec.Struct, frozen=True):
    """What the sampler says (the package's ``__init__``)."""

    silent: tuple[_Count, _Count] | None = None
    jobs: tuple[_Row, ...] = ()
    moved: tuple[tuple[_Count, str, _Count, _Count], ...] = ()
    disks: dict[DeviceId, Annotated[tuple[_Count, ...], _DISK_FIELDS]] = {}
    node: NodeCounters = NodeCounters()
    files: tuple[tuple[_Count, list[str] | None], ...] = ()


class Leaves:
    """Sums what a job moved on leaf disks, of all devices that it is told of.

    Numbers are looked up in sysfs, each once; a number without a device is looked up again.

    Args:
        root: ``/``, or a directory that looks like it.
        known: names that count besides: loop devices below which no disk is to be seen.
    """

    def __init__(self, root: Path, known: Collection[DeviceId] = ()) -> None:
        self._root = root
        self._known = frozenset(known)
        self._is_leaf: dict[str, bool] = {}

    def sum(self, moved: dict[str, tuple[int, int]]) -> tuple[int | None, int | None]:
        """Bytes read and written on leaf disks: what lies upon them would count twice.

        Args:
            moved: by ``major:minor``; empty: not known.
        """
        if not moved:
            return None, None
        on_leaves = [each for number, each in moved.items() if self._look_up(number)]
        return sum(each[0] for each in on_leaves), sum(each[1] for each in on_leaves)

    def _look_up(self, number: str) -> bool:
        if (is_leaf := self._is_leaf.get(number)) is None:
            directory = find_block(self._root, number)
            if directory is None:
                return False
            is_leaf = device_id(directory) in self._known or is_disk(directory)
            self._is_leaf[number] = is_leaf
        return is_leaf


class Track:
    """What is known of one job.

    Attributes:
        holder: the process that holds it; None: it has a cgroup.
        reaped: what its processes moved that were waited for; None: the supervisor has not said.
        row: the last one; None: there was none.
        highest: totals of what it moved; no counter of them falls.
        on_devices: what it moved, by ``major:minor``.
        devices: on which its open files lie; None: not known.
        silent: the process that a sampler could not read; None: there is none.
        deaths: samplers that it ended since it was read last.
        apart_until: which sample is the next that it is in.
    """

    def __init__(self, key: Key, holder: int | None, reaped: Moved | None) -> None:
        self.key = key
        self.holder = holder
        self.reaped = reaped
        self.row: _Row | None = None
        self.highest = Moved()
        self.on_devices: dict[str, tuple[int, int]] = {}
        self.devices: tuple[DeviceId, ...] | None = None
        self.silent: int | None = None
        self.deaths = self.apart_until = 0

    def take(self, row: _Row) -> None:
        self.row, self.silent = row, row.silent_pid
        if row.silent_pid is None:
            self.deaths = 0

    def counters(self, leaves: Leaves) -> JobCounters:
        """Its counters, as far as they are known."""
        row = self.row
        if row is None:
            return JobCounters(silent_pid=self.silent, devices=self.devices)
        known: dict[str, int] = {}
        if self.reaped is not None and row.moved is not None:
            moved = map(max, self.highest, map(operator.add, self.reaped, row.moved))
            highest = self.highest = Moved(*moved)
            known = {
                "read_bytes": highest.read_bytes,
                "written_bytes": max(0, highest.written_bytes - highest.cancelled_bytes),
                "operations": highest.operations,
                "logical_bytes": highest.logical_bytes,
            }
        read, written = leaves.sum(self.on_devices)
        return JobCounters(
            **known,
            device_read_bytes=read,
            device_written_bytes=written,
            cpu_s=row.cpu_s,
            user_s=row.user_s,
            resident_bytes=row.resident_bytes,
            io_stall_s=row.io_stall_s,
            memory_stall_s=row.memory_stall_s,
            devices=self.devices,
            output_bytes=row.output_bytes,
            silent_pid=row.silent_pid,
        )


class _Line(NamedTuple):
    """The line to one sampler; ``pidfd`` is -1 where it has ended already."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int
    pidfd: int


class SamplerClient:
    """Samples of jobs, devices and the node. Use from one event loop.

    Args:
        start: has a sampler started that connects to this address (``sweep.Settings``); False: it
            cannot be had now.
        devices: leaf disks to read.
        partitions: whose CPUs' idle time is read.
        root: where /sys is.
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
        self._devices = frozenset(device.id for device in devices)
        cpus = {each.id: [c for slot in each.slots for c in slot.cpus] for each in partitions}
        self._opening = {"devices": sorted(self._devices), "cpus": cpus}
        self._decode = msgspec.json.Decoder(_Answer).decode
        self._leaves = Leaves(root, self._devices)
        self._find_devices = lru_cache(_MOUNTS_KEPT)(lambda line: _find_devices(line, root))
        self._tracks: dict[JobId, Track] = {}
        self._counters: dict[JobId, JobCounters] = {}
        self._unknown: set[JobId] = set()
        self._added: set[JobId] = set()
        self._removed: set[JobId] = set()
        self._used: dict[JobId, Moved] = {}
        self._samples = 0
        self._listener: socket.socket | None = None
        self._asked_s = 0.0
        self._line: _Line | None = None
        self._left: list[int] = []

    def add(self, key: Key, holder: int | None = None, *, is_adopted: bool = False) -> None:
        """Read this attempt from now on.

        Args:
            key: of it.
            holder: the process that holds it; None: it has a cgroup.
            is_adopted: what was waited for of it is not known yet.
        """
        job_id = JobId(key.job)
        self.remove(job_id)
        self._tracks[job_id] = Track(key, holder, None if is_adopted else Moved())
        self._counters[job_id] = JobCounters()
        self._unknown.add(job_id)
        self._added.add(job_id)

    def remove(self, job_id: JobId) -> None:
        """Read it no more."""
        if self._tracks.pop(job_id, None) is None:
            return
        del self._counters[job_id]
        self._unknown.discard(job_id)
        self._used.pop(job_id, None)
        if job_id in self._added:
            self._added.discard(job_id)
        else:
            self._removed.add(job_id)

    def take_use(self, key: Key, use: Mapping[str, int]) -> None:
        """Take in what was waited for of an attempt; it counts from the next sweep on.

        Who ends during a sweep is missing in it once, never doubled.
        """
        track = self._tracks.get(JobId(key.job))
        if track is not None and track.key == key:
            self._used[JobId(key.job)] = Moved(
                use["read_bytes"],
                use["written_bytes"],
                use.get("cancelled_bytes", 0),
                use["calls"],
                use.get("logical_bytes", 0),
            )

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
        answer = await self._sweep(sorted(used))
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
        for pidfd in self._left:
            os.close(pidfd)
        self._left.clear()

    # -- what the sampler says ---------------------------------------------------------------------

    def _take_jobs(self, answer: _Answer, used: Iterable[JobId]) -> None:
        touched = {*used, *self._unknown}
        for row in answer.jobs:
            if (track := self._find(row.job, touched)) is not None:
                track.take(row)
        for job, number, *moved in answer.moved:
            if (track := self._find(job, touched)) is not None:
                track.on_devices[number] = moved[0], moved[1]
        for job, lines in answer.files:
            if (track := self._find(job, touched)) is not None:
                found = None if lines is None else {d for w in lines for d in self._find_devices(w)}
                track.devices = None if found is None else tuple(sorted(found))
        for job_id in touched & self._tracks.keys():
            self._set(job_id, self._tracks[job_id].counters(self._leaves))

    def _set(self, job_id: JobId, counters: JobCounters) -> None:
        """The same object as before says that the job has not run; of one unknown nobody knows."""
        if counters.read_bytes is None:
            self._unknown.add(job_id)
        elif counters == self._counters[job_id]:
            return
        else:
            self._unknown.discard(job_id)
        self._counters[job_id] = counters

    def _find(self, job: int, touched: set[JobId]) -> Track | None:
        """The job that a row is of; None: it is gone, or another attempt, since the sweep began."""
        job_id = JobId(job)
        if job_id in self._added or job_id not in self._tracks:
            return None
        touched.add(job_id)
        return self._tracks[job_id]

    def _set_aside(self, job: int, pid: int) -> None:
        """Remember which process a sampler could not read."""
        track = self._tracks.get(JobId(job))
        if track is None:
            return
        track.silent, track.row = pid, None
        track.deaths += 1
        if track.deaths > 1:
            track.apart_until = self._samples + (1 << min(track.deaths, _MOST_APART))
        self._set(JobId(job), track.counters(self._leaves))

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
                self._hang_up(is_killed=True)
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
                self._hang_up(is_killed=True)
        return None

    def _request(self, wanted: list[JobId]) -> bytes:
        for job_id in self._unknown:  # those that were left out for long enough
            track = self._tracks[job_id]
            if track.apart_until and self._samples >= track.apart_until:
                track.apart_until = 0
                self._added.add(job_id)
        added = [self._tracks[job_id] for job_id in sorted(self._added)]
        request: dict[str, Any] = {}
        if self._removed:
            request["remove"] = sorted(self._removed)
        if added:
            request["add"] = [[*each.key, each.holder, each.silent] for each in added]
        if wanted:
            request["read"] = wanted
        self._added.clear()
        self._removed.clear()
        return json.dumps(request).encode() + b"\n"

    async def _connect(self) -> bool:
        """Have a sampler started, and tell it what to read; False: there is none now."""
        self._left = [pidfd for pidfd in self._left if not _has_ended(pidfd)]
        if len(self._left) >= _MOST_LEFT:
            return False
        try:
            line = await self._await_sampler()
        except (TimeoutError, OSError):  # it is not there yet, or no descriptor is left
            return False
        if line is None:
            return False
        reader, writer = await asyncio.open_unix_connection(sock=line, limit=_LARGEST)
        pid, pidfd = peer_of(line)[0], -1
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
        self._line = _Line(reader, writer, pid, pidfd)
        self._added = {i for i, track in self._tracks.items() if not track.apart_until}
        self._removed.clear()
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

    def _hang_up(self, *, is_killed: bool = False) -> None:
        """The sampler ends with its line, or is killed."""
        if self._line is None:
            return
        line, self._line = self._line, None
        line.writer.close()
        if line.pidfd < 0:
            return
        if is_killed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(line.pidfd, signal.SIGKILL)
        self._left.append(line.pidfd)


def _has_ended(pidfd: int) -> bool:
    """Closes it then."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(0):
        return False
    os.close(pidfd)
    return True


def _find_devices(line: str, root: Path) -> tuple[DeviceId, ...]:
    mount = parse_mount(line.encode("latin-1", "replace"))
    found = () if mount is None else find_mount_devices(mount, root=root).devices
    return tuple(device.id for device in found)
