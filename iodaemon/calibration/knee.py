"""Where run time starts to degrade, from paced readers at stepped rates. Pure.

1. A load is degraded when its readers took more than ``DEGRADED`` times as long as their rate would
   have it. Whatever disturbs a step makes it slower: of one measured again the better counts.
2. On each number of sockets the loads are ordered by what all readers together asked for. The knee
   is the cut that contradicts the fewest of them: degraded ones below it, or fine ones above it.
   So one disturbed step does not move it. Of equal cuts the lowest counts.
3. The recommended bound is the paper's part of what all sockets together had in time.

Figure 14 draws the run time over that of the same readers on one socket.

Source: Lv et al., JCST 2014, section 3.3.2 and figure 14; section 3.4 for the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from iodaemon.calibration.record import Knee, Load

DEGRADED: Final = 1.05
"""Steps that are carried differ by less on a quiet machine. The knee is seen too high by it."""
BOUND_SHARE: Final = 40.0 / 45.0
"""The paper bounds at 40 MB/s where 8 sockets of 5.63 MB/s each, 45 in all, were not degraded."""
_CLIMB: Final = 1.4
"""So many times the last rate is asked for next, while none was too much."""
_CLOSE_ENOUGH: Final = 1.05
"""Where the rates on both sides of the knee differ by less, it is not looked for any closer."""
_SAME_RATE: Final = 1e-3
"""Rates that differ by a smaller part than this are the same one."""


def curves(loads: Sequence[Load]) -> dict[float, dict[int, float]]:
    """Figure 14: by what the readers of one socket ask for, and by sockets, the degradation.

    That is the run time over the one on one socket; both ascending. Rates that were not tried on
    one socket are not in it. What ran faster than alone was not degraded: 1.
    """
    ratios: dict[float, dict[int, float]] = {}
    for (sockets, total), ratio in sorted(_best(loads).items()):
        rate = total / sockets
        known = next((key for key in ratios if abs(key - rate) <= _SAME_RATE * rate), rate)
        ratios.setdefault(known, {})[sockets] = ratio
    return {
        rate: {sockets: max(1.0, ratio / by[1]) for sockets, ratio in by.items()}
        for rate, by in sorted(ratios.items())
        if 1 in by
    }


def _best(loads: Iterable[Load]) -> dict[tuple[int, float], float]:
    """Of the paced ones, by sockets and what all readers asked for: the least run time ratio."""
    best: dict[tuple[int, float], float] = {}
    for load in loads:
        if load.asked_bytes_per_s is not None and load.asked_bytes_per_s > 0.0:
            key = (load.sockets, load.asked_bytes_per_s)
            ratio = max(1.0, load.run_ratio)
            best[key] = min(ratio, best.get(key, ratio))
    return best


def find_knees(loads: Sequence[Load]) -> tuple[Knee, ...]:
    """By the number of sockets, ascending; of those on which anything was paced."""
    return tuple(_find_knee(sockets, points) for sockets, points in _verdicts(loads).items())


def _find_knee(sockets: int, ordered: Sequence[tuple[float, bool]]) -> Knee:
    def contradictions(at: int) -> int:
        degraded = [is_degraded for _, is_degraded in ordered]
        return sum(degraded[:at]) + len(degraded[at:]) - sum(degraded[at:])

    cut = min(range(len(ordered) + 1), key=contradictions)  # of equal ones the first
    return Knee(
        sockets=sockets,
        fine_bytes_per_s=ordered[cut - 1][0] if cut else 0.0,
        degraded_bytes_per_s=ordered[cut][0] if cut < len(ordered) else None,
    )


def disputed(loads: Sequence[Load]) -> tuple[tuple[int, float], ...]:
    """Loads worth another look: degraded, while more on as many sockets was fine.

    Sockets, and what all readers asked for together; by both.
    """
    found = []
    for sockets, points in _verdicts(loads).items():
        fine = max((rate for rate, is_degraded in points if not is_degraded), default=0.0)
        found += [(sockets, rate) for rate, is_bad in points if is_bad and rate < fine]
    return tuple(found)


def _verdicts(loads: Iterable[Load]) -> dict[int, list[tuple[float, bool]]]:
    """By sockets, ascending: each rate of all readers, ascending, and whether it degraded."""
    verdicts: dict[int, list[tuple[float, bool]]] = {}
    for (sockets, rate), ratio in sorted(_best(loads).items()):
        verdicts.setdefault(sockets, []).append((rate, ratio > DEGRADED))
    return verdicts


def recommended(knees: Sequence[Knee]) -> float | None:
    """``io_bound`` by the knee with all sockets loaded, bytes/s; None: nothing was degraded.

    Nothing is recommended either where everything was: what is carried was not seen then.
    """
    if not knees or knees[-1].degraded_bytes_per_s is None:
        return None
    return BOUND_SHARE * knees[-1].fine_bytes_per_s or None


def next_rate(knees: Sequence[Knee], sockets: int, most: float) -> float | None:
    """What all readers together ask for in the next step, so that the knee is known better.

    Half way between what was fine and what was not; while nothing was degraded, some more, up to
    the ``most`` that they could have if they did not disturb each other. None: it is known well
    enough, or the readers cannot ask for more.
    """
    knee = next((knee for knee in knees if knee.sockets == sockets), None)
    if knee is None:
        return None
    fine, degraded = knee.fine_bytes_per_s, knee.degraded_bytes_per_s
    if degraded is None:
        more = min(_CLIMB * fine, most)
        return more if more > _CLOSE_ENOUGH * fine else None
    return (fine + degraded) / 2.0 if degraded > _CLOSE_ENOUGH * fine else None


# -- figure 14 in characters -----------------------------------------------------------------------

_ROWS: Final = 12
_COLUMN: Final = 9
"""Characters from one number of sockets to the next."""
_LEAST_TOP: Final = 2.0
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_MARGIN: Final = 7


def draw(curves: Mapping[float, Mapping[int, float]]) -> list[str]:
    """Run time over that on one socket, logarithmic, against sockets; ``curves`` as of ``curves``.

    Where several curves meet, the letter of the lowest rate stands for them; a table says which
    letter is which rate.
    """
    counts = sorted({count for curve in curves.values() for count in curve})
    if not counts:
        return []
    top = max(_LEAST_TOP, *(value for curve in curves.values() for value in curve.values()))
    grid = [[" "] * (len(counts) * _COLUMN) for _ in range(_ROWS)]
    named = list(zip(_LETTERS, sorted(curves), strict=False))
    for letter, rate in reversed(named):
        for count, value in curves[rate].items():
            row = _ROWS - 1 - round(math.log(max(1.0, value)) / math.log(top) * (_ROWS - 1))
            grid[row][counts.index(count) * _COLUMN + _COLUMN // 2] = letter
    lines = [_label(row, top) + "|" + "".join(cells).rstrip() for row, cells in enumerate(grid)]
    lines.append(" " * _MARGIN + "+" + "-" * (len(counts) * _COLUMN))
    axis = "".join(f"{count:^{_COLUMN}d}" for count in counts)
    lines += [" " * (_MARGIN + 1) + axis.rstrip() + "  sockets loaded", ""]
    for letter, rate in named:
        values = (curves[rate].get(count) for count in counts)
        cells = ["" if value is None else f"{value:.2f}" for value in values]
        row_text = "".join(cell.rjust(_COLUMN) for cell in cells)
        lines.append(f"{letter} {rate / 1e6:9.2f} MB/s a socket {row_text}".rstrip())
    return lines


def _label(row: int, top: float) -> str:
    """Every third row says which value it is."""
    if row % 3 and row != _ROWS - 1:
        return " " * _MARGIN
    value = top ** ((_ROWS - 1 - row) / (_ROWS - 1))
    return f"{value:{_MARGIN - 2}.3g}x "
