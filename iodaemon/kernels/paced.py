"""The paced reader: reads each byte once, at a given rate, and tells what it got.

    python -m iodaemon.kernels.paced FILE... [--rate 5e6,10e6] [--bytes N] [--block N]
    python -m iodaemon.kernels.paced --orders FD

The first reads the files one after the other; with several rates each reads an equal share of the
bytes. The second does what the lines of its standard input say (``Order`` as JSON), on a file that
it was handed as a descriptor, and ends when its standard input does. Either writes one JSON line a
step. Standard library only, so that it starts fast and stays small.

Source: Lv et al., JCST 2014, figure 13. Differs: paced by the clock and not by counting nops, so
that the rate is the same on any CPU, and busy CPUs do not slow the reading down unseen; reads past
the page cache where the file system lets it (O_DIRECT), else after dropping it.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import mmap
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from iodaemon.kernels.pace import lost_s

BLOCK: Final = 128 << 10
"""Bytes of one read: what a reader through the page cache is read ahead by default
(/sys/block/*/queue/read_ahead_kb)."""
LOOKS_EVERY_S: Final = 0.02
"""Who is not paced looks so often whether it is to go on."""
_SPREAD: Final = 0x9E3779B97F4A7C15
"""An odd number whose multiples lie evenly: 2^64 over the golden ratio (Knuth, volume 3, 6.4)."""
STANDARD_INPUT: Final = 0
STANDARD_OUTPUT: Final = 1


class Order(NamedTuple):
    """One step.

    Attributes:
        offset: where in the file it begins.
        length: bytes from there that it may touch.
        block: bytes of one read; a multiple of 4,096.
        rate: bytes/s asked for; None: as fast as it goes.
        seconds: it ends after so long, whatever is left. None: with the last byte.
        at_s: begins then at the earliest, on the monotonic clock. None: now.
        seed: reads blocks at random places within the length, drawn from it; None: in order.
        writes: writes instead.
        catches_up: the rate holds over the whole, however long something stood still. Else such
            time is lost, as for a program that computes between its reads.
    """

    offset: int
    length: int
    block: int = BLOCK
    rate: float | None = None
    seconds: float | None = None
    at_s: float | None = None
    seed: int | None = None
    writes: bool = False
    catches_up: bool = True


class Told(NamedTuple):
    """What came of a step.

    Attributes:
        asked_bytes_per_s: None: as fast as it goes.
        had_bytes_per_s: 0 where nothing was done.
        bytes: moved.
        ios: reads (or writes).
        run_s: from its beginning to its end; no shorter than the rate would have it.
        wait_s: of that, in reads.
        longest_s: the longest one.
        cold: ``direct`` or ``dropped``: how it was kept out of the page cache.
    """

    asked_bytes_per_s: float | None
    had_bytes_per_s: float
    bytes: int
    ios: int
    run_s: float
    wait_s: float
    longest_s: float
    cold: str


class File:
    """One open file, cold: past the page cache, or dropped from it before and after each step."""

    def __init__(self, path: str, *, writes: bool = False) -> None:
        access = os.O_RDWR if writes else os.O_RDONLY
        try:
            self.descriptor = os.open(path, access | os.O_CLOEXEC | os.O_DIRECT)
            self.cold = "direct"
            self._try_one()
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._close_refused()
            self.descriptor = os.open(path, access | os.O_CLOEXEC)
            self.cold = "dropped"

    def _try_one(self) -> None:
        """Some file systems take the flag and refuse the reading."""
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.preadv(self.descriptor, [page], 0)

    def _close_refused(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def drop(self, offset: int, length: int) -> None:
        """Take this part out of the page cache, where the file goes through it."""
        if self.cold == "dropped":
            os.posix_fadvise(self.descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)


class Patience:
    """Waits, and notices when whoever gives the orders has no use for the step any more.

    Args:
        listens: its standard input is the other's line.
    """

    def __init__(self, *, listens: bool) -> None:
        self._listens = listens
        self._looked_s = 0.0

    def is_over_after(self, wait_s: float) -> bool:
        """Wait so long; True: stop."""
        if not self._listens:
            if wait_s > 0.0:
                time.sleep(wait_s)
            return False
        return bool(select.select([STANDARD_INPUT], [], [], max(0.0, wait_s))[0])

    def is_over(self, now_s: float) -> bool:
        """Look now and then; True: stop."""
        if now_s - self._looked_s < LOOKS_EVERY_S:
            return False
        self._looked_s = now_s
        return self.is_over_after(0.0) if self._listens else False


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


def run(file: File, order: Order, patience: Patience) -> Told:
    """Do one step.

    Raises:
        OSError: the file cannot be read (or written).
    """
    file.drop(order.offset, order.length)
    with mmap.mmap(-1, order.block) as buffer:
        if order.writes:
            buffer.write(os.urandom(order.block))
        told = _move(file, order, patience, buffer)
    file.drop(order.offset, order.length)
    return told


def _move(file: File, order: Order, patience: Patience, buffer: mmap.mmap) -> Told:
    move = os.pwritev if order.writes else os.preadv
    clock = time.monotonic
    done = ios = 0
    wait_s = longest_s = 0.0
    stopped = order.at_s is not None and patience.is_over_after(order.at_s - clock())
    begun_s = clock()  # who is woken late begins late: what is measured is the disk
    until_s = None if order.seconds is None else begun_s + order.seconds
    paced_s = begun_s
    for place in () if stopped else find_places(order):
        now_s = clock()
        if order.rate is not None:
            early_s = paced_s + done / order.rate - now_s
            if early_s > 0.0:
                if patience.is_over_after(early_s):
                    break
                now_s = clock()
            elif not order.catches_up:
                paced_s += lost_s(-early_s, order.block, order.rate)
        if (until_s is not None and now_s >= until_s) or patience.is_over(now_s):
            break
        moved = move(file.descriptor, [buffer], place)
        took_s = clock() - now_s
        if moved <= 0:
            break
        done, ios, wait_s = done + moved, ios + 1, wait_s + took_s
        longest_s = max(longest_s, took_s)
    run_s = max(clock() - begun_s, done / order.rate if order.rate else 0.0, 1e-9)
    return Told(order.rate, done / run_s, done, ios, run_s, wait_s, longest_s, file.cold)


# -- as a program ----------------------------------------------------------------------------------


def orders(lines: Iterable[str]) -> Iterator[Order]:
    """One a line."""
    for line in lines:
        yield Order(**json.loads(line))


def unbuffered_lines() -> Iterator[str]:
    """Standard input line by line; what comes after a line stays to be seen by ``select``."""
    while True:
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(STANDARD_INPUT, 1)
            if not byte:
                return
            line += byte
        yield line.decode()


def obey(descriptor: int) -> None:
    """Do as standard input says until it ends."""
    path = f"/proc/self/fd/{descriptor}"
    patience = Patience(listens=True)
    reader, writer = File(path), None
    answer({"cold": reader.cold})
    for order in orders(unbuffered_lines()):
        if order.writes and writer is None:
            writer = File(path, writes=True)
        file = writer if order.writes and writer is not None else reader
        try:
            told = run(file, order, patience)._asdict()
        except OSError as error:
            told = {"error": error.errno, "text": error.strerror}
        answer(told)


def read_files(
    names: Iterable[str], rates: list[float | None], total: int | None, block: int
) -> None:
    """Read the files one after the other, an equal share of the bytes at each rate."""
    patience = Patience(listens=False)
    sizes = {name: os.stat(name).st_size // block * block for name in names}
    left = sum(sizes.values()) if total is None else min(total, sum(sizes.values()))
    share = max(block, left // len(rates) // block * block)
    parts = [
        (name, at, min(share, size - at))
        for name, size in sizes.items()
        for at in range(0, size, share)
    ]
    pace = itertools.chain(rates, itertools.repeat(rates[-1]))
    for name, offset, length in parts:
        if left < block:
            break
        file = File(name)
        order = Order(
            offset=offset, length=min(length, left), block=block, rate=next(pace), catches_up=False
        )
        told = run(file, order, patience)
        file.close()
        left -= told.bytes
        tell({"file": name, **told._asdict()})


def answer(words: dict[str, Any]) -> None:
    """One line, past the buffer of Python, which would complain at the end of a pipe closed."""
    os.write(STANDARD_OUTPUT, json.dumps(words).encode() + b"\n")


def tell(words: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(words), flush=True)


def main(words: list[str] | None = None) -> None:
    """Read as the words say, or as told."""
    parser = argparse.ArgumentParser(prog="iodaemon.kernels.paced", description=__doc__)
    parser.add_argument("file", nargs="*")
    parser.add_argument("--rate", default="", help="bytes/s, one or several with commas")
    parser.add_argument("--bytes", type=float, help="of all files together; all, if not given")
    parser.add_argument("--block", type=int, default=BLOCK, help="bytes of one read")
    parser.add_argument("--orders", type=int, metavar="FD", help="be told on standard input")
    given = parser.parse_args(words)
    if given.orders is not None:
        obey(given.orders)
        return
    rates: list[float | None] = [float(word) for word in given.rate.split(",") if word]
    total = None if given.bytes is None else int(given.bytes)
    read_files(given.file, rates or [None], total, given.block)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
    except OSError as problem:
        sys.exit(f"paced: {problem}")
