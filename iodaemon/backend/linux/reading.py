"""All counters of one server, read in one go in a thread of their own.

A thread, because a read of /proc/PID/io may wait for an exec that waits for the disk, and the
event loop must never wait for a disk. A process that does not answer in time is left to the thread
that waits for it: its job is set aside until that comes back, and another thread goes on
(``reader_thread``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.backend.linux.allowance import Allowance
from iodaemon.backend.linux.cgroup_reader import CgroupReader
from iodaemon.backend.linux.job_files import JobFiles
from iodaemon.backend.linux.job_io import JobIo, sum_resident_bytes
from iodaemon.backend.linux.leaves import Leaves
from iodaemon.backend.linux.node_counters import NodeCountersReader
from iodaemon.backend.linux.output_room import OutputRoom
from iodaemon.backend.linux.process import is_executing
from iodaemon.backend.linux.reader_thread import (
    DEADLINE_S,
    MOST_GIVEN_UP,
    GivenUpError,
    Position,
    ReaderThread,
)
from iodaemon.backend.linux.shared_memory import Sharer
from iodaemon.core.job import IoTotals, JobId
from iodaemon.core.platform import Device, DeviceId, Partition
from iodaemon.core.sample import JobCounters, Sample
from iodaemon.errors import NoData
from iodaemon.node.live_job import LiveJob
from iodaemon.sampler import diskstats

_NOBODY: Final = 0
"""No thread: its number is never 0."""
_MOST_REPEATS: Final = 59
"""Readings of a job that has not run which repeat its last counters; then all is read again.

Not of all jobs at once: each begins with another count.
"""


class _JobReader:
    """One job's sources. Of one that has not run since, the last counters are good.

    What moves bytes runs for it: reads are counted when they are submitted, writes when a page is
    made dirty. Only the time for which a job stands in one and the same wait is seen late.

    Attributes:
        waits: the thread that was given up while it read this job, and the process; None: none.
        sharer: the job as one that shares memory.
    """

    def __init__(
        self,
        root: Path,
        track: LiveJob,
        leaves: Leaves,
        allowance: Allowance,
        output: OutputRoom,
        position: Position | None = None,
    ) -> None:
        self.waits: tuple[ReaderThread, int] | None = None
        self._output = output
        self._output_bytes: int | None = None
        self._cgroup = None if track.cgroup is None else CgroupReader(Path(track.cgroup))
        self._root = root
        self._leaves = leaves
        self._track = track
        self._record = b""
        self._io_record: bytes | None = None
        self._on_leaves: tuple[int | None, int | None] = (None, None)
        self._repeats = 1 + track.job_id % _MOST_REPEATS
        self._counters = JobCounters()
        self._io = JobIo(
            root,
            lambda: track.reaped,
            self.members,
            cpu=None if self._cgroup is None else self._cgroup.cpu,
            resident_bytes=self._resident_bytes,
            io_stall_s=None if self._cgroup is None else self._cgroup.io_stall_s,
            memory_stall_s=None if self._cgroup is None else self._cgroup.memory_stall_s,
            allowance=allowance,
            position=position,
        )
        self.sharer = Sharer(lambda: self._io.last_members, track.cgroup)

    @property
    def silent_pid(self) -> int | None:
        """The process of the job that was last seen not to answer, and does not yet."""
        if self.waits is not None:
            thread, pid = self.waits
            if thread.is_alive():
                return pid
            self.waits = None
        last_pid = self._counters.silent_pid
        return last_pid if last_pid and is_executing(last_pid) else None

    def read(
        self, devices: tuple[DeviceId, ...] | None, silent_pid: int | None = None
    ) -> JobCounters:
        """The counters now, with the devices where it has files open; None: not known.

        The same object as the last time when the job has not run.

        Args:
            devices: of its files.
            silent_pid: a process that does not answer; its I/O is unknown then.
        """
        if silent_pid is not None or self._counters.silent_pid is not None:
            last = self._io.read(silent_pid)
        elif not self._has_run():
            self._repeats -= 1
            last = self._counters
        else:
            last = self._io.read()
            self._output_bytes = self._output.taken_bytes()
        # What it made dirty is written back without it, also while it stands still.
        read, written = self._moved()
        if (devices, read, written, self._output_bytes) != _apart(last):
            last = msgspec.structs.replace(
                last,
                devices=devices,
                device_read_bytes=read,
                device_written_bytes=written,
                output_bytes=self._output_bytes,
            )
        self._counters = last
        return last

    def _moved(self) -> tuple[int | None, int | None]:
        """Bytes read and written on leaf disks; None: not counted."""
        record = None if self._cgroup is None else self._cgroup.io_record()
        if record != self._io_record:
            self._io_record, self._on_leaves = record, (None, None)
            with contextlib.suppress(NoData):  # a text that names no device
                self._on_leaves = self._leaves.sum(record) if record is not None else (None, None)
        return self._on_leaves

    def _has_run(self) -> bool:
        """False only when its CPU time is known to be what it was, and so is its I/O."""
        if self._cgroup is None:
            return True
        last = self._record
        try:
            self._record = self._cgroup.cpu_record()
        except NoData:
            return True
        if self._record == last and self._repeats and self._counters.read_bytes is not None:
            return False
        self._repeats = self._repeats or _MOST_REPEATS
        return True

    def members(self) -> list[int]:
        """The job's processes, parents before children."""
        return self._track.pids() if self._cgroup is None else self._cgroup.pids()

    def _resident_bytes(self) -> int | None:
        try:
            return sum_resident_bytes(self._root, self.members())
        except NoData:  # the job ended while it was being read
            return None

    def close(self) -> None:
        self._io.close()
        if self._cgroup is not None:
            self._cgroup.close()


def _apart(counters: JobCounters) -> tuple[object, ...]:
    """What is found out apart from the job's processes."""
    moved = (counters.device_read_bytes, counters.device_written_bytes)
    return counters.devices, *moved, counters.output_bytes


class _Reading:
    """One sample that is being made, by one thread after another where one is given up."""

    def __init__(self, at_s: float, tracks: dict[JobId, LiveJob]) -> None:
        self.at_s = at_s
        self.tracks = tracks
        self.files: dict[JobId, tuple[DeviceId, ...] | None] | None = None
        self.jobs: dict[JobId, JobCounters] = {}


class NodeReader:
    """Reads jobs, devices and the node. Descriptors are opened and closed in its own thread only.

    ``add`` and ``remove`` are called in the event loop and take effect at the next reading, so
    that a descriptor is never closed while the thread reads it.
    """

    def __init__(
        self,
        root: Path,
        devices: Sequence[Device],
        outputs: Path | None = None,
        *,
        partitions: Sequence[Partition] = (),
    ) -> None:
        """Read this machine.

        Args:
            root: where /proc and /sys are.
            devices: leaf disks to read.
            outputs: with the jobs' own output files; None: none is looked at.
            partitions: whose CPUs' idle time is read.
        """
        self._root = root
        self._outputs = outputs
        self._tracks: dict[JobId, LiveJob] = {}
        self._readers: dict[JobId, tuple[LiveJob, _JobReader]] = {}
        self._known: dict[JobId, JobCounters] = {}
        self._position = Position()
        self._files = JobFiles(root, self._position)
        self._allowance = Allowance()
        self._leaves = Leaves(root, [device.id for device in devices])
        self._diskstats = diskstats.Sampler(root, wanted={device.id for device in devices})
        self._node = NodeCountersReader(root, partitions)
        self._thread: ReaderThread | None = None
        self._given_up: list[ReaderThread] = []
        self._is_reading = False

    def add(self, track: LiveJob) -> None:
        """Read this job from now on."""
        self._tracks[track.job_id] = track

    def remove(self, job_id: JobId) -> None:
        """Read it no more."""
        self._tracks.pop(job_id, None)
        self._known.pop(job_id, None)

    def known_totals(self, job_id: JobId) -> IoTotals:
        """The job's I/O as last read."""
        counters = self._known.get(job_id, JobCounters())
        return IoTotals(
            read_bytes=counters.read_bytes,
            written_bytes=counters.written_bytes,
            operations=counters.operations,
        )

    async def read(self, at_s: float) -> Sample:
        """One sample of everything; ``at_s`` is when the reading began."""
        reading = _Reading(at_s, dict(self._tracks))
        self._is_reading = True
        done = self._hand_over(reading)
        while not done.done():
            steps = self._position.steps
            await asyncio.wait({done}, timeout=DEADLINE_S)
            if not done.done() and self._is_stuck(steps):
                self._give_up()
                done = self._hand_over(reading)
        self._is_reading = False
        sample = done.result()
        self._known = {i: c for i, c in sample.jobs.items() if i in self._tracks}
        return sample

    def _hand_over(self, reading: _Reading) -> asyncio.Future[Sample]:
        """Have the thread do it, or what is left of it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sample] = loop.create_future()

        def tell(result: Sample | BaseException) -> None:
            if not done.done():
                set_ = done.set_exception if isinstance(result, BaseException) else done.set_result
                set_(result)  # type: ignore[arg-type]  # as it is

        def work() -> None:
            try:
                result: Sample | BaseException = self._read(reading)
            except GivenUpError:
                raise
            except Exception as error:  # noqa: BLE001 - it is the caller's
                result = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, result)

        if self._thread is None:
            self._thread = ReaderThread()
            self._position.reader = self._thread.ident
        self._thread.do(work)
        return done

    def _is_stuck(self, steps: int) -> bool:
        """Whether the thread waits in the kernel for the same process as when it was there."""
        thread = self._thread
        return self._position.steps == steps and thread is not None and thread.is_blocked()

    def _give_up(self) -> None:
        """Leave the thread to what it waits for, and set that job aside."""
        position, thread = self._position, self._thread
        assert thread is not None
        position.reader, self._thread = _NOBODY, None
        thread.end()
        self._given_up.append(thread)
        if position.job in self._readers:
            self._readers[JobId(position.job)][1].waits = thread, position.pid

    def close(self) -> None:
        """Give the descriptors and the thread back; what is being read just now is let be."""
        if self._thread is not None:
            self._thread.end()
        if not self._is_reading:
            self._close_all()

    # -- in the thread ---------------------------------------------------------------------------

    def read_now(self, at_s: float, tracks: dict[JobId, LiveJob]) -> Sample:
        """One sample of these jobs, in the calling thread; always the same one."""
        return self._read(_Reading(at_s, tracks))

    def _read(self, reading: _Reading) -> Sample:
        """Read what is left to be read of this sample."""
        self._follow(reading.tracks)
        silent = self._find_silent()
        if reading.files is None:
            members = {i: r.members for i, (_, r) in self._readers.items() if i not in silent}
            reading.files = self._files.read(members)
        for job_id, (_, reader) in self._readers.items():
            if job_id not in reading.jobs:
                self._position.job, self._position.pid = job_id, 0
                counters = reader.read(reading.files.get(job_id), silent.get(job_id))
                reading.jobs[job_id] = counters
        try:
            devices = self._diskstats.read()
        except NoData:
            devices = {}
        sharers = {i: r.sharer for i, (_, r) in self._readers.items() if i not in silent}
        node = self._node.read(reading.at_s, sharers)
        return Sample(at_s=reading.at_s, jobs=reading.jobs, devices=devices, node=node)

    def _find_silent(self) -> dict[JobId, int]:
        """The jobs that are set aside, each with the process that does not answer.

        All of them once so many threads wait that there shall be no more.
        """
        self._given_up = [thread for thread in self._given_up if thread.is_alive()]
        if len(self._given_up) >= MOST_GIVEN_UP:
            return dict.fromkeys(self._readers, 0)
        readers = self._readers.items()
        silent = {i: pid for i, (_, r) in readers if (pid := r.silent_pid) is not None}
        self._position.is_careful = bool(silent or self._given_up)
        return silent

    def _follow(self, tracks: dict[JobId, LiveJob]) -> None:
        """Open readers for new attempts, close those of jobs that are gone."""
        for job_id, (track, reader) in list(self._readers.items()):
            if tracks.get(job_id) is not track:
                reader.close()
                del self._readers[job_id]
        for job_id, track in tracks.items():
            if job_id not in self._readers:
                output = OutputRoom(self._outputs, track)
                reader = _JobReader(
                    self._root, track, self._leaves, self._allowance, output, self._position
                )
                self._readers[job_id] = (track, reader)

    def _close_all(self) -> None:
        self._follow({})
        self._diskstats.close()
        self._node.close()
