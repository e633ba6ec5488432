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

from collections.abc import Iterable, Sequence
from typing import Final

from iodaemon.calibration.record import Knee, Load

DEGRADED: Final = 1.05
"""Steps that are carried differ by less on a quiet machine. The knee is seen too high by it."""
BOUND_SHARE: Final = 40.0 / 45.0
"""The paper bounds at 40 MB/s where 8 sockets of 5.63 MB/s each, 45 in all, were not degraded."""
CLIMB: Final = 1.4
"""So many times the last rate is asked for next, while none was too much."""
CLOSE_ENOUGH: Final = 1.05
"""Where the rates on both sides of the knee differ by less, it is not looked for any closer."""
SAME_RATE: Final = 1e-3
"""Rates that differ by a smaller part than this are the same one."""


def curves(loads: Sequence[Load]) -> dict[float, dict[int, float]]:
    """Figure 14: by what the readers of one socket ask for, and by sockets, the degradation.

    That is the run time over the one on one socket; both ascending. Rates that were not tried on
    one socket are not in it. What ran faster than alone was not degraded: 1.
    """
    ratios: dict[float, dict[int, float]] = {}
    for (sockets, total), ratio in sorted(_best(loads).items()):
        rate = total / sockets
        known = next((key for key in ratios if abs(key - rate) <= SAME_RATE * rate), rate)
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


def _find_knee(sockets: int, ordered: Sequence[tuple[float, bool]]) -> Knee:
    cuts = range(len(ordered) + 1)
    cut = min(cuts, key=lambda at: (contradictions(ordered, at), at))
    return Knee(
        sockets=sockets,
        fine_bytes_per_s=ordered[cut - 1][0] if cut else 0.0,
        degraded_bytes_per_s=ordered[cut][0] if cut < len(ordered) else None,
    )


def contradictions(ordered: Sequence[tuple[float, bool]], cut: int) -> int:
    """How many of the loads, ordered by rate, are degraded before the cut or fine after it."""
    below = sum(1 for _, is_degraded in ordered[:cut] if is_degraded)
    return below + sum(1 for _, is_degraded in ordered[cut:] if not is_degraded)


def recommended(knees: Sequence[Knee]) -> float | None:
    """``io_bound`` by the knee with all sockets loaded, bytes/s; None: nothing was degraded.

    Nothing is recommended either where everything was: what is carried was not seen then.
    """
    if not knees or knees[-1].degraded_bytes_per_s is None:
        return None
    return BOUND_SHARE * knees[-1].fine_bytes_per_s or None


def next_rate(knees: Sequence[Knee], sockets: int, most: float) -> float | None:
    """What all readers together ask for in the next step, so that the knee is known better.

    Half way between what was fine and what was not; while nothing was degraded, some more. None:
    it is known well enough, or the readers cannot ask for more.

    Args:
        knees: as known so far.
        sockets: loaded.
        most: what the readers could have if they did not disturb each other, bytes/s.
    """
    knee = next((knee for knee in knees if knee.sockets == sockets), None)
    if knee is None:
        return None
    fine, degraded = knee.fine_bytes_per_s, knee.degraded_bytes_per_s
    if degraded is None:
        more = min(CLIMB * fine, most)
        return more if more > CLOSE_ENOUGH * fine else None
    return (fine + degraded) / 2.0 if degraded > CLOSE_ENOUGH * fine else None
