"""How far to depart from the order of arrival just now: an alpha that finds itself.

The authors of EquilibrIO fix alpha for a whole workload and leave its adaptation as future work.
A fixed one also reorders where nobody would wait for the storage, so that nothing is won by it and
some wait longer. ``alpha = most * need``, from 0 to ``most``, at each turn anew:

- Where it is known what the storage delivers, the need is how full it would be: S or W, whichever
  is larger, for as many jobs as run, in parts of ``full`` times the bandwidth, at most 1. S tells
  of what runs already, W of what will run if the order stays. Means collide long before they fill
  the storage, as jobs do their I/O in bursts; so ``full`` is a half.
- Where it is not known, the need is how far S and W are apart, in parts of the larger: 0 where what
  runs is like the whole, 1 where one of them does nothing.

Measured by the experiment ``equilibrio-auto``; ``most`` is the best fixed alpha of the source.
"""

from __future__ import annotations


def need_by_load(
    system: float, workload: float, running: int, *, bandwidth: float, full: float
) -> float:
    """How much reordering would help, 0 to 1, where the bandwidth is known.

    Args:
        system: S.
        workload: W, in the same unit.
        running: jobs of which S is the mean.
        bandwidth: of the storage, in the same unit, above 0.
        full: the part of it from which on the need is 1, above 0.
    """
    return min(1.0, max(system, workload) * max(1, running) / (full * bandwidth))


def need_by_imbalance(system: float, workload: float) -> float:
    """How much reordering would help, 0 to 1, by S and W alone."""
    larger = max(system, workload)
    return abs(system - workload) / larger if larger > 0.0 else 0.0
