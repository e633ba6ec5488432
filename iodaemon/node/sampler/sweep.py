"""All counters of one server, read in one go in a thread of their own.

A thread, because a read of /proc/PID/io may wait for an exec that waits for the disk, and the
event loop must never wait for a disk. A process that does not answer in time is left to the thread
that waits for it: its job is set aside until that comes back, and another thread goes on
(``reader_thread``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.core.job import IoTotals, JobId
from iodaemon.core.platform import Device, DeviceId, Partition
from iodaemon.core.sample import JobCounters, Sample
from iodaemon.errors import NoData
from iodaemon.node.devices import device_id, find_block, is_disk
from iodaemon.node.live_job import LiveJob
from iodaemon.node.sampler.cgroup_files import CgroupReader, parse_io_stat
from iodaemon.node.sampler.job_io import Allowance, JobIo
from iodaemon.node.sampler.kernel_file import KeptFile
from iodaemon.node.sampler.node_counters import NodeCountersReader, Sharer, read_disks
from iodaemon.node.sampler.open_files import OpenFiles
from iodaemon.node.sampler.proc_files import is_executing, sum_resident_bytes
from iodaemon.node.sampler.reader_thread import (
    DEADLINE_S,
    MOST_GIVEN_UP,
    GivenUpError,
    Position,
    ReaderThread,
)

_NOBODY: Final = 0
"""No thread: its number is never 0."""
_BLOCK_BYTES: Final = 512
"""Of st_blocks, whatever the filesystem's own are (inode(7))."""
_MOST_REPEATS: Final = 59
"""Readings of a job that has not run which repeat its last counters; then all is read again.

Not of all jobs at once: each begins with another count.
"""


class Leaves:
    """Sums what a job moved on leaf disks, of all devices that io.stat names.

    Numbers are looked up in sysfs, each once; a number without a device is looked up again.

    Args:
        root: ``/``, or a directory that looks like it.
        known: names that count besides: loop devices below which no disk is to be seen.
    """

    def __init__(self, root: Path, known: Collection[DeviceId] = ()) -> None:
        self._root = root
        self._known = frozenset(known)
        self._is_leaf: dict[str, bool] = {}

    def sum(self, record: bytes) -> tuple[int, int]:
        """Bytes read and written on leaf disks: what lies upon them would count twice.

        Args:
            record: an io.stat; an empty one is of a cgroup that moved nothing yet.
        """
        read_bytes = written_bytes = 0
        for number, stat in parse_io_stat(record).items():
            if self._look_up(number):
                read_bytes += stat.read_bytes
                written_bytes += stat.written_bytes
        return read_bytes, written_bytes

    def _look_up(self, number: str) -> bool:
        if (is_leaf := self._is_leaf.get(number)) is not None:
            return is_leaf
        directory = find_block(self._root, number)
        if directory is None:
            return False
        is_leaf = device_id(directory) in self._known or is_disk(directory)
        self._is_leaf[number] = is_leaf
        return is_leaf


class OutputRoom:
    """The room that one attempt's output and its report take of their filesystem.

    The files are their user's, who may make them large without writing to them.

    Args:
        outputs: with the jobs' own output files; None: nothing is looked at.
        job: the attempt.
    """

    def __init__(self, outputs: Path | None, job: LiveJob) -> None:
        names = (f"{job.key}", f"{job.key}.report")
        self._paths = [] if outputs is None else [outputs / name for name in names]

    def taken_bytes(self) -> int | None:
        """Room it takes, what was allocated beforehand included and holes not.

        None: there is no such file (the job writes to files that its submitter named), or it
        cannot be looked at.
        """
        taken = []
        for path in self._paths:
            with contextlib.suppress(OSError):
                taken.append(os.lstat(path).st_blocks * _BLOCK_BYTES)
        return sum(taken) if taken else None


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
            root, lambda: track.reaped, self.members, allowance=allowance, position=position
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
            last = self._measure(silent_pid)
        elif not self._has_run():
            self._repeats -= 1
            last = self._counters
        else:
            last = self._measure()
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

    def _measure(self, silent_pid: int | None = None) -> JobCounters:
        """All counters but those of ``_apart``; arguments as of ``read``."""
        moved, cgroup = self._io.read(silent_pid), self._cgroup
        cpu = None if cgroup is None else cgroup.cpu()
        return JobCounters(
            silent_pid=moved.silent_pid,
            read_bytes=moved.read_bytes,
            written_bytes=moved.written_bytes,
            operations=moved.operations,
            logical_bytes=moved.logical_bytes,
            cpu_s=None if cpu is None else cpu.usage_s,
            user_s=None if cpu is None else cpu.user_s,
            resident_bytes=self._resident_bytes(),
            io_stall_s=None if cgroup is None else cgroup.io_stall_s(),
            memory_stall_s=None if cgroup is None else cgroup.memory_stall_s(),
        )

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
        self._files = OpenFiles(root, self._position)
        self._allowance = Allowance()
        self._leaves = Leaves(root, [device.id for device in devices])
        self._diskstats = KeptFile(root / "proc/diskstats")
        self._disks = {device.id for device in devices}
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
        devices = read_disks(self._disks, self._diskstats)
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
