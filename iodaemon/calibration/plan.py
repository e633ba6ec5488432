"""Which steps are measured, for how long, at which rates, and on which parts of the file. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.kernels.paced import BLOCK

DEFAULT_S: Final = 120.0
LEAST_S: Final = 5.0
MOST_S: Final = 86400.0
LEAST_BYTES: Final = 16 << 20
"""A test file below this is read by a drive's cache alone."""
MOST_BYTES: Final = 4 << 30
"""More is not written unless asked for: it wears a flash disk and takes time."""
ROOM_SHARE: Final = 0.5
"""Of what is free, so much is taken at most."""
READERS: Final = 8
"""In all, where there are not more sockets: enough to keep most disks busy."""
PIECES: Final = 4
"""Into so many parts a machine's only socket is divided."""
SIZES: Final = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
"""Of lone requests, bytes."""
RANDOM_BLOCK: Final = 4 << 10
WRITE_BLOCK: Final = 1 << 20
"""Also where parts of the file begin and end: a multiple of every size that is read."""
KINDS: Final = 4
"""Reads and writes, in order and at random."""

_WRITE_SHARE: Final = 0.2
_LONE_SHARE: Final = 0.12
_STEPS_SHARE: Final = 0.65
"""Of the whole time; the rest is what starting and ending cost."""
_LONGEST_STEP_S: Final = 2.5
_SHORTEST_STEP_S: Final = 0.25
_LONGEST_LONE_S: Final = 0.6
_CURVES: Final = (3, 12)
"""Groups of figure 14: the paper has 12."""
_USUAL_CURVES: Final = 6
REFINEMENTS: Final = 4
DISPUTES: Final = 4
"""So many steps that contradict others are measured again."""
_EVERY_COUNT: Final = 4
"""Up to so many sockets each number of them is loaded; of more 1, 2, 4, 8 and all."""
_LOW_SHARE: Final = 0.4
HIGH_SHARE: Final = 0.95
"""The rates go from this part of what the slowest load had to this one of what a socket had."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long each part takes.

    Attributes:
        write_s: the test file, at most.
        lone_s: one kind and size of lone requests.
        step_s: one step of the readers, at most.
        curves: rates of one socket.
        counts: of sockets that are loaded.
    """

    write_s: float
    lone_s: float
    step_s: float
    curves: int
    counts: tuple[int, ...]

    @property
    def total_s(self) -> float:
        lone_s = KINDS * len(SIZES) * self.lone_s
        return self.write_s + lone_s + self.step_s * self.steps

    @property
    def steps(self) -> int:
        """Of the readers."""
        return _fixed(self.counts) + self.curves * len(self.counts)


def _fixed(counts: Sequence[int]) -> int:
    """One reader alone, each number of sockets, all at random, and what comes after the curves."""
    return len(counts) + 2 + DISPUTES + REFINEMENTS


def divide_time(total_s: float, sockets: int) -> Times:
    """What is done in so much time, ``LEAST_S`` or more."""
    counts = socket_counts(sockets)
    steps_s = _STEPS_SHARE * total_s
    fixed = _fixed(counts)
    step_s = steps_s / (fixed + _USUAL_CURVES * len(counts))
    step_s = min(max(step_s, _SHORTEST_STEP_S), _LONGEST_STEP_S)
    curves = int((steps_s / step_s - fixed) / len(counts))
    lone_s = min(_LONE_SHARE * total_s / (KINDS * len(SIZES)), _LONGEST_LONE_S)
    return Times(
        write_s=_WRITE_SHARE * total_s,
        lone_s=lone_s,
        step_s=step_s,
        curves=min(max(curves, _CURVES[0]), _CURVES[1]),
        counts=counts,
    )


def socket_counts(sockets: int) -> tuple[int, ...]:
    """On how many sockets readers run, ascending; the last is all of them."""
    if sockets <= _EVERY_COUNT:
        return tuple(range(1, sockets + 1))
    doubled = (1 << power for power in range(sockets.bit_length()))
    return tuple(sorted({*(count for count in doubled if count < sockets), sockets}))


def divide_cores(cores: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """A machine's only socket in ``PIECES`` parts that stand for sockets, by the CPUs of its cores.

    Where there are fewer cores than parts, parts share them: readers need next to no CPU.
    """
    shared = [cores[piece % len(cores)] for piece in range(max(PIECES, len(cores)))]
    return tuple(
        tuple(cpu for core in shared[piece::PIECES] for cpu in core) for piece in range(PIECES)
    )


def readers_per_socket(sockets: int) -> int:
    return max(1, READERS // sockets)


def file_bytes(free_bytes: int, readers: int, asked_bytes: int | None) -> int:
    """Size of the test file, whole blocks for each reader; 0: there is too little room.

    Args:
        free_bytes: for this user.
        asked_bytes: by the user. None: what is sensible.
    """
    room = int(ROOM_SHARE * free_bytes)
    wanted = MOST_BYTES if asked_bytes is None else asked_bytes
    each = min(room, wanted) // readers // WRITE_BLOCK * WRITE_BLOCK
    least = max(WRITE_BLOCK, LEAST_BYTES // readers)
    return each * readers if each >= least else 0


def rates(capacities: Mapping[int, float], curves: int) -> tuple[float, ...]:
    """What the readers of one socket ask for in each curve, bytes/s, ascending.

    From what even the slowest load carries to nearly all that one socket had, each the same factor
    above the last.

    Args:
        capacities: what was had by so many sockets, unpaced; 1 is among them.
    """
    low = _LOW_SHARE * min(had / sockets for sockets, had in capacities.items())
    high = HIGH_SHARE * capacities[1]
    low = min(low, high / 2.0)
    return tuple(low * (high / low) ** (number / (curves - 1)) for number in range(curves))


def step_bytes(rate: float | None, seconds: float, room: int) -> int:
    """What one reader reads in a step: whole blocks, one at least.

    Args:
        rate: of this reader, bytes/s. None: unpaced.
        room: bytes of its part of the file, a block at least.
    """
    wanted = room if rate is None else math.ceil(min(rate * seconds, room) / BLOCK) * BLOCK
    return max(BLOCK, min(wanted, room // BLOCK * BLOCK))


_STEP: Final = 0.618
"""Of half the file, from one place to begin at to the next: they never gather."""


class Regions:
    """A test file in equal parts, one a reader: no byte is read twice while there are others."""

    def __init__(self, whole: int, readers: int) -> None:
        self.whole = whole
        self.part = whole // readers // WRITE_BLOCK * WRITE_BLOCK
        self.wrapped = False
        self._next = [0] * readers
        self._begun = 0

    def take(self, reader: int, size: int) -> int:
        """Where a reader goes on; at the beginning of its part where the rest is too short."""
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
