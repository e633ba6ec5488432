"""/proc/vmstat: pages that were read again shortly after they had been given up.

Linux 3.15 and newer (workingset_refault); page cache and swap apart since Linux 5.9
(workingset_refault_file, workingset_refault_anon). A refault is a page that would still be there
with a little more memory: what thrashes, refaults. man proc_vmstat(5), kernel source
mm/workingset.c.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, find_count


class Vmstat(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the whole machine since boot.

    Attributes:
        refaulted_pages: of page cache and, since Linux 5.9, of swap.
    """

    refaulted_pages: int


def parse_vmstat(text: bytes | str) -> Vmstat:
    """The counts in a /proc/vmstat.

    Raises:
        NoData: the kernel does not count refaults, or the text is cut short before them.
    """
    text = as_bytes(text)
    file, anon = (find_count(text, b"workingset_refault_" + kind) for kind in (b"file", b"anon"))
    if file is not None and anon is not None:
        return Vmstat(refaulted_pages=file + anon)
    both = find_count(text, b"workingset_refault")
    if both is None:
        raise NoData("vmstat: no whole line of workingset_refault")
    return Vmstat(refaulted_pages=both)


class Sampler:
    """Reads /proc/vmstat.

    Args:
        root: ``/``, or a directory that looks like it.
    """

    def __init__(self, root: Path) -> None:
        self._file = KeptFile(root / "proc/vmstat")

    def read(self) -> Vmstat:
        """The counts now. They stand in the first half of the file, within one record.

        Raises:
            NoData: no such file, or the kernel does not count refaults.
        """
        return parse_vmstat(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
