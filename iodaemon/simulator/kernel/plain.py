"""The loops in plain Python: what runs without numba, and what the compiled ones are held to.

A batch is many packs, each alone on its I/O node; a job is an index into the columns. All jobs of
a pack start at 0; a job is ``iterations`` times a compute phase and an I/O phase, and its I/O
waits until the node serves it, alone and to the end. Instants are exact; whatever happens at one
instant has happened before somebody is chosen.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, sections 4 and 5.1.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import MutableSequence, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from iodaemon.core.rule import OrderKey


def serve_fifo(
    bounds: Sequence[int],
    compute_s: Sequence[float],
    io_s: Sequence[float],
    iterations: Sequence[int],
    finish_s: MutableSequence[float],
    *,
    io_first: bool,
) -> None:
    """First come, first served, with one heap: the order of requests is the order of service.

    Args:
        bounds: pack ``i`` is the jobs ``bounds[i]`` to ``bounds[i + 1] - 1``.
        compute_s: length of each job's compute phase, not negative.
        io_s: length of each job's I/O phase when alone, not negative.
        iterations: of each job, at least 1.
        finish_s: out: when each job ends.
        io_first: whether an iteration begins with its I/O phase.
    """
    for pack in range(len(bounds) - 1):
        first, end = bounds[pack], bounds[pack + 1]
        left = [iterations[job] for job in range(first, end)]
        waiting = [(0.0 if io_first else compute_s[job], job) for job in range(first, end)]
        heapify(waiting)
        free_s = 0.0
        while waiting:
            requested_s, job = waiting[0]
            free_s = (requested_s if requested_s > free_s else free_s) + io_s[job]  # noqa: FURB136 - slow
            left[job - first] -= 1
            if left[job - first] > 0:
                heapreplace(waiting, (free_s + compute_s[job], job))
            else:
                heappop(waiting)
                finish_s[job] = free_s + compute_s[job] if io_first else free_s


def serve_fixed(
    key: OrderKey,
    bounds: Sequence[int],
    compute_s: Sequence[float],
    io_s: Sequence[float],
    iterations: Sequence[int],
    finish_s: MutableSequence[float],
    *,
    io_first: bool,
) -> None:
    """Any order whose keys stay as they were at the request, with two heaps.

    One holds those who compute, the other those who wait.

    Args: those of :func:`serve_fifo`, and ``key``, the order.
    """
    for pack in range(len(bounds) - 1):
        first, end = bounds[pack], bounds[pack + 1]
        left = [iterations[job] for job in range(first, end)]
        busy = [(0.0 if io_first else compute_s[job], job) for job in range(first, end)]
        heapify(busy)
        waiting: list[tuple[float, float, int]] = []
        now_s = 0.0
        while busy or waiting:
            if not waiting and busy[0][0] > now_s:
                now_s = busy[0][0]
            while busy and busy[0][0] <= now_s:
                asked_s, job = heappop(busy)
                work_s, phase_s, n = compute_s[job], io_s[job], left[job - first]
                done = iterations[job] - n
                rest_s = n * (work_s + phase_s) - (0.0 if io_first else work_s)
                ideal_s = done * (work_s + phase_s) + (0.0 if io_first else work_s)
                rank = key(asked_s, asked_s, phase_s, rest_s, done * phase_s, asked_s, ideal_s, job)
                heappush(waiting, (rank, asked_s, job))
            _, _, job = heappop(waiting)
            now_s += io_s[job]
            left[job - first] -= 1
            if left[job - first] > 0:
                heappush(busy, (now_s + compute_s[job], job))
            else:
                finish_s[job] = now_s + compute_s[job] if io_first else now_s


def serve_changing(
    key: OrderKey,
    bounds: Sequence[int],
    compute_s: Sequence[float],
    io_s: Sequence[float],
    iterations: Sequence[int],
    finish_s: MutableSequence[float],
    *,
    io_first: bool,
) -> None:
    """Any order at all: all who wait are looked at anew each time somebody may be served.

    Args: those of :func:`serve_fifo`, and ``key``, the order.
    """
    for pack in range(len(bounds) - 1):
        first, end = bounds[pack], bounds[pack + 1]
        left = [iterations[job] for job in range(first, end)]
        busy = [(0.0 if io_first else compute_s[job], job) for job in range(first, end)]
        heapify(busy)
        waiting: list[tuple[float, int]] = []
        now_s = 0.0
        while busy or waiting:
            if not waiting and busy[0][0] > now_s:
                now_s = busy[0][0]
            while busy and busy[0][0] <= now_s:
                insort(waiting, heappop(busy))  # one without I/O may ask again at this instant
            best, best_rank = 0, 0.0
            for place in range(len(waiting)):
                asked_s, job = waiting[place]
                work_s, phase_s, n = compute_s[job], io_s[job], left[job - first]
                done = iterations[job] - n
                rest_s = n * (work_s + phase_s) - (0.0 if io_first else work_s)
                ideal_s = done * (work_s + phase_s) + (0.0 if io_first else work_s)
                rank = key(now_s, asked_s, phase_s, rest_s, done * phase_s, now_s, ideal_s, job)
                # those who wait stand in the order of request and id: the first of equals wins
                if place == 0 or rank < best_rank:
                    best, best_rank = place, rank
            _, job = waiting.pop(best)
            now_s += io_s[job]
            left[job - first] -= 1
            if left[job - first] > 0:
                heappush(busy, (now_s + compute_s[job], job))
            else:
                finish_s[job] = now_s + compute_s[job] if io_first else now_s
