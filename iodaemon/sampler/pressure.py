"""/proc/pressure/{cpu,io,memory} and a cgroup's *.pressure: time lost by waiting.

Linux 4.20 and newer with CONFIG_PSI; the ``full`` line of cpu since Linux 5.13.
Documentation/accounting/psi.rst, Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

_US_PER_S: Final = 1_000_000
"""``total=`` counts microseconds (Documentation/accounting/psi.rst)."""

Resource = Literal["cpu", "io", "memory"]


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """Stall times of one resource since boot, or since the cgroup was made.

    Attributes:
        some_s: time in which at least one task waited.
        full_s: time in which all tasks that were not idle waited; None where not counted.
    """

    some_s: float
    full_s: float | None = None


def parse_pressure(text: bytes | str) -> Pressure:
    """The stall times in a pressure file.

    Raises:
        NoData: no whole ``some`` line in it.
    """
    totals_s: dict[bytes, float] = {}
    for line in whole_lines(as_bytes(text)):
        kind, _, rest = line.partition(b" ")
        digits = rest.rpartition(b"total=")[2]
        if digits.isdigit():
            totals_s[kind] = int(digits) / _US_PER_S
    if b"some" not in totals_s:
        raise NoData("pressure: no total of some")
    return Pressure(some_s=totals_s[b"some"], full_s=totals_s.get(b"full"))


class Sampler:
    """Reads the pressure of the machine or of a cgroup.

    Args:
        root: ``/``, or a directory that looks like it.
        resource: which of the files.
        cgroup: the cgroup's directory below root; None: the whole machine.
    """

    def __init__(
        self, root: Path, *, resource: Resource = "io", cgroup: Path | None = None
    ) -> None:
        if cgroup is None:
            self._file = KeptFile(root / "proc/pressure" / resource)
        else:
            self._file = KeptFile(root / cgroup / f"{resource}.pressure")

    def read(self) -> Pressure:
        """The stall times now.

        Raises:
            NoData: no such file (old kernel, booted with psi=0), or the cgroup is gone.
        """
        return parse_pressure(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
