"""The capacity of a link that wanes with the flows that wait for it alone.

Theory: a flow whose own pace is below its fair share has no request queued and is not in the
others' way; one that the link holds back is. How many there are follows from the capacity, and the
capacity from how many there are. Taken is the solution with the fewest of them: beginning with
none, the flow with the largest pace is held back next, until the level (what each of them gets)
is not below the pace of any that is left to itself. For a scaling that never rises the flows
that were counted are then truly held back: each of them wants more than the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from iodaemon.model.scaling import Scaling


def waiting_capacity(
    capacity_bytes_per_s: float, scaling: Scaling, lanes: Sequence[tuple[float, float]]
) -> float:
    """What all flows get together at most, bytes/s.

    Args:
        capacity_bytes_per_s: what one stream gets.
        scaling: the part of it that is left with n streams that wait; never rises.
        lanes: pace (bytes/s; infinite: takes what it gets) and sum of the weights of all flows of
            that pace, paces rising. A weight is so many streams.
    """
    alone = capacity_bytes_per_s * scaling(1)
    wanted = [0.0, *accumulate(pace * weight for pace, weight in lanes)]
    if wanted[-1] <= alone:
        return alone
    capacity, streams = alone, 0.0
    for index in range(len(lanes) - 1, -1, -1):
        streams += lanes[index][1]
        capacity = capacity_bytes_per_s * scaling(max(1, round(streams)))
        level = (capacity - wanted[index]) / streams
        if index == 0 or level >= lanes[index - 1][0]:
            break
    return capacity
