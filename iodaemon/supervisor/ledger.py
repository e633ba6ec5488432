"""The ledger: one append-only file on tmpfs that outlives every process of the root side.

Each record has 64 bytes and a checksum. ``EXEC`` is written by the job's own child just before
``execve``: without it the attempt never ran. ``EXIT`` is written before the process is waited for,
``USE`` after that, so that no death of the writer loses how a job ended; without the ``USE`` of
its first process the bytes of an attempt are "at least". ``HOLD`` is written without cgroups, by
the process that holds a job, before it makes the job's own. Appends of several processes do not mix
(O_APPEND); a record that is cut or damaged is skipped.

A ``USE`` contains all that its writer has taken in of an attempt so far. So of each writer the last
one counts, a record that is read twice changes nothing, and the total is the sum over the writers.

Pages whose records are all superseded, or of forgotten attempts, are given back to tmpfs by
punching holes, so offsets never change. Room for the records of all that runs is allocated ahead:
on a full tmpfs no new attempt is prepared, and every end is still recorded.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from iodaemon.supervisor import syscalls

OPEN: Final = 1
EXEC: Final = 2
EXIT: Final = 3
USE: Final = 4
HOLD: Final = 5
MAIN: Final = 1
"""Flag of ``USE``: the attempt's first process was waited for."""
AT_LEAST: Final = 2
"""Flag of ``USE``: the kernel itself reaped children of the job; their bytes are unknown."""
RECORD_BYTES: Final = 64
_FIELDS: Final = struct.Struct("<BBIQI42s")
_VALUES, _VALUE_BYTES = 6, 7
_FORM: Final = 2
"""Begins the checksum: records of another form, as of an earlier release, are skipped."""
_SUM: Final = struct.Struct("<I")
_PAGE: Final = 4096
_BLOCK: Final = 64 * 1024
_SWEEP: Final = 128
"""Records that are read, or attempts forgotten, between two looks for pages to give back."""
_AHEAD: Final = 16 * 1024
"""Bytes that are allocated beyond what is needed."""
_MOST: Final = (1 << 8 * _VALUE_BYTES) - 1
_MAX_JOB: Final = (1 << 63) - 1
_MAX_ATTEMPT: Final = (1 << 31) - 1


class Key(NamedTuple):
    """One attempt of one job; written ``job.attempt``."""

    job: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt}"


def parse_key(text: object) -> Key:
    """Raises ValueError unless it is the one way to write a key."""
    if isinstance(text, str) and len(text) < 32:
        job, _, attempt = text.partition(".")
        if job.isascii() and attempt.isascii() and job.isdigit() and attempt.isdigit():
            key = Key(int(job), int(attempt))
            if str(key) == text and key.job <= _MAX_JOB and key.attempt <= _MAX_ATTEMPT:
                return key
    raise ValueError(f"no key: {str(text)[:40]!r}")


class Use(NamedTuple):
    """What processes used that were waited for.

    ``calls`` counts reads and writes, ``logical_bytes`` what they moved, also from and to caches.
    ``written_bytes`` were dirtied; ``cancelled_bytes`` were dirtied, by these processes or others,
    and deleted by these before they reached the disk.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    calls: int = 0
    cpu_us: int = 0
    logical_bytes: int = 0
    cancelled_bytes: int = 0

    def plus(self, other: Use) -> Use:
        """The sum, not below this one."""
        return Use(*(a + max(0, b) for a, b in zip(self, other, strict=True)))


class Record(NamedTuple):
    """One record.

    ``pid`` is the attempt's first process, 0 in an EXEC of the supervisor, which found it running
    without one; of USE, who wrote it. ``values`` are at most six numbers below 2**56: of EXEC the
    start ticks and the time, of EXIT the status as wait(2) has it and the time, of HOLD the start
    ticks, of USE a ``Use``.
    """

    kind: int
    key: Key
    pid: int = 0
    flags: int = 0
    values: Sequence[int] = ()

    def pack(self) -> bytes:
        values = (*self.values, *[0] * (_VALUES - len(self.values)))
        raw = b"".join(min(max(0, n), _MOST).to_bytes(_VALUE_BYTES, "little") for n in values)
        data = _FIELDS.pack(self.kind, self.flags, self.pid, *self.key, raw)
        return data + _SUM.pack(zlib.crc32(data, _FORM))


def unpack(data: bytes) -> Record | None:
    """None: the record is damaged."""
    if len(data) != RECORD_BYTES or _SUM.unpack_from(data, 60)[0] != zlib.crc32(data[:60], _FORM):
        return None
    kind, flags, pid, job, attempt, raw = _FIELDS.unpack_from(data)
    places = range(0, len(raw), _VALUE_BYTES)
    values = [int.from_bytes(raw[at : at + _VALUE_BYTES], "little") for at in places]
    return Record(kind, Key(job, attempt), pid, flags, values)


def now_us() -> int:
    """Microseconds of CLOCK_MONOTONIC: nobody sets it, and all processes read the same."""
    return time.monotonic_ns() // 1000


class Entry:
    """What the ledger says of one attempt; ``status`` is as wait(2) has it, None: not ended."""

    __slots__ = (
        "exited_us", "flags", "has_run", "holder", "pages", "pid", "started_us", "status", "ticks",
        "uses",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pid = self.ticks = self.started_us = self.exited_us = self.flags = 0
        self.status: int | None = None
        self.holder: tuple[int, int] | None = None
        """Pid and start ticks."""
        self.has_run = False
        """Whether its command was executed, or may have been."""
        self.uses: dict[int, Use] = {}
        self.pages: dict[tuple[int, int], int] = {}
        """Where the record lies that counts of each kind and pid."""

    @property
    def use(self) -> Use:
        """Of all that was waited for, by whomever."""
        return Use(*map(sum, zip(*self.uses.values(), strict=True))) if self.uses else Use()


class Ledger:
    """The open file and what was read of it so far.

    Invariant: ``running`` has the first process of each attempt that has an EXEC and no EXIT.
    """

    def __init__(self, fd: int, *, from_end: bool = False) -> None:
        """Read all that it says; from the end: only what is appended from now on."""
        self.fd = fd
        self.entries: dict[Key, Entry] = {}
        self.running: dict[int, Key] = {}
        self.changed: set[Key] = set()
        """Attempts of which something was read; whoever acts on that removes them."""
        self.identity = ""
        self._boot: tuple[int, ...] = ()
        self._read_at = 0
        self._open_page = 0
        self._ahead_to = 0
        self._knows_all = not from_end
        self._swept_to = self._forgotten = 0
        self._kept: set[int] = set()
        """Pages that were read and not given back."""
        self._owed: dict[tuple[int, Key], bytes] = {}
        if from_end:
            self._take(os.pread(fd, RECORD_BYTES, 0), 0)
            self._read_at = os.fstat(fd).st_size
        self.catch_up()

    def begin(self) -> None:
        """Give it an identity, if it has none: it is new, or its records have another form."""
        if not self.identity:
            values = (int.from_bytes(os.urandom(_VALUE_BYTES)), *_boot_numbers())
            os.write(self.fd, Record(OPEN, Key(0, 0), values=values).pack())
            self.catch_up()

    def catch_up(self) -> None:
        """Read what was appended since, by whomever."""
        while True:
            data = os.pread(self.fd, _BLOCK, self._read_at)
            whole = len(data) - len(data) % RECORD_BYTES
            if not whole:
                break
            if not any(data[:RECORD_BYTES]) and self._skip_hole():
                continue
            for offset in range(0, whole, RECORD_BYTES):
                self._take(data[offset : offset + RECORD_BYTES], self._read_at + offset)
            first, self._read_at = self._read_at, self._read_at + whole
            if self._knows_all:
                self._kept.update(range(first // _PAGE, -(-self._read_at // _PAGE)))
            if len(data) < _BLOCK:
                break
        if self._knows_all:
            self._give_back()

    def _skip_hole(self) -> bool:
        """Go to where there are data again; whether that is further on."""
        try:
            data_at = os.lseek(self.fd, self._read_at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data_at = os.fstat(self.fd).st_size
        data_at -= data_at % RECORD_BYTES
        is_further = data_at > self._read_at
        self._read_at = max(data_at, self._read_at)
        return is_further

    def _take(self, data: bytes, offset: int) -> None:
        record = unpack(data)
        if record is not None:
            self._apply(record, offset // _PAGE)
            if record.kind != OPEN:
                self.changed.add(record.key)

    def _apply(self, record: Record, page: int | None) -> None:
        if record.kind == OPEN:
            self.identity = f"{record.values[0]:016x}"
            self._boot = tuple(record.values[1:3])
            self._open_page = page or 0
            return
        entry = self.entries.setdefault(record.key, Entry())
        if page is not None:
            entry.pages[record.kind, record.pid] = page
        entry.has_run |= record.kind in (EXEC, EXIT)
        if record.kind == EXEC and record.pid:
            entry.pid = record.pid
            entry.ticks, entry.started_us = record.values[:2]
            if entry.status is None:
                self.running[record.pid] = record.key
        elif record.kind == EXIT and entry.status is None:
            entry.status, entry.exited_us = record.values[:2]
            if self.running.get(record.pid) == record.key:
                del self.running[record.pid]
        elif record.kind == HOLD:
            entry.holder = record.pid, record.values[0]
        elif record.kind == USE:
            before = entry.uses.get(record.pid, Use())  # what was owed is read late
            entry.uses[record.pid] = Use(*map(max, before, record.values))
            entry.flags |= record.flags

    def append(self, record: Record) -> None:
        """Append it now; on a full tmpfs when there is room. In memory it is true at once."""
        self._owed.pop((record.kind, record.key), None)
        self._owed[record.kind, record.key] = record.pack()
        self._apply(record, None)
        self._pay()

    def add_use(self, key: Key, use: Use, flags: int = 0) -> None:
        """Append what the calling process has taken in of an attempt, this and all before."""
        entry, writer = self.entries.get(key) or Entry(), os.getpid()
        total = entry.uses.get(writer, Use()).plus(use)
        self.append(Record(USE, key, writer, entry.flags | flags, total))

    def _pay(self) -> None:
        """Append what is owed, as long as there is room."""
        while self._owed:
            place, data = next(iter(self._owed.items()))
            try:
                written = os.write(self.fd, data)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG):
                    raise
                return
            if written < RECORD_BYTES:  # cut: the rest of the record's place is filled up
                with contextlib.suppress(OSError):
                    os.write(self.fd, bytes(RECORD_BYTES - written))
                return
            del self._owed[place]

    def has_room(self) -> bool:
        """Allocate ahead; whether every attempt that runs, and one more, can be recorded whole."""
        self._pay()
        end = os.fstat(self.fd).st_size
        needed = (4 * len(self.running) + 16) * RECORD_BYTES
        if self._ahead_to < end + needed + _AHEAD // 2:
            first = max(self._ahead_to, end)
            wanted = end + needed + _AHEAD
            with contextlib.suppress(OSError):
                syscalls.fallocate(self.fd, syscalls.FALLOC_KEEP_SIZE, first, wanted - first)
                self._ahead_to = wanted
        return not self._owed and self._ahead_to >= end + needed

    def forget(self, key: Key) -> None:
        """Drop an attempt that has ended; pages without any other are given back."""
        self.catch_up()  # else its last records would make it known again
        entry = self.entries.pop(key, None)
        self.changed.discard(key)
        if entry is None:
            return
        if self.running.get(entry.pid) == key:
            del self.running[entry.pid]
        self._forgotten += 1
        self._give_back()

    def _give_back(self) -> None:
        """Punch the pages that are full and in which no record is needed."""
        if self._forgotten < _SWEEP and self._read_at < self._swept_to + _SWEEP * RECORD_BYTES:
            return
        self._swept_to, self._forgotten = self._read_at, 0
        mode = syscalls.FALLOC_PUNCH_HOLE | syscalls.FALLOC_KEEP_SIZE
        needed = {self._open_page}.union(*(entry.pages.values() for entry in self.entries.values()))
        end = self._read_at // _PAGE
        for page in [page for page in self._kept if page < end and page not in needed]:
            self._kept.discard(page)
            with contextlib.suppress(OSError):
                syscalls.fallocate(self.fd, mode, page * _PAGE, _PAGE)

    @property
    def is_of_this_boot(self) -> bool:
        return self._boot == _boot_numbers()


@functools.cache
def read_boot_id() -> str:
    """Read once: a process does not outlive a boot, and later no descriptor may be left."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _boot_numbers() -> tuple[int, int]:
    digits = read_boot_id().replace("-", "")
    return int(digits[:14], 16), int(digits[14:28], 16)


def let_read(fd: int, gid: int | None) -> None:
    """Let this group read an open file that nobody else reads; None: no group."""
    if gid is not None:
        os.fchown(fd, -1, gid)
        os.fchmod(fd, 0o640)


def open_ledger(path: str) -> Ledger:
    """The ledger of this boot at this path. One of an earlier boot is renamed to ``PATH.old``.

    Raises OSError: it cannot be made, or is no file of the caller's own.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        fd = os.open(path, flags, 0o600)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(fd)
            raise OSError(errno.EPERM, "it is no file of this user's own; remove it", path)
        if found.st_size % RECORD_BYTES:  # cut in the middle of a record
            os.write(fd, bytes(RECORD_BYTES - found.st_size % RECORD_BYTES))
        ledger = Ledger(fd)
        if ledger.identity and not ledger.is_of_this_boot:
            os.close(fd)
            os.rename(path, f"{path}.old")
            continue
        ledger.begin()
        return ledger
