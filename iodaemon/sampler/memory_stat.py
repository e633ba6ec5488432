"""memory.stat of a cgroup: page cache that can be given up, and what was read again.

cgroup v1 since Linux 2.6.28, v2 since Linux 4.5. Documentation/admin-guide/cgroup-v2.rst, section
"Memory Interface Files"; Documentation/admin-guide/cgroup-v1/memory.rst, section 5.2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, find_count

_CGROUP_ROOT: Final = Path("sys/fs/cgroup")
_REFAULTS: Final = (b"anon", b"file")


class MemoryStat(msgspec.Struct, frozen=True, kw_only=True):
    """A cgroup and all below it.

    Attributes:
        cache_bytes: page cache on the lists that are reclaimed (inactive_file + active_file):
            without tmpfs and shared memory, which ``file`` and ``cache`` of the same file hold too.
        refaulted_pages: read again although they had been in memory shortly before, page cache and
            anonymous memory (workingset_refault_file + workingset_refault_anon, Linux 5.9); a
            counter. None: the kernel does not count them here.
    """

    cache_bytes: int
    refaulted_pages: int | None = None


def parse_memory_stat(text: bytes | str) -> MemoryStat:
    """What is in a memory.stat; v1 has them with ``total_`` for all that is below.

    Raises:
        NoData: one is missing, as in a text that is cut short.
    """
    text = as_bytes(text)
    # v1 has its own lines first: where the text was cut before the totals they are too small.
    prefix = b"total_" if find_count(text, b"hierarchical_memory_limit") is not None else b""
    inactive, active = (
        find_count(text, prefix + name) for name in (b"inactive_file", b"active_file")
    )
    if inactive is None or active is None:
        raise NoData("memory_stat: no inactive_file and active_file")
    anon, file = (find_count(text, prefix + b"workingset_refault_" + name) for name in _REFAULTS)
    refaulted = None if anon is None or file is None else anon + file
    return MemoryStat(cache_bytes=inactive + active, refaulted_pages=refaulted)


class Sampler:
    """Reads a cgroup's memory.stat.

    Args:
        root: ``/``, or a directory that looks like it.
        cgroup: the cgroup's directory below root.
    """

    def __init__(self, root: Path, *, cgroup: Path = _CGROUP_ROOT) -> None:
        self._file = KeptFile(root / cgroup / "memory.stat")

    def read(self) -> MemoryStat:
        """The gauges now.

        Raises:
            NoData: no such file, or the cgroup is gone.
        """
        return parse_memory_stat(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
