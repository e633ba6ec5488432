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
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from iodaemon.errors import NoData
from iodaemon.fault import reach
from iodaemon.node.sampler.cgroup_files import (
    IoStat,
    parse_cpu_stat,
    parse_io_stat,
    parse_procs,
    read_members,
)
from iodaemon.node.sampler.job_io import (
    Allowance,
    JobIo,
    Moved,
    Position,
    SilentError,
    UnknownError,
    Watch,
)
from iodaemon.node.sampler.node_counters import NodeCountersReader
from iodaemon.node.sampler.open_files import OpenFiles
from iodaemon.node.sampler.proc_files import (
    WHOLE_BYTES,
    KeptFile,
    descendants_of,
    is_executing,
    parse_diskstats,
    parse_pressure,
    read_seldom,
    sum_resident_bytes,
)
from iodaemon.supervisor import syscalls
from iodaemon.supervisor.identity import peer_of

_BLOCK_BYTES: Final = 512
"""Of st_blocks, whatever the filesystem's own are (inode(7))."""
_FIRST_READINGS: Final = 4
_SELDOM: Final = 4
"""Readings of a job, after the first ones, from one of its memory, stall times, bytes on devices,
output and cgroups below its own to the next."""
_WRITTEN_BACK: Final = 64
"""Sweeps after a job has run in which what it made dirty may still be written back."""
_MOST_REPEATS: Final = 512
"""Sweeps after which all of a job at rest is read again."""
_LONG: Final = 64
_MOST_LOOKS: Final = 2500
"""In one sweep, about: where there are more jobs, those at rest for ``_LONG`` sweeps and more are
looked at in turn."""
_RECORD_BYTES: Final = 64
"""Of cpu.stat: usage_usec and user_usec are its first lines."""
_NO_GROUP: Final = 65534
_WHOLE: Final = b"nr_descendants 0\n"
_BYTES: Final = 3
"""Fields of ``Moved`` that are of disks."""
_NO_DEVICE: Final = {"0:0": IoStat()}
"""Says that there is nothing yet, which is not to be unknown."""
_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)

Row = tuple[int | float | Moved | None, ...]
OnDevice = tuple[int, str, int, int]
"""Rows of ``jobs`` and of ``moved`` (the package's ``__init__``)."""


class Settings(NamedTuple):
    """How the sampler is started.

    Attributes:
        address: the daemon listens there: the name of an abstract socket, in hexadecimal.
        parent: the process that started it, with which it ends as well.
        uid: the daemon's user, which the sampler becomes.
        gid: likewise its group; None: nobody's.
        jobs: the cgroup below which each job has its own; None: there is none.
        outputs: directory of the jobs' own output files; None: none is looked at.
        root: ``/``, or a directory that looks like it.
    """

    address: str
    parent: int
    uid: int
    gid: int | None = None
    jobs: str | None = None
    outputs: str | None = None
    root: str = "/"

    def dump(self) -> str:
        return json.dumps(self._asdict())


class Shared(NamedTuple):
    """What the readers of all jobs have in common."""

    settings: Settings
    allowance: Allowance
    position: Position


class Job:
    """One job's sources, and what was told of it last.

    Attributes:
        silent: a process of it that does not answer; None: all do.
        cgroup: its own; None: it has none.
        record: the beginning of its ``cpu.stat`` when it was read last; empty: it is to be read.
        ran: the sweep in which it was read last.
    """

    __slots__ = (
        *("number", "silent", "cgroup", "record", "ran", "_cpu", "_procs", "_io", "_allowance"),
        *("_root", "_holder", "_members", "_missing", "_row", "_counts", "_seldom", "_outputs"),
        *("_readings", "_has_below", "_on_devices"),
    )

    def __init__(
        self, number: int, attempt: int, holder: int | None, silent: int | None, shared: Shared
    ) -> None:
        settings, name = shared.settings, f"{number}.{attempt}"
        self.number = number
        self.silent = silent
        self.cgroup = None if holder is not None else settings.jobs and f"{settings.jobs}/{name}"
        self.record = b""
        self.ran = 0
        self._cpu = KeptFile(f"{self.cgroup}/cpu.stat")
        self._allowance = shared.allowance
        self._procs: KeptFile | None = None
        self._io = JobIo(settings.root, shared.allowance, shared.position)
        self._root = settings.root.rstrip("/")
        self._holder = holder
        self._members: list[int] = []
        self._missing: tuple[str, ...] = ()
        self._row: Row = ()
        self._counts: Moved | None = None
        self._seldom: tuple[int | None, float | None, float | None, int | None] = (None,) * 4
        own = settings.outputs and f"{settings.outputs}/{name}"
        self._outputs = [own, f"{own}.report"] if own else []
        self._readings = 0
        self._has_below = False
        self._on_devices: dict[str, IoStat] = {}

    def last_members(self) -> list[int]:
        """Its processes at the last reading, parents before children."""
        return self._members

    def look(self) -> bytes:
        """The beginning of its ``cpu.stat``; empty: it has none, or is gone."""
        try:
            return self._cpu.read_record(_RECORD_BYTES) if self.cgroup is not None else b""
        except (NoData, OSError):
            return b""

    def read(self, sweep: int, record: bytes) -> tuple[Row | None, list[OnDevice]]:
        """The row of its counters, None if it is as it was told last, and those of devices.

        Args:
            sweep: its number.
            record: what ``look`` says.
        """
        if self.silent is not None and not is_executing(self.silent):
            self.silent = None
        before, self.ran = self._counts, sweep
        is_full = self._readings < _FIRST_READINGS or not (sweep + self.number) % _SELDOM
        self._readings += 1
        counts = self._counts = self._count(is_full=is_full)
        self.record = b"" if counts is None else record
        moved: list[OnDevice] = []
        if is_full or counts is None:
            self._look_at_all()
            moved = self.look_at_devices()
        elif before is None or counts[:_BYTES] != before[:_BYTES]:  # who waits for I/O asked for it
            resident, _, memory_s, output = self._seldom
            self._seldom = (resident, self._stall_s("io"), memory_s, output)
        row = (self.number, self.silent, counts, *_times(record), *self._seldom)
        if row == self._row:
            return None, moved
        self._row = row
        return row, moved

    def _count(self, *, is_full: bool) -> Moved | None:
        if self.silent is not None:
            return None
        try:
            self._members = self._list(is_full=is_full)
            return self._io.read(self._members)
        except SilentError as error:
            self.silent = error.pid
        except (UnknownError, OSError):
            pass
        return None

    def _list(self, *, is_full: bool) -> list[int]:
        """Its processes, parents before children."""
        if self.cgroup is None:
            return [] if self._holder is None else list(descendants_of(self._holder, self._root))
        try:
            if is_full:
                self._has_below = _WHOLE not in read_seldom(f"{self.cgroup}/cgroup.stat")
            if self._has_below:
                return read_members(self.cgroup)
            path = f"{self.cgroup}/cgroup.procs"
            if self._procs is None and self._allowance.take():
                self._procs = KeptFile(path)
            text = read_seldom(path) if self._procs is None else self._procs.read_record()
            return parse_procs(text if len(text) < WHOLE_BYTES else read_seldom(path))
        except NoData:
            return []

    # -- what is read seldom -----------------------------------------------------------------------

    def _look_at_all(self) -> None:
        resident = None
        with contextlib.suppress(OSError):
            resident = sum_resident_bytes(self._root, self._members)
        self._seldom = (
            resident,
            self._stall_s("io"),
            self._stall_s("memory"),
            self._measure_output(),
        )

    def _stall_s(self, resource: str) -> float | None:
        try:
            return parse_pressure(self._read_seldom(f"{resource}.pressure")).some_s
        except (NoData, OSError):
            return None

    def look_at_devices(self) -> list[OnDevice]:
        """Rows of what it moved on those where that has changed.

        What it made dirty is written back without it, also while it stands still.
        """
        try:
            found = parse_io_stat(self._read_seldom("io.stat")) or _NO_DEVICE
        except (NoData, OSError):
            return []
        before, self._on_devices = self._on_devices, found
        return [
            (self.number, device, *stat)
            for device, stat in found.items()
            if before.get(device) != stat
        ]

    def _read_seldom(self, name: str) -> bytes:
        """A file of its cgroup; one that is missing is looked for once.

        Raises:
            NoData: there is none.
            OSError: no descriptor is left.
        """
        if self.cgroup is None or name in self._missing:
            raise NoData(name)
        try:
            return read_seldom(f"{self.cgroup}/{name}")
        except NoData:
            self._missing += (name,)
            raise

    def _measure_output(self) -> int | None:
        """Room that its own output and its report take of their filesystem, holes not counted.

        The files are their user's, who may make them large without writing to them.
        """
        taken, self._outputs, looked_at = [], [], self._outputs
        for path in looked_at:  # one that is not made before it runs never is
            with contextlib.suppress(OSError):
                taken.append(os.lstat(path).st_blocks * _BLOCK_BYTES)
                self._outputs.append(path)
        return sum(taken) if taken else None

    def close(self) -> None:
        self._io.close()
        self._cpu.close()
        if self._procs is not None:
            self._procs.close()
            self._allowance.give()


def _times(record: bytes) -> tuple[float | None, float | None]:
    try:
        return parse_cpu_stat(record)
    except NoData:
        return None, None


class Sampler:
    """Follows jobs, and answers sweeps.

    Args:
        settings: as it was started.
        opened: the daemon's first line.
        position: where the sweep is.
    """

    def __init__(self, settings: Settings, opened: dict[str, Any], position: Position) -> None:
        root = Path(settings.root)
        self._shared = Shared(settings, Allowance(), position)
        self._position = position
        self._jobs: dict[int, Job] = {}
        self._silent: set[int] = set()
        self._sweeps = 0
        self._devices = frozenset(opened["devices"])
        self._diskstats = KeptFile(root / "proc/diskstats")
        self._node = NodeCountersReader(root, opened["cpus"])
        self._files = OpenFiles(root, position)

    def sweep(self, request: dict[str, Any], at_s: float) -> dict[str, Any]:
        """The answer to one request."""
        self._follow(request)
        wanted, position = frozenset(request.get("read", ())), self._position
        node, disks = self._node.read(at_s), self._read_disks()
        position.is_careful = bool(self._silent)
        jobs: list[Row] = []
        moved: list[OnDevice] = []
        reach("sampler.sweeping")
        self._sweeps = sweep = self._sweeps + 1
        stretch = 1 + len(self._jobs) // _MOST_LOOKS
        for number, job in self._jobs.items():
            is_long = stretch > 1 and sweep - job.ran > _LONG
            if is_long and (sweep + number) % stretch and job.record and number not in wanted:
                continue
            record = job.look()
            if record and record == job.record and number not in wanted:
                turn = sweep + number
                if not turn % _SELDOM and sweep - job.ran < _WRITTEN_BACK:
                    moved += job.look_at_devices()
                if turn % _MOST_REPEATS:
                    continue
            position.job, position.pid = number, 0
            row, on_devices = job.read(sweep, record)
            self._files.note(number)
            moved += on_devices
            if row is None:
                continue
            jobs.append(row)
            if (job.silent is not None) != (number in self._silent):
                self._silent ^= {number}
                position.is_careful |= job.silent is not None
        position.pid = 0
        files = [
            (job, None if lines is None else [line.decode("latin-1") for line in sorted(lines)])
            for job, lines in self._files.read().items()
        ]
        position.pid = 0
        return {"jobs": jobs, "moved": moved, "disks": disks, "node": node, "files": files}

    def _follow(self, request: dict[str, Any]) -> None:
        for number in request.get("remove", ()):
            if (gone := self._jobs.pop(number, None)) is not None:
                gone.close()
                self._silent.discard(number)
                self._files.remove(number)
                self._node.memory.remove(number)
        for number, attempt, holder, silent in request.get("add", ()):
            job = self._jobs[number] = Job(number, attempt, holder, silent, self._shared)
            if silent is not None:
                self._silent.add(number)
            self._files.add(number, job.last_members)
            self._node.memory.add(number, job.last_members, job.cgroup)

    def _read_disks(self) -> dict[str, tuple[int, ...]]:
        try:
            return parse_diskstats(self._diskstats.read(), self._devices)
        except (NoData, OSError):
            return {}


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
                answer = _encode(sampler.sweep(request, time.monotonic()))
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
