"""Beds of jobs that do next to nothing themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from beds.bed import Bed, Maker, Size, job, nothing, shell, together

SLEEPERS = 64
SLEEP = 'for turn in $(seq "$1"); do sleep 0.25; done'


@contextlib.contextmanager
def sleepers(base: Path, size: Size) -> Iterator[Bed]:
    """Jobs that mostly sleep: the more at once, the better."""
    turns = {"small": 20, "normal": 100, "long": 480}[size]
    specs = [shell("sleep", SLEEP, str(turns)) for _ in range(SLEEPERS)]
    yield Bed(f"{SLEEPERS} jobs that sleep {turns} times 0.25 s", together(specs), nothing)


@contextlib.contextmanager
def short(base: Path, size: Size) -> Iterator[Bed]:
    """Jobs so short that only the starting of them counts."""
    jobs = {"small": 1000, "normal": 1000, "long": 4000}[size]
    yield Bed(f"{jobs} times true", together([job("true", "true")] * jobs), nothing)


BEDS = {
    "sleepers": Maker(sleepers, list, oracle=(16, 32)),
    "short": Maker(short, list, oracle=()),
}
