"""Packs whose jobs share the I/O node's bandwidth equally, instead of waiting for each other.

What the paper leaves as future work. One text, run as plain Python or compiled by numba.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, sections 1 (degradation d) and 7.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from heapq import heapify, heappop, heappush


def serve_shared(
    bounds: Sequence[int],
    compute_s: Sequence[float],
    io_s: Sequence[float],
    iterations: Sequence[int],
    loss: float,
    finish_s: MutableSequence[float],
) -> None:
    """All who do I/O at an instant get an equal share of the bandwidth.

    Args:
        bounds: pack ``i`` is the jobs ``bounds[i]`` to ``bounds[i + 1] - 1``.
        compute_s: length of each job's compute phase.
        io_s: length of each job's I/O phase when alone.
        iterations: of each job, at least 1.
        loss: part of the bandwidth that is lost while two or more share it (d of section 1).
        finish_s: out: when each job ends.
    """
    for pack in range(len(bounds) - 1):
        first, end = bounds[pack], bounds[pack + 1]
        left = [iterations[job] for job in range(first, end)]
        busy = [(compute_s[job], job) for job in range(first, end)]
        heapify(busy)
        # a flow ends when the service that each has got since the node was idle reaches its mark
        flows = [(0.0, 0) for _ in range(0)]
        now_s, served_s = 0.0, 0.0
        while len(busy) > 0 or len(flows) > 0:
            sharing = len(flows)
            rate = (1.0 - loss if sharing > 1 else 1.0) / max(sharing, 1)
            flow_s = now_s + (flows[0][0] - served_s) / rate if sharing > 0 else math.inf
            if len(busy) > 0 and busy[0][0] < flow_s:
                at_s, job = heappop(busy)
                served_s += (at_s - now_s) * rate if sharing > 0 else 0.0
                now_s = at_s
                heappush(flows, (served_s + io_s[job], job))
                continue
            now_s = flow_s
            served_s, job = heappop(flows)
            if len(flows) == 0:
                served_s = 0.0
            left[job - first] -= 1
            if left[job - first] > 0:
                heappush(busy, (now_s + compute_s[job], job))
            else:
                finish_s[job] = now_s
