"""Which part of the test file is read next, so that no byte is read twice while there are others.

Pure but for what it remembers.
"""

from __future__ import annotations

from typing import Final

_BLOCK: Final = 1 << 20
"""Parts begin and end at such places: a multiple of every size that is read."""
_STEP: Final = 0.618
"""Of half the file, from one place to begin at to the next: they never gather."""


class Regions:
    """A test file in equal parts, one a reader.

    Args:
        whole: bytes of it.
        readers: how many parts.
    """

    def __init__(self, whole: int, readers: int) -> None:
        self.whole = whole
        self.part = whole // readers // _BLOCK * _BLOCK
        self.wrapped = False
        self._next = [0] * readers
        self._begun = 0

    def take(self, reader: int, size: int) -> int:
        """Where this reader goes on; at the beginning of its part where the rest is too short.

        Args:
            reader: its number.
            size: bytes that it will read, no more than its part has.
        """
        at = self._next[reader]
        if at + size > self.part:
            at, self.wrapped = 0, True
        self._next[reader] = at + size
        return reader * self.part + at

    def anywhere(self, size: int) -> int:
        """A place in the first half of the file, another one each time; a multiple of a size."""
        self._begun += 1
        share = (self._begun * _STEP) % 1.0
        return int(share * self.whole / 2) // size * size
