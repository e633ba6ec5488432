"""How many descriptors may be kept open between readings, whatever jobs fork."""

from __future__ import annotations

import resource
from typing import Final

MOST_OF_A_JOB: Final = 256
"""Processes of one job whose file is kept open: ranks and threads of one socket's CPUs are fewer.
Each further one is opened for each reading, 2 to 3 us more."""
_SHARE: Final = 4
"""Of the descriptors that this process may have one in so many: the others are connections."""


class Allowance:
    """What all jobs together may keep; ``take`` before, ``give`` after.

    Invariant: as many were given back as were taken, less those that are kept; never more than
    ``most`` are kept.
    """

    def __init__(self, most: int | None = None) -> None:
        """Allow so many; None: a share of this process's limit of open files."""
        self._left = _share() if most is None else most

    def take(self) -> bool:
        """True when one more may be kept."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self, count: int = 1) -> None:
        """So many are closed."""
        self._left += count


def _share() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // _SHARE
