"""Figure 14 in characters: how much longer readers take on more sockets. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

ROWS: Final = 12
COLUMN: Final = 9
"""Characters from one number of sockets to the next."""
LEAST_TOP: Final = 2.0
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_MARGIN: Final = 7


def draw(curves: Mapping[float, Mapping[int, float]]) -> list[str]:
    """Lines of a picture: run time over that on one socket, logarithmic, against sockets.

    Where several curves meet, the letter of the lowest rate stands for them; a table says which
    letter is which rate.

    Args:
        curves: by the rate of one socket, bytes/s: the degradation, 1 or more, by sockets.
    """
    counts = sorted({count for curve in curves.values() for count in curve})
    if not counts:
        return []
    top = max(LEAST_TOP, *(value for curve in curves.values() for value in curve.values()))
    grid = [[" "] * (len(counts) * COLUMN) for _ in range(ROWS)]
    named = list(zip(_LETTERS, sorted(curves), strict=False))
    for letter, rate in reversed(named):
        for count, value in curves[rate].items():
            grid[_row(value, top)][counts.index(count) * COLUMN + COLUMN // 2] = letter
    lines = [_label(row, top) + "|" + "".join(cells).rstrip() for row, cells in enumerate(grid)]
    lines.append(" " * _MARGIN + "+" + "-" * (len(counts) * COLUMN))
    axis = "".join(f"{count:^{COLUMN}d}" for count in counts)
    lines.append(" " * (_MARGIN + 1) + axis.rstrip() + "  sockets loaded")
    return [*lines, "", *_table(named, curves, counts)]


def _row(value: float, top: float) -> int:
    """The highest value is in the first row, 1 in the last."""
    share = math.log(max(1.0, value)) / math.log(top)
    return ROWS - 1 - round(share * (ROWS - 1))


def _label(row: int, top: float) -> str:
    """Every third row says which value it is."""
    if row % 3 and row != ROWS - 1:
        return " " * _MARGIN
    value = top ** ((ROWS - 1 - row) / (ROWS - 1))
    return f"{value:{_MARGIN - 2}.3g}x "


def _table(
    named: Sequence[tuple[str, float]],
    curves: Mapping[float, Mapping[int, float]],
    counts: Sequence[int],
) -> list[str]:
    lines = []
    for letter, rate in named:
        cells = "".join(
            f"{curves[rate][count]:>{COLUMN}.2f}" if count in curves[rate] else " " * COLUMN
            for count in counts
        )
        lines.append(f"{letter} {rate / 1e6:9.2f} MB/s a socket {cells}".rstrip())
    return lines
