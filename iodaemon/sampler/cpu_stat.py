"""cpu.stat of a cgroup: CPU time of all processes that are or were in it.

cgroup v2, Linux 4.15 and newer (in the root cgroup since Linux 5.8); needs no controller.
Documentation/admin-guide/cgroup-v2.rst, section "CPU Interface Files".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

_US_PER_S: Final = 1_000_000
"""``*_usec`` counts microseconds."""
_CGROUP_ROOT: Final = Path("sys/fs/cgroup")


class CpuStat(msgspec.Struct, frozen=True, kw_only=True):
    """CPU time since the cgroup was made, s.

    Attributes:
        usage_s: user and system together.
        user_s: in user mode.
        system_s: in the kernel.
    """

    usage_s: float
    user_s: float
    system_s: float


def parse_cpu_stat(text: bytes | str) -> CpuStat:
    """The CPU times in a cpu.stat.

    Raises:
        NoData: one of the three is missing (cgroup v1, or a text that is cut short).
    """
    values_s: dict[bytes, float] = {}
    for line in whole_lines(as_bytes(text)):
        name, _, digits = line.partition(b" ")
        if digits.isdigit():
            values_s[name] = int(digits) / _US_PER_S
    try:
        return CpuStat(
            usage_s=values_s[b"usage_usec"],
            user_s=values_s[b"user_usec"],
            system_s=values_s[b"system_usec"],
        )
    except KeyError as error:
        raise NoData(f"cpu_stat: no line {error.args[0].decode()}") from error


class Sampler:
    """Reads a cgroup's cpu.stat.

    Args:
        root: ``/``, or a directory that looks like it.
        cgroup: the cgroup's directory below root.
    """

    def __init__(self, root: Path, *, cgroup: Path = _CGROUP_ROOT) -> None:
        self._file = KeptFile(root / cgroup / "cpu.stat")

    def read(self) -> CpuStat:
        """The CPU times now.

        Raises:
            NoData: no such file, or the cgroup is gone.
        """
        return parse_cpu_stat(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
