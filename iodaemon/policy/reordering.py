"""How far to depart from the order of arrival just now: an alpha that finds itself.

The authors of EquilibrIO fix alpha for a whole workload and leave its adaptation as future work.
A fixed one reorders where nothing is won by it, and goes on passing the oldest job as long as
others are better. Here each turn asks two questions, both answered by numbers without a unit, so
that nothing has to be tuned to a machine:

- What is lost by keeping to the order? The oldest job would leave S at some distance from W, the
  best job at the least distance; the difference, in parts of W, is the loss g. It is 0 where the
  oldest is as good as any: where S is near W already, or all intensities are alike. The need is
  ``g / (g + half)``: 0 without loss, 1/2 where the loss is ``half``, never above 1.
- What does it cost? Under first come, first served and steady arrivals the oldest has waited twice
  the mean of those who wait. The more it exceeds ``patience`` times the mean, because it was
  passed, the less is reordered: fairness is ``min(1, patience * mean / oldest)``.

``alpha = most * need * fairness``, from 0 to ``most``. A job that is passed again and again comes
first in the end: its part of the wait grows, alpha falls, and with it the advantage of others.
"""

from __future__ import annotations

import math


def need(loss_ratio: float, half: float) -> float:
    """How much reordering would help, 0 to 1.

    Args:
        loss_ratio: g, 0 or more; infinite where W is 0 and something is lost.
        half: at this g it is 1/2.
    """
    return 1.0 if loss_ratio == math.inf else loss_ratio / (loss_ratio + half)


def fairness(oldest_s: float, mean_s: float, patience: float) -> float:
    """How much reordering those who wait can bear, 0 to 1.

    Args:
        oldest_s: how long the oldest has waited.
        mean_s: how long those who wait have, in the mean.
        patience: the ratio of the two from which on it falls; 2 is that of steady arrivals.
    """
    return 1.0 if oldest_s <= patience * mean_s else patience * mean_s / oldest_s
