"""The same packs as machine code (extra ``sim``): numba compiles once for a machine, then caches.

Jobs are looked at one after the other here, which for packs of usual size is quicker than a heap;
only first come, first served has one. An order is passed as a pointer to its compiled function,
the very one of ``policy/order.py``, so one loop serves all eight; anybody's own, which numba may
not understand, comes here only with ``engine = "compiled"``. Every sum is made as in
:mod:`iodaemon.simulator.kernel.plain` and nothing is reordered (no fast-math), so the finish times
are the same to the last bit, which a test holds both to.
"""

# ruff: noqa: FBT001 - numba knows no keyword-only arguments

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from iodaemon.core.rule import OrderKey

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Columns = tuple[Integers, Floats, Floats, Integers]
"""Bounds of the packs; compute and I/O phase of each job, s; its iterations."""
Lists = tuple[list[int], list[float], list[float], list[int]]
"""The same as plain lists."""

_KEY = types.float64(*[types.float64] * 7, types.int64)
_FLOATS = types.Array(types.float64, 1, "C")
_INTEGERS = types.Array(types.int64, 1, "C")
_types: Any = types  # what numba says of its own types does not satisfy mypy
_BATCH = (
    _types.Tuple((_INTEGERS, _FLOATS, _FLOATS, _INTEGERS)),
    types.boolean,
    _FLOATS,
)


def serve(
    order: OrderKey | None,
    columns: Lists,
    *,
    changes: bool,
    io_first: bool,
) -> list[float]:
    """When each job ends, s after the start of its pack.

    Args:
        order: who is served first; None: first come, first served.
        columns: bounds of the packs, compute and I/O phase of each job in s, and its iterations.
        changes: whether keys hold only for the instant at which they were computed.
        io_first: whether an iteration begins with its I/O phase.
    """
    arrays = _arrays(columns)
    finish_s = np.zeros(len(arrays[1]))
    if order is None:
        _fifo_loop()(arrays, io_first, finish_s)
    else:
        _order_loop()(_machine_code(order), changes, arrays, io_first, finish_s)
    made: list[float] = finish_s.tolist()
    return made


def _arrays(columns: Lists) -> Columns:
    bounds, compute_s, io_s, iterations = columns
    return (
        np.array(bounds, dtype=np.int64),
        np.array(compute_s, dtype=np.float64),
        np.array(io_s, dtype=np.float64),
        np.array(iterations, dtype=np.int64),
    )


@functools.cache
def _machine_code(order: OrderKey) -> Any:
    return numba.njit(_KEY, cache=True)(order)


@functools.cache
def _fifo_loop() -> Callable[..., None]:
    made: Callable[..., None] = numba.njit(types.void(*_BATCH), cache=True)(_serve_fifo)
    return made


@functools.cache
def _order_loop() -> Callable[..., None]:
    signature = types.void(types.FunctionType(_KEY), types.boolean, *_BATCH)
    made: Callable[..., None] = numba.njit(signature, cache=True)(_serve_by_order)
    return made


def _sift_down(
    heap: tuple[Floats, Integers], size: int, hole: int, asked_s: float, job: int
) -> None:
    """Put a request into the hole of a heap by time and job, or further down."""
    times, jobs = heap
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and jobs[right] < jobs[child])
        ):
            child = right
        if times[child] > asked_s or (times[child] == asked_s and jobs[child] > job):
            break
        times[hole], jobs[hole] = times[child], jobs[child]
        hole = child
    times[hole], jobs[hole] = asked_s, job


def _rank(
    order: OrderKey,
    now_s: float,
    asked_s: float,
    compute_s: float,
    io_s: float,
    iterations: int,
    left: int,
    io_first: bool,
    job: int,
) -> float:
    """The order's key of a job that has asked for its next phase, at this instant."""
    before_s, done = 0.0 if io_first else compute_s, iterations - left
    rest_s = left * (compute_s + io_s) - before_s
    ideal_s = done * (compute_s + io_s) + before_s
    return order(now_s, asked_s, io_s, rest_s, done * io_s, now_s, ideal_s, job)


_put = numba.njit(cache=True)(_sift_down)
_rank_of = numba.njit(cache=True)(_rank)


def _first_ranks(order: OrderKey, columns: Columns, io_first: bool) -> Floats:
    """The key of each job's first request, at the instant of that request."""
    _, compute_s, io_s, iterations = columns
    rank = np.empty(len(io_s))
    for job in range(len(io_s)):
        w, v, n = compute_s[job], io_s[job], iterations[job]
        at_s = 0.0 if io_first else w
        rank[job] = _rank_of(order, at_s, at_s, w, v, n, n, io_first, job)
    return rank


_first_ranks_of = numba.njit(cache=True)(_first_ranks)


def _serve_fifo(
    columns: Columns,
    io_first: bool,
    finish_s: Floats,
) -> None:
    """The earliest request first: one heap holds the next request of each job."""
    bounds, compute_s, io_s, iterations = columns
    heap = np.empty(len(io_s)), np.empty(len(io_s), np.int64)
    left = iterations.copy()
    for pack in range(len(bounds) - 1):
        first, size = bounds[pack], bounds[pack + 1] - bounds[pack]
        for place in range(size - 1, -1, -1):
            asked_s = 0.0 if io_first else compute_s[first + place]
            _put(heap, size, place, asked_s, first + place)
        free_s = 0.0
        while size > 0:
            job = heap[1][0]
            free_s = max(heap[0][0], free_s) + io_s[job]
            left[job] -= 1
            if left[job] > 0:
                _put(heap, size, 0, free_s + compute_s[job], job)
            else:
                finish_s[job] = free_s + compute_s[job] if io_first else free_s
                size -= 1
                _put(heap, size, 0, heap[0][size], heap[1][size])


def _serve_by_order(
    order: OrderKey,
    changes: bool,
    columns: Columns,
    io_first: bool,
    finish_s: Floats,
) -> None:
    """The smallest key first among those who wait."""
    bounds, compute_s, io_s, iterations = columns
    next_s = np.zeros(len(io_s)) if io_first else compute_s.copy()
    rank, left = _first_ranks_of(order, columns, io_first), iterations.copy()
    for pack in range(len(bounds) - 1):
        now_s, going = 0.0, bounds[pack + 1] - bounds[pack]
        while going > 0:
            best, best_rank, best_s, soonest_s = -1, 0.0, 0.0, np.inf
            for job in range(bounds[pack], bounds[pack + 1]):
                at_s = next_s[job]
                if at_s > now_s:
                    soonest_s = min(soonest_s, at_s)
                    continue
                if changes:
                    w, v, n = compute_s[job], io_s[job], iterations[job]
                    rank[job] = _rank_of(order, now_s, at_s, w, v, n, left[job], io_first, job)
                my = rank[job]
                if best < 0 or my < best_rank or (my == best_rank and at_s < best_s):
                    best, best_rank, best_s = job, my, at_s
            if best < 0:
                now_s = soonest_s
                continue
            w, v, n = compute_s[best], io_s[best], iterations[best]
            now_s += v
            left[best] -= 1
            if left[best] > 0:
                at_s = next_s[best] = now_s + w
                rank[best] = _rank_of(order, at_s, at_s, w, v, n, left[best], io_first, best)
            else:
                finish_s[best] = now_s + w if io_first else now_s
                next_s[best] = np.inf
                going -= 1
