"""The process that reads the counters of jobs, disks and the machine, one sweep a request.

The supervisor starts it with the daemon's user and the right to read other users' ``/proc/PID/io``.
It ends with the daemon's connection, and if a read does not return (``job_io``).

A job that has not run since the last sweep costs one pread and a comparison: reads are counted when
they are submitted and writes when a page becomes dirty, so a job that moves bytes has run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from iodaemon.errors import NoData
from iodaemon.node.sampler.job_io import JobIo, Position, SilentError, Watch
from iodaemon.node.sampler.node_counters import NodeCountersReader
from iodaemon.node.sampler.open_files import MOST_JOBS, PERIOD, OpenFiles
from iodaemon.node.sampler.proc_files import (
    NONE_BELOW,
    KeptFile,
    Reader,
    is_executing,
    known,
    parse_cpu_stat,
    parse_diskstats,
    parse_io_stat,
    parse_pressure,
    parse_procs,
    read_file,
    read_members,
    sum_resident_bytes,
)
from iodaemon.supervisor import syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.ledger import Use
from iodaemon.supervisor.reap import children_of, read_small, tree_of
from iodaemon.supervisor.syscalls import peer_of

_T = TypeVar("_T")

_BLOCK_BYTES: Final = 512
"""Of st_blocks, whatever the filesystem's own are (inode(7))."""
_FIRST_READINGS: Final = 4
_SELDOM: Final = 4
"""After a job's first readings, every so many include its memory, stall times, bytes on devices,
output and child cgroups. While it is at rest, every so many sweeps include its bytes on devices."""
_MOST_REPEATS: Final = 512
"""After so many sweeps a job at rest is read as a whole."""
_RECORD_BYTES: Final = 64
"""Of cpu.stat: usage_usec and user_usec are its first lines."""
_NO_GROUP: Final = 65534
_WHOLE_BYTES: Final = 4000
"""A list of processes that is shorter is whole: one read gives a page, less a part of a line."""
_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Settings(NamedTuple):
    """How the sampler is started.

    Attributes:
        address: of the daemon: the name of an abstract socket, in hexadecimal.
        parent: the process that started it; the sampler ends with it.
        uid: the daemon's user, which the sampler becomes.
        gid: the daemon's group; None for nobody's.
        jobs: the parent of the jobs' cgroups, if there are any.
        outputs: the directory of the jobs' own output files. None: they are not measured.
    """

    address: str
    parent: int
    uid: int
    gid: int | None = None
    jobs: str | None = None
    outputs: str | None = None
    root: str = "/"


class Job:
    """One job's sources, and what is known of it.

    Attributes:
        silent: a process of it that does not answer, if any.
        members: its processes at the last reading, parents before children.
        record: the beginning of ``cpu.stat`` at the last reading; empty if its I/O is unknown.
    """

    def __init__(
        self,
        number: int,
        attempt: int,
        holder: int | None,
        silent: int | None,
        *,
        settings: Settings,
        position: Position,
        disks: Container[str],
    ) -> None:
        self.number, self.attempt, self.holder, self.silent = number, attempt, holder, silent
        self.record = b""
        self.members: list[int] = []
        self._root = settings.root.rstrip("/")
        has_own = holder is None and settings.jobs is not None
        self._cgroup = f"{settings.jobs}/{number}.{attempt}" if has_own else None
        output = f"{settings.outputs}/{number}.{attempt}"
        self._outputs = () if settings.outputs is None else (output, f"{output}.report")
        self._cpu = KeptFile(f"{self._cgroup}/cpu.stat")
        self._procs = KeptFile(f"{self._cgroup}/cgroup.procs")
        self._io = JobIo(settings.root, position)
        self._disks = disks
        self._readings = 0
        self._has_below, self._has_io_stat = False, True
        self._moved: Use | None = None
        self._times: tuple[float | None, float | None] = (None, None)
        self._io_stall_s: float | None = None
        self._seldom: tuple[int | None, float | None, int | None] = (None, None, None)
        self._on_disks: tuple[int | None, int | None] = (None, None)

    def look(self) -> bytes:
        """The beginning of its ``cpu.stat``; empty if there is none."""
        try:
            return self._cpu.read(_RECORD_BYTES) if self._cgroup is not None else b""
        except (NoData, OSError):
            return b""

    def row(self) -> list[Any]:
        """Its row of ``jobs`` (see the package docstring)."""
        gauges = (*self._times, self._io_stall_s, *self._seldom, *self._on_disks)
        return [self.number, self.attempt, self.silent, self._moved, gauges]

    def read(self, sweep: int, record: bytes) -> None:
        """Read its counters, in the sweep of this number; ``record`` is what ``look`` said."""
        if self.silent is not None and not is_executing(self.silent):
            self.silent = None
        is_full = self._readings < _FIRST_READINGS or not (sweep + self.number) % _SELDOM
        self._readings += 1
        before, moved = self._moved, self._count(is_full=is_full)
        self._moved, self.record = moved, b"" if moved is None else record
        self._times = parse_cpu_stat(record)
        is_full = is_full or moved is None
        # who waits for I/O asked for it
        if is_full or moved is None or before is None or moved[:2] != before[:2]:
            self._io_stall_s = self._of_cgroup("io.pressure", parse_pressure)
        if is_full:
            resident = sum_resident_bytes(self._root, self.members)
            memory_stall_s = self._of_cgroup("memory.pressure", parse_pressure)
            self._seldom = (resident, memory_stall_s, self._measure_output())
            self.look_at_disks()

    def _count(self, *, is_full: bool) -> Use | None:
        if self.silent is not None:
            return None
        try:
            self.members = self._list(is_full=is_full)
            return self._io.read(self.members)
        except SilentError as error:
            self.silent = error.pid
        except OSError:
            pass
        return None

    def _list(self, *, is_full: bool) -> list[int]:
        """Its processes, parents before children."""
        if self._cgroup is None:
            return [] if self.holder is None else tree_of(children_of(self.holder))
        try:
            if is_full:
                self._has_below = True  # stays so if the file cannot be read
                self._has_below = NONE_BELOW not in read_file(f"{self._cgroup}/cgroup.stat")
            if self._has_below:
                return read_members(self._cgroup)
            text = self._procs.read()
            return parse_procs(text if len(text) < _WHOLE_BYTES else read_file(self._procs.path))
        except NoData:
            return []

    def look_at_disks(self) -> bool:
        """Read its bytes on leaf disks (upper layers repeat them); returns whether they changed.

        The kernel writes back what it made dirty, also while the job stands still.
        """
        if not self._has_io_stat:
            return False
        before, self._on_disks = self._on_disks, (None, None)
        found = self._of_cgroup("io.stat", parse_io_stat, read_file)
        if found is not None:
            moved = [stat for number, stat in found.items() if number in self._disks]
            self._on_disks = sum(each[0] for each in moved), sum(each[1] for each in moved)
        self._has_io_stat = found is not None
        return self._on_disks != before

    def _of_cgroup(
        self, name: str, parse: Callable[[bytes], _T], read: Reader = read_small
    ) -> _T | None:
        return None if self._cgroup is None else known(f"{self._cgroup}/{name}", parse, read)

    def _measure_output(self) -> int | None:
        """Disk space of its own output and its report, without holes.

        The job's user owns the files, and can make them large without writing to them.
        """
        taken = []
        for path in self._outputs:
            with contextlib.suppress(OSError):
                taken.append(os.lstat(path).st_blocks * _BLOCK_BYTES)
        return sum(taken) if taken else None

    def close(self) -> None:
        self._io.close()
        self._cpu.close()
        self._procs.close()


class Sampler:
    """Answers requests; ``opened`` is the daemon's first line."""

    def __init__(self, settings: Settings, opened: dict[str, Any], position: Position) -> None:
        self._settings = settings
        self._devices: dict[str, str] = opened["devices"]
        self._disks = frozenset(self._devices.values())
        self._position = position
        self._jobs: dict[int, Job] = {}
        self._sweeps = 0
        root = Path(settings.root)
        self._diskstats = f"{root}/proc/diskstats"
        self._node = NodeCountersReader(root, opened["cpus"], settings.jobs)
        self._files = OpenFiles(root, position)

    def sweep(self, request: dict[str, Any]) -> dict[str, Any]:
        if "jobs" in request:
            self._follow(request["jobs"])
        wanted, position = frozenset(request.get("read", ())), self._position
        disks = known(self._diskstats, lambda text: parse_diskstats(text, self._devices), read_file)
        rows: list[list[Any]] = []
        files: list[tuple[int, int, list[str] | None]] = []
        silent = False
        reach("sampler.sweeping")
        self._sweeps = sweep = self._sweeps + 1
        period = max(PERIOD, len(self._jobs) // MOST_JOBS)
        self._files.begin()
        for number, job in self._jobs.items():
            record, turn = job.look(), sweep + number
            if record and record == job.record and number not in wanted and turn % _MOST_REPEATS:
                if not turn % _SELDOM and job.look_at_disks():
                    rows.append(job.row())
                continue
            position.job, position.pid = number, 0
            job.read(sweep, record)
            rows.append(job.row())
            if not turn % period:
                files.append((number, job.attempt, self._files.look(job.members)))
            if job.silent is not None:
                position.is_careful = silent = True
        position.pid, position.is_careful = 0, silent
        return {"jobs": rows, "disks": disks or {}, "node": self._node.read(), "files": files}

    def _follow(self, wanted: list[list[Any]]) -> None:
        before, self._jobs = self._jobs, {}
        for number, attempt, holder, silent in wanted:
            job = before.pop(number, None)
            if job is not None and (job.attempt, job.holder) != (attempt, holder):
                job.close()
                job = None
            self._jobs[number] = job or Job(
                *(number, attempt, holder, silent),
                settings=self._settings,
                position=self._position,
                disks=self._disks,
            )
            self._position.is_careful |= silent is not None
        for job in before.values():
            job.close()


def serve(line: socket.socket, settings: Settings) -> None:
    """Answer until the connection ends."""
    telling = threading.Lock()

    def tell(job: int, pid: int) -> None:
        telling.acquire()  # nothing else is said after that
        line.sendall(_encode({"silent": (job, pid)}))

    position = Position()
    watch = Watch(position, tell)
    with line.makefile("rb") as file:
        requests = (json.loads(each) for each in iter(file.readline, b"") if each.endswith(b"\n"))
        if (opened := next(requests, None)) is None:
            return
        sampler = Sampler(settings, opened, position)
        for request in requests:
            with watch:
                answer = _encode(sampler.sweep(request))
            with telling:
                line.sendall(answer)


def _encode(answer: dict[str, Any]) -> bytes:
    return _JSON.encode(answer).encode() + b"\n"


def main() -> None:
    """Run the sampler; the argument is ``Settings`` as JSON."""
    settings = Settings(**json.loads(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    syscalls.name_process("iod-sampler")
    if settings.uid != os.geteuid():
        syscalls.become_reader(settings.uid, _NO_GROUP if settings.gid is None else settings.gid)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    syscalls.end_with_parent()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(BrokenPipeError, ConnectionError), line:
        if os.getppid() != settings.parent:
            return
        line.connect(bytes.fromhex(settings.address))
        if peer_of(line)[1] == settings.uid:
            serve(line, settings)
