"""The process that reads the counters of jobs, disks and the machine, a sweep on request.

It is the daemon's user, and may read other users' ``/proc/PID/io``: the supervisor starts it. It
ends with the daemon's line. A read that does not return ends it too (``job_io``); then the daemon
has another one started.

A job that has not run since the last sweep costs one pread and a comparison: what moves bytes runs
for it, for reads are counted when they are submitted, and writes when a page is made dirty.
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
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from iodaemon.errors import NoData
from iodaemon.node.sampler.cgroup_files import (
    parse_cpu_stat,
    parse_io_stat,
    parse_procs,
    read_members,
)
from iodaemon.node.sampler.job_io import JobIo, Position, SilentError, Watch
from iodaemon.node.sampler.node_counters import NodeCountersReader
from iodaemon.node.sampler.open_files import MOST_JOBS, PERIOD, OpenFiles
from iodaemon.node.sampler.proc_files import (
    KeptFile,
    Reader,
    is_executing,
    known,
    parse_diskstats,
    parse_pressure,
    read_file,
    read_record,
    sum_resident_bytes,
)
from iodaemon.supervisor import syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.ledger import Use
from iodaemon.supervisor.reap import children_of, tree_of
from iodaemon.supervisor.syscalls import peer_of

_T = TypeVar("_T")

_BLOCK_BYTES: Final = 512
"""Of st_blocks, whatever the filesystem's own are (inode(7))."""
_FIRST_READINGS: Final = 4
_SELDOM: Final = 4
"""Readings of a job, after the first ones, from one of its memory, stall times, bytes on devices,
output and cgroups below its own to the next; sweeps, while it is at rest, from one of its bytes on
devices to the next."""
_MOST_REPEATS: Final = 512
"""Sweeps after which all of a job at rest is read again."""
_RECORD_BYTES: Final = 64
"""Of cpu.stat: usage_usec and user_usec are its first lines."""
_NO_GROUP: Final = 65534
_WHOLE_BYTES: Final = 4000
"""A list of processes that is shorter is whole: one read gives a page, less a part of a line."""
_NONE_BELOW: Final = b"nr_descendants 0\n"
_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Settings(NamedTuple):
    """How the sampler is started.

    Attributes:
        address: the daemon listens there: the name of an abstract socket, in hexadecimal.
        parent: the process that started it, with which it ends as well.
        uid: the daemon's user, which the sampler becomes.
        gid: likewise its group; None: nobody's.
        jobs: the cgroup below which each job has its own; None: there is none.
        outputs: directory of the jobs' own output files; None: none is looked at.
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
        silent: a process of it that does not answer; None: all do.
        members: its processes at the last reading, parents before children.
        record: the beginning of its ``cpu.stat`` when it was read last; empty: it is to be read.
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
        self._settings = settings
        self._root = settings.root.rstrip("/")
        has_own = holder is None and settings.jobs is not None
        self._cgroup = f"{settings.jobs}/{number}.{attempt}" if has_own else None
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
        """The beginning of its ``cpu.stat``; empty: it has none, or is gone."""
        try:
            return self._cpu.read(_RECORD_BYTES) if self._cgroup is not None else b""
        except (NoData, OSError):
            return b""

    def row(self) -> list[Any]:
        """Of ``jobs`` (the package's ``__init__``)."""
        gauges = (*self._times, self._io_stall_s, *self._seldom, *self._on_disks)
        return [self.number, self.attempt, self.silent, self._moved, gauges]

    def read(self, sweep: int, record: bytes) -> None:
        """Read its counters.

        Args:
            sweep: its number.
            record: what ``look`` says.
        """
        if self.silent is not None and not is_executing(self.silent):
            self.silent = None
        is_full = self._readings < _FIRST_READINGS or not (sweep + self.number) % _SELDOM
        self._readings += 1
        before, moved = self._moved, self._count(is_full=is_full)
        self._moved, self.record = moved, b"" if moved is None else record
        self._times = parse_cpu_stat(record)
        is_full = is_full or moved is None
        if is_full or _disk_bytes(moved) != _disk_bytes(before):  # who waits for I/O asked for it
            self._io_stall_s = self._stall_s("io")
        if is_full:
            resident = sum_resident_bytes(self._root, self.members)
            self._seldom = (resident, self._stall_s("memory"), self._measure_output())
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
                self._has_below = _NONE_BELOW not in read_record(f"{self._cgroup}/cgroup.stat")
            if self._has_below:
                return read_members(self._cgroup)
            text = self._procs.read()
            return parse_procs(text if len(text) < _WHOLE_BYTES else read_file(self._procs.path))
        except NoData:
            return []

    def _stall_s(self, resource: str) -> float | None:
        return self._of_cgroup(f"{resource}.pressure", parse_pressure)

    def look_at_disks(self) -> bool:
        """Read what it moved there: on what lies upon leaf disks it would count twice.

        What it made dirty is written back without it, also while it stands still.

        Returns:
            Whether that has changed.
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
        self, name: str, parse: Callable[[bytes], _T], read: Reader = read_record
    ) -> _T | None:
        return None if self._cgroup is None else known(f"{self._cgroup}/{name}", parse, read)

    def _measure_output(self) -> int | None:
        """Room that its own output and its report take of their filesystem, holes not counted.

        The files are their user's, who may make them large without writing to them.
        """
        taken = []
        if self._settings.outputs is not None:
            own = f"{self._settings.outputs}/{self.number}.{self.attempt}"
            for path in (own, f"{own}.report"):
                with contextlib.suppress(OSError):
                    taken.append(os.lstat(path).st_blocks * _BLOCK_BYTES)
        return sum(taken) if taken else None

    def close(self) -> None:
        self._io.close()
        self._cpu.close()
        self._procs.close()


def _disk_bytes(use: Use | None) -> tuple[int, int] | None:
    return None if use is None else (use.read_bytes, use.written_bytes)


class Sampler:
    """Follows jobs, and answers sweeps.

    Args:
        settings: as it was started.
        opened: the daemon's first line.
        position: where the sweep is.
    """

    def __init__(self, settings: Settings, opened: dict[str, Any], position: Position) -> None:
        root = Path(settings.root)
        self._devices: dict[str, str] = opened["devices"]
        self._make_job = partial(
            Job,
            settings=settings,
            position=position,
            disks=frozenset(self._devices.values()),
        )
        self._position = position
        self._jobs: dict[int, Job] = {}
        self._sweeps = 0
        self._diskstats = root / "proc/diskstats"
        self._node = NodeCountersReader(root, opened["cpus"], settings.jobs)
        self._files = OpenFiles(root, position)

    def sweep(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
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
        """Read these jobs from now on, and no others."""
        before, self._jobs = self._jobs, {}
        for number, attempt, holder, silent in wanted:
            job = before.pop(number, None)
            if job is not None and (job.attempt, job.holder) != (attempt, holder):
                job.close()
                job = None
            self._jobs[number] = job or self._make_job(number, attempt, holder, silent)
            self._position.is_careful |= silent is not None
        for job in before.values():
            job.close()


def serve(line: socket.socket, settings: Settings) -> None:
    """Answer until the line ends."""
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
    """The argument is ``Settings``."""
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
