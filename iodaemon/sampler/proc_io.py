"""/proc/PID/io: what a process, its threads and its waited-for children moved.

Linux 2.6.20 and newer with CONFIG_TASK_IO_ACCOUNTING. Documentation/filesystems/proc.rst
section 3.3, man proc_pid_io(5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes

_LABELS: Final = [
    b"rchar:",
    b"wchar:",
    b"syscr:",
    b"syscw:",
    b"read_bytes:",
    b"write_bytes:",
    b"cancelled_write_bytes:",
]
_WORDS: Final = 2 * len(_LABELS)


class ProcIo(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One process with all threads and reaped children, since its start.

    Attributes:
        rchar_bytes: returned by read calls, from wherever (page cache, pipes, terminals).
        wchar_bytes: handed to write calls, to wherever.
        read_calls: read system calls (syscr).
        write_calls: write system calls (syscw).
        read_bytes: submitted to a device or network filesystem: readahead, page faults and
            swap-in included.
        write_bytes: dirtied in the page cache or written directly; no swap-out.
        cancelled_write_bytes: dirtied by anybody, then truncated by this process before it
            reached the disk; may exceed ``write_bytes``.
    """

    rchar_bytes: int
    wchar_bytes: int
    read_calls: int
    write_calls: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int


def parse_proc_io(text: bytes | str) -> ProcIo:
    """The counters in a /proc/PID/io.

    Raises:
        NoData: cut short, empty, or of a kernel that does not count bytes.
    """
    text = as_bytes(text)
    words = text.split()
    if words[:_WORDS:2] != _LABELS or not text.endswith(b"\n"):
        raise NoData("proc_io: not the seven lines of /proc/PID/io")
    try:
        return ProcIo(
            rchar_bytes=int(words[1]),
            wchar_bytes=int(words[3]),
            read_calls=int(words[5]),
            write_calls=int(words[7]),
            read_bytes=int(words[9]),
            write_bytes=int(words[11]),
            cancelled_write_bytes=int(words[13]),
        )
    except (ValueError, IndexError) as error:
        raise NoData("proc_io: a value is not a number") from error


class Sampler:
    """Reads one process's /proc/PID/io.

    Args:
        root: ``/``, or a directory that looks like it.
        pid: the process; None: this one.
    """

    def __init__(self, root: Path, *, pid: int | None = None) -> None:
        self._file = KeptFile(root / "proc" / ("self" if pid is None else str(pid)) / "io")

    def read(self) -> ProcIo:
        """The counters now.

        Raises:
            NoData: the process is gone (a zombie still answers).
            PermissionError: another user's process; needs CAP_SYS_PTRACE and
                CAP_DAC_READ_SEARCH.
        """
        return parse_proc_io(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
