"""The paced reader of a calibration: reads each byte once, at a given rate, and tells what it got.

    python -m iodaemon.kernels.paced FD

It does what the lines of its standard input say (``Order`` as JSON), on a file that it was handed
as a descriptor, writes one JSON line a step, and ends when its standard input does. Standard
library only, so that it starts fast and stays small.

Source: Lv et al., JCST 2014, figure 13. Differs: paced by the clock and not by counting nops, so
that the rate is the same on any CPU, and busy CPUs do not slow the reading down unseen; reads past
the page cache where the file system lets it (O_DIRECT), else after dropping it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

BLOCK: Final = 128 << 10
"""Bytes of one read: what a reader through the page cache is read ahead by default
(/sys/block/*/queue/read_ahead_kb)."""
_LOOKS_EVERY_S: Final = 0.02
"""Between two looks at standard input by a reader that is not paced."""
_SPREAD: Final = 0x9E3779B97F4A7C15
"""An odd number whose multiples lie evenly: 2^64 over the golden ratio (Knuth, volume 3, 6.4)."""
_STANDARD_INPUT: Final = 0
_STANDARD_OUTPUT: Final = 1


class Order(NamedTuple):
    """One step.

    Attributes:
        offset: where in the file it begins.
        length: bytes from there that it may touch.
        block: bytes of one read; a multiple of 4,096.
        rate: bytes/s asked for; None: as fast as it goes. It holds over the whole step: a delay is
            caught up.
        seconds: it ends after so long, whatever is left. None: with the last byte.
        at_s: begins then at the earliest, on the monotonic clock. None: now.
        seed: reads blocks at random places within the length, drawn from it; None: in order.
        writes: writes instead.
    """

    offset: int
    length: int
    block: int = BLOCK
    rate: float | None = None
    seconds: float | None = None
    at_s: float | None = None
    seed: int | None = None
    writes: bool = False


class Told(NamedTuple):
    """What came of a step.

    Attributes:
        bytes: moved.
        ios: reads (or writes).
        run_s: from its beginning to its end, above 0; no shorter than the rate would have it.
        wait_s: of that, in reads.
    """

    asked_bytes_per_s: float | None
    bytes: int
    ios: int
    run_s: float
    wait_s: float


class File:
    """One open file, cold: past the page cache, or dropped from it before and after each step."""

    def __init__(self, path: str, *, writes: bool = False) -> None:
        self.descriptor = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
        self.cold = "direct"
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, os.O_DIRECT)
            with mmap.mmap(-1, mmap.PAGESIZE) as page:  # some take the flag and refuse the reading
                os.preadv(self.descriptor, [page], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, 0)
            self.cold = "dropped"

    def drop(self, offset: int, length: int) -> None:
        """Take this part out of the page cache, where the file goes through it."""
        if self.cold == "dropped":
            os.posix_fadvise(self.descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def is_over_after(wait_s: float) -> bool:
    """Wait so long; True as soon as standard input has another order, or its end."""
    return bool(select.select([_STANDARD_INPUT], [], [], max(0.0, wait_s))[0])


def find_places(order: Order) -> Iterator[int]:
    """Where each block begins; whole blocks only, each once."""
    count = order.length // order.block
    if order.seed is None:
        return iter(range(order.offset, order.offset + count * order.block, order.block))
    return (order.offset + place * order.block for place in shuffled(count, order.seed))


def shuffled(count: int, seed: int) -> Iterator[int]:
    """The numbers below a count, each once, at random; no list of them is ever made.

    Steps that can be undone (odd factors, a shift onto itself) mix all numbers of as many bits;
    those that are too large are left out.
    """
    bits = max(2, (count - 1).bit_length())
    mask, half = (1 << bits) - 1, (bits + 1) // 2
    odd = 2 * (seed * _SPREAD & mask) + 1
    for number in range(1 << bits):
        mixed = (number * _SPREAD + seed) & mask
        mixed ^= mixed >> half
        mixed = mixed * odd & mask
        mixed ^= mixed >> half
        mixed = mixed * _SPREAD & mask
        if mixed < count:
            yield mixed


def run(file: File, order: Order) -> Told:
    """Do one step, or as much of it as there is time for until the next order comes.

    Raises:
        OSError: the file cannot be read (or written).
    """
    file.drop(order.offset, order.length)
    with mmap.mmap(-1, order.block) as buffer:
        if order.writes:
            buffer.write(os.urandom(order.block))
        told = _move(file, order, buffer)
    file.drop(order.offset, order.length)
    return told


def _move(file: File, order: Order, buffer: mmap.mmap) -> Told:
    move = os.pwritev if order.writes else os.preadv
    clock = time.monotonic
    done = ios = 0
    wait_s = looked_s = 0.0
    stopped = order.at_s is not None and is_over_after(order.at_s - clock())
    begun_s = clock()  # who is woken late begins late: what is measured is the disk
    for place in () if stopped else find_places(order):
        now_s = clock()
        early_s = 0.0 if order.rate is None else begun_s + done / order.rate - now_s
        if early_s > 0.0 or now_s - looked_s >= _LOOKS_EVERY_S:
            if is_over_after(early_s):
                break
            now_s = looked_s = clock()
        if order.seconds is not None and now_s >= begun_s + order.seconds:
            break
        moved = move(file.descriptor, [buffer], place)
        wait_s += clock() - now_s
        if moved <= 0:
            break
        done, ios = done + moved, ios + 1
    run_s = max(clock() - begun_s, done / order.rate if order.rate else 0.0, 1e-9)
    return Told(order.rate, done, ios, run_s, wait_s)


# -- as a program ----------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """Do as standard input says until it ends."""
    path = f"/proc/self/fd/{descriptor}"
    reader, writer = File(path), None
    _answer({"cold": reader.cold})
    for line in _unbuffered_lines():
        order = Order(**json.loads(line))
        if order.writes and writer is None:
            writer = File(path, writes=True)
        file = writer if order.writes and writer is not None else reader
        try:
            words: dict[str, Any] = run(file, order)._asdict()
        except OSError as error:
            words = {"error": error.errno, "text": error.strerror}
        _answer(words)


def _unbuffered_lines() -> Iterator[str]:
    """Standard input line by line; what comes after a line stays to be seen by ``select``."""
    while True:
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(_STANDARD_INPUT, 1)
            if not byte:
                return
            line += byte
        yield line.decode()


def _answer(words: dict[str, Any]) -> None:
    """One line, past the buffer of Python, which would complain at the end of a pipe closed."""
    os.write(_STANDARD_OUTPUT, json.dumps(words).encode() + b"\n")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except BrokenPipeError:
        sys.exit(1)
    except OSError as problem:
        sys.exit(f"paced: {problem}")
