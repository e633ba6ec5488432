"""What one run of the benchmarks is to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Plan(NamedTuple):
    """One run.

    Attributes:
        base: a directory for what the measurements need.
        checkouts: the trees that are measured, by name; the first is ours.
        rounds: of everything that alternates.
        is_quick: less of everything, in under a minute.
    """

    base: Path
    checkouts: dict[str, Path]
    rounds: int
    is_quick: bool

    def tell(self, what: str) -> Callable[[int], None]:
        """Says on standard error how far a measurement is."""

        def on_round(number: int) -> None:
            print(f"{what}: round {number + 1} of {self.rounds}", file=sys.stderr)

        return on_round
