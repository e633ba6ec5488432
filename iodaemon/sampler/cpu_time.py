"""/proc/stat: for how long each CPU had nothing to run.

Linux 2.6 and newer. man proc_stat(5), Documentation/filesystems/proc.rst section 1.7. Both counters
may go back a little: iowait is charged to whichever CPU a waiting task last ran on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""The file counts in USER_HZ, which is 100 everywhere but on alpha."""
_LINE_BYTES: Final = 256
"""Room for the line of a CPU: ten numbers of up to 20 digits, in practice less than 100 bytes."""
_IDLE, _IOWAIT = 4, 5
"""Words of a line, the name being the first."""


def parse_cpu_time(text: bytes | str, *, ticks_per_s: int = TICKS_PER_S) -> dict[int, float]:
    """Idle and iowait since boot in a /proc/stat, s, by CPU; those that are offline are not in it.

    Raises:
        NoData: no whole line of a CPU.
    """
    idle_s: dict[int, float] = {}
    for line in whole_lines(as_bytes(text)):
        if not line.startswith(b"cpu"):
            break
        words = line.split(None, _IOWAIT + 1)
        digits = words[0][3:], *words[_IDLE : _IOWAIT + 1]
        if len(digits) == 3 and all(map(bytes.isdigit, digits)):
            cpu, idle, iowait = map(int, digits)
            idle_s[cpu] = (idle + iowait) / ticks_per_s
    if not idle_s:
        raise NoData("cpu_time: no line of a CPU")
    return idle_s


class Sampler:
    """Reads the first lines of /proc/stat, those of the CPUs.

    Args:
        root: ``/``, or a directory that looks like it.
    """

    def __init__(self, root: Path) -> None:
        self._file = KeptFile(root / "proc/stat")
        self._size = _LINE_BYTES * (os.sysconf("SC_NPROCESSORS_CONF") + 1)

    def read(self) -> dict[int, float]:
        """Idle and iowait since boot, s, by CPU.

        Raises:
            NoData: no such file.
        """
        return parse_cpu_time(self._file.read_record(self._size))

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
