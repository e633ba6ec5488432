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
from typing import Any, Final, NamedTuple

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
from iodaemon.node.sampler import rows
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
"""A sampler that is stopped, or hangs where it does not notice (``watch``), is killed then."""
_MOST_TRIES: Final = 8
"""Samplers that may end in one sample."""
_MOST_LEFT: Final = 4
"""Samplers that do not end by SIGKILL, since a dead disk keeps them; then there is no other."""
_MOST_APART: Final = 6
"""A job that ended a sampler so often, one after the other, is left out for 2^6 samples."""
_MOUNTS_KEPT: Final = 256


class BadRowsError(Exception):
    """The sampler does not say what it should."""


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
        if (is_leaf := self._is_leaf.get(number)) is not None:
            return is_leaf
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
        row: the last one of ``rows.JOB``; None: there was none.
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
        self.row: tuple[Any, ...] | None = None
        self.highest = Moved()
        self.on_devices: dict[str, tuple[int, int]] = {}
        self.devices: tuple[DeviceId, ...] | None = None
        self.silent: int | None = None
        self.deaths = self.apart_until = 0

    def counters(self, leaves: Leaves) -> JobCounters:
        """Its counters, as far as they are known."""
        if self.row is None:
            return JobCounters(silent_pid=self.silent, devices=self.devices)
        _, silent, *moved, cpu_s, user_s, resident, io_s, memory_s, output = self.row
        known: dict[str, int] = {}
        if self.reaped is not None and rows.NO_COUNT not in moved:
            highest = self.highest = Moved(
                *map(max, self.highest, map(operator.add, self.reaped, moved))
            )
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
            cpu_s=rows.known_number(cpu_s),
            user_s=rows.known_number(user_s),
            resident_bytes=rows.known_count(resident),
            io_stall_s=rows.known_number(io_s),
            memory_stall_s=rows.known_number(memory_s),
            devices=self.devices,
            output_bytes=rows.known_count(output),
            silent_pid=None if silent < 0 else silent,
        )


class _Line(NamedTuple):
    """The line to one sampler."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    pid: int
    pidfd: int


class _Answer(NamedTuple):
    """What a sweep says, unpacked."""

    jobs: Sequence[tuple[Any, ...]]
    moved: Sequence[tuple[Any, ...]]
    disks: Sequence[tuple[Any, ...]]
    idle: Sequence[tuple[float]]
    node: tuple[Any, ...]
    rest: dict[str, Any]


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
        self._devices = [device.id for device in devices]
        self._partitions = [partition.id for partition in partitions]
        # A set: slots of an oversubscribed core are copies with the same CPUs.
        cpus = [sorted({c for slot in each.slots for c in slot.cpus}) for each in partitions]
        self._opening = {"devices": self._devices, "cpus": cpus}
        self._leaves = Leaves(root, self._devices)
        self._find_devices = lru_cache(_MOUNTS_KEPT)(lambda line: _find_devices(line, root))
        self._tracks: dict[JobId, Track] = {}
        self._counters: dict[JobId, JobCounters] = {}
        self._unknown: set[JobId] = set()
        self._added: set[JobId] = set()
        self._removed: set[JobId] = set()
        self._used: dict[JobId, Moved] = {}
        self._group = ""
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
            devices={self._devices[row[0]]: disk_counters(row[1:]) for row in answer.disks},
            node=self._take_node(answer),
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
            if (track := self._find(row[0])) is not None:
                track.row = row
                track.silent = None if row[1] < 0 else row[1]
                track.deaths = track.deaths if track.silent is not None else 0
                touched.add(JobId(track.key.job))
        for job, major, minor, read, written in answer.moved:
            if (track := self._find(job)) is not None:
                track.on_devices[f"{major}:{minor}"] = read, written
                touched.add(JobId(track.key.job))
        for job, lines in answer.rest.get("files", ()):
            if (track := self._find(job)) is not None:
                found = None if lines is None else map(self._find_devices, lines)
                track.devices = (
                    None if found is None else tuple(sorted({d for f in found for d in f}))
                )
                touched.add(JobId(track.key.job))
        for job_id in touched:
            if (track := self._tracks.get(job_id)) is not None:
                self._set(job_id, track.counters(self._leaves))

    def _set(self, job_id: JobId, counters: JobCounters) -> None:
        """The same object as before says that the job has not run; of one unknown nobody knows."""
        if counters.read_bytes is None:
            self._unknown.add(job_id)
        elif counters == self._counters[job_id]:
            return
        else:
            self._unknown.discard(job_id)
        self._counters[job_id] = counters

    def _find(self, job: int) -> Track | None:
        """The job that a row is of; None: it is gone, or another attempt, since the sweep began."""
        return None if job in self._added else self._tracks.get(JobId(job))

    def _take_node(self, answer: _Answer) -> NodeCounters:
        io_s, memory_s, *counts = answer.node
        dirty, writeback, available, memory, refaulted = map(rows.known_count, counts)
        self._group = answer.rest.get("group", self._group)
        idle = zip(self._partitions, answer.idle, strict=True)
        return NodeCounters(
            io_stall_s=rows.known_number(io_s),
            memory_stall_s=rows.known_number(memory_s),
            dirty_bytes=dirty,
            writeback_bytes=writeback,
            available_bytes=available,
            memory_bytes=memory,
            refault_bytes=refaulted,
            refaults_of=self._group,
            idle_s={partition: s for partition, (s,) in idle if rows.known_number(s) is not None},
        )

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
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    answer = await self._hear(line)
            except (TimeoutError, BadRowsError) as error:
                problem = str(error) or "it does not answer"
                log.warning("event=sampler_killed pid=%d problem=%r", line.pid, problem)
                self._hang_up(is_killed=True)
                return None
            except (asyncio.IncompleteReadError, ConnectionError):
                log.warning("event=sampler_lost pid=%d", line.pid)
                self._hang_up()
                unexpected += 1
                if unexpected > 1:
                    return None
                continue
            if answer is not None:
                return answer
            self._hang_up(is_killed=True)
        return None

    def _request(self, wanted: list[JobId]) -> bytes:
        self._bring_back()
        tracks = [self._tracks[job_id] for job_id in sorted(self._added)]
        added = [[*each.key, each.holder, each.silent] for each in tracks]
        request: dict[str, Any] = {}
        if self._removed:
            request["remove"] = sorted(self._removed)
        if added:
            request["add"] = added
        if wanted:
            request["read"] = wanted
        self._added.clear()
        self._removed.clear()
        return json.dumps(request).encode() + b"\n"

    def _bring_back(self) -> None:
        """Read jobs again that were left out for long enough."""
        for job_id in [i for i in self._unknown if self._tracks[i].apart_until]:
            track = self._tracks[job_id]
            if self._samples >= track.apart_until:
                track.apart_until = 0
                self._added.add(job_id)

    async def _hear(self, line: _Line) -> _Answer | None:
        """The answer to a sweep; None: the sampler ends since a process does not answer."""
        kind, *counts, rest = rows.HEAD.unpack(await line.reader.readexactly(rows.HEAD.size))
        if kind == rows.SILENT:
            self._set_aside(*rows.SILENCE.unpack(await line.reader.readexactly(rows.SILENCE.size)))
            return None
        kinds = (rows.JOB, rows.MOVED, rows.DISK, rows.IDLE)
        size = sum(n * each.size for n, each in zip(counts, kinds, strict=True)) + rows.NODE.size
        if kind != rows.SAMPLE or size + rest > rows.LARGEST:
            raise BadRowsError("it says what is no row")
        data = memoryview(await line.reader.readexactly(size + rest))
        found: list[Any] = []
        at = 0
        for n, each in zip(counts, kinds, strict=True):
            found.append(list(each.iter_unpack(data[at : at + n * each.size])))
            at += n * each.size
        try:
            node, more = rows.NODE.unpack_from(data, at), json.loads(bytes(data[size:]) or b"{}")
            answer = _Answer(found[0], found[1], found[2], found[3], node, more)
            _check(answer, len(self._devices), len(self._partitions))
        except (ValueError, TypeError, AttributeError) as error:
            raise BadRowsError(f"it says what is no row: {error}") from error
        return answer

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
        reader, writer = await asyncio.open_unix_connection(sock=line)
        pid, _ = peer_of(line)
        self._line = _Line(reader, writer, pid, _open_process(pid))
        self._added = {i for i, track in self._tracks.items() if not track.apart_until}
        self._removed.clear()
        self._group = ""
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
            line = await self._accept(self._listener)
        self._close_listener()
        return line

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket) -> socket.socket:
        loop = asyncio.get_running_loop()
        while True:
            line, _ = await loop.sock_accept(listener)
            if peer_of(line)[1] == os.geteuid():
                return line
            line.close()

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


def _open_process(pid: int) -> int:
    """-1: it has ended already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(0):
        return False
    os.close(pidfd)
    return True


def _find_devices(line: str, root: Path) -> tuple[DeviceId, ...]:
    mount = parse_mount(os.fsencode(line))
    return (
        () if mount is None else tuple(d.id for d in find_mount_devices(mount, root=root).devices)
    )


def _check(answer: _Answer, devices: int, partitions: int) -> None:
    """Raises ValueError: it cannot be so."""
    if len(answer.idle) != partitions or any(row[0] >= devices for row in answer.disks):
        raise ValueError("no such device or partition")
    for job, lines in answer.rest.get("files", ()):
        if type(job) is not int or not (lines is None or all(type(w) is str for w in lines)):
            raise ValueError("no mounts")
