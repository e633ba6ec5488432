"""The fast engine for packs of periodic jobs: finish times, compiled where numba is installed.

A batch is many packs, each alone on its I/O node; a job is an index into the columns. All jobs of
a pack start at 0; a job is ``iterations`` times a compute phase and an I/O phase, and its I/O
waits until the node serves it, alone and to the end. Instants are exact; whatever happens at one
instant has happened before somebody is chosen.

Each loop is one text, run as plain Python or compiled by numba (extra ``sim``), which compiles once
for a machine, then caches. An order is passed as a pointer to its compiled function, the very one
of ``policy/list_order.py``, so one loop serves all of them. Nothing is reordered (no fast-math), so
the finish times are the same to the last bit; tests hold both to each other and to the simulator.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, sections 4 and 5.1.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.rule import OrderKey
from iodaemon.policy.list_order import CHANGING, ORDERS, fifo

Engine = Literal["auto", "plain", "compiled"]
"""``auto``: compiled where numba is installed. The results are the same."""

EVENTS_PER_ITERATION: Final = 2
"""What is counted: the request for I/O and its end."""


class Batch(msgspec.Struct, kw_only=True):
    """Packs, each alone on an I/O node, as columns; jobs of a pack stand in the order of their ids.

    Attributes:
        bounds: pack ``i`` is the jobs ``bounds[i]`` to ``bounds[i + 1] - 1``; begins with 0.
        compute_s: of each job.
        io_s: of each job: the length of one I/O phase when it is alone.
        iterations: of each job.
    """

    bounds: list[int] = msgspec.field(default_factory=lambda: [0])
    compute_s: list[float] = []
    io_s: list[float] = []
    iterations: list[int] = []

    def add_job(self, compute_s: float, io_s: float, iterations: int) -> None:
        """Put a job into the pack that is being filled."""
        self.compute_s.append(compute_s)
        self.io_s.append(io_s)
        self.iterations.append(iterations)

    def end_pack(self) -> None:
        """What was added since the last call is a pack."""
        self.bounds.append(len(self.compute_s))

    @property
    def events(self) -> int:
        """How many events its run consists of."""
        return EVENTS_PER_ITERATION * sum(self.iterations)


@functools.cache
def has_numba() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def finish_times(batch: Batch, order: OrderKey = fifo, *, engine: Engine = "auto") -> list[float]:
    """When each job of the batch ends, s after the start of its pack.

    Args:
        batch: the packs.
        order: who is served first; one of :data:`iodaemon.policy.list_order.ORDERS`, or anybody's
            own, which is then taken to change while jobs wait, and run as it is: what Python can
            do, numba may not.
        engine: how to run.
    """
    columns = (batch.bounds, batch.compute_s, batch.io_s, batch.iterations)
    # Keys that change are computed anew at each instant; those of an unknown order as well.
    changes = not any(order is key for name, key in ORDERS.items() if name not in CHANGING)
    is_ours = any(order is key for key in ORDERS.values())
    if engine == "compiled" or (engine == "auto" and is_ours and has_numba()):
        return _compiled_times(columns, order, changes=changes)
    finish_s = [0.0] * len(batch.compute_s)
    if order is fifo:
        _serve_fifo(*columns, finish_s)
    else:
        _serve_by_order(order, changes, *columns, finish_s)
    return finish_s


def _compiled_times(columns: tuple[Any, ...], order: OrderKey, *, changes: bool) -> list[float]:
    import numpy as np

    types = (np.int64, np.float64, np.float64, np.int64)
    arrays = [np.array(column, dtype=of) for column, of in zip(columns, types, strict=True)]
    finish_s = np.zeros(len(arrays[1]))
    if order is fifo:
        _machine_code(_serve_fifo)(*arrays, finish_s)
    else:
        _machine_code(_serve_by_order)(_machine_code(order), changes, *arrays, finish_s)
    made: list[float] = finish_s.tolist()
    return made


@functools.cache
def _machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    types: Any = numba.types  # what numba says of its own types does not satisfy mypy
    floats, integers = (types.Array(of, 1, "C") for of in (types.float64, types.int64))
    columns = (integers, floats, floats, integers, floats)
    key = types.float64(*[types.float64] * 7, types.int64)
    signature = key
    if function is _serve_fifo:
        signature = types.void(*columns)
    elif function is _serve_by_order:
        signature = types.void(types.FunctionType(key), types.boolean, *columns)
    made: Callable[..., Any] = numba.njit(signature, cache=True)(function)
    return made


def _serve_fifo(
    bounds: list[int],
    compute_s: list[float],
    io_s: list[float],
    iterations: list[int],
    finish_s: list[float],
) -> None:
    """First come, first served, with one heap: the order of requests is the order of service."""
    left = iterations.copy()
    for pack in range(len(bounds) - 1):
        waiting = [(compute_s[job], job) for job in range(bounds[pack], bounds[pack + 1])]
        heapify(waiting)
        free_s = 0.0
        while len(waiting) > 0:
            asked_s, job = waiting[0]
            free_s = (asked_s if asked_s > free_s else free_s) + io_s[job]  # noqa: FURB136 - slow
            left[job] -= 1
            if left[job] > 0:
                heapreplace(waiting, (free_s + compute_s[job], job))
            else:
                heappop(waiting)
                finish_s[job] = free_s


def _serve_by_order(
    order: OrderKey,
    changes: bool,  # noqa: FBT001 - numba knows no keyword-only arguments
    bounds: list[int],
    compute_s: list[float],
    io_s: list[float],
    iterations: list[int],
    finish_s: list[float],
) -> None:
    """The smallest key first among those who wait, then the earlier request, then the smaller id.

    Jobs are looked at one after the other, which for packs of usual size is quicker than a heap.
    """
    next_s, left = compute_s.copy(), iterations.copy()
    rank = [math.nan] * len(io_s)  # not a number: the key is not known
    for pack in range(len(bounds) - 1):
        now_s, going = 0.0, bounds[pack + 1] - bounds[pack]
        while going > 0:
            best, soonest_s = -1, math.inf
            for job in range(bounds[pack], bounds[pack + 1]):
                at_s = next_s[job]
                if at_s > now_s:
                    soonest_s = min(soonest_s, at_s)
                    continue
                if changes or math.isnan(rank[job]):
                    seen_s, done = now_s if changes else at_s, iterations[job] - left[job]
                    w, v = compute_s[job], io_s[job]
                    rest_s, ideal_s = left[job] * (w + v) - w, done * (w + v) + w
                    rank[job] = order(seen_s, at_s, v, rest_s, done * v, seen_s, ideal_s, job)
                if (
                    best < 0
                    or rank[job] < rank[best]
                    or (rank[job] == rank[best] and at_s < next_s[best])
                ):
                    best = job
            if best < 0:
                now_s = soonest_s
                continue
            now_s += io_s[best]
            left[best] -= 1
            rank[best] = math.nan
            if left[best] > 0:
                next_s[best] = now_s + compute_s[best]
            else:
                finish_s[best], next_s[best] = now_s, math.inf
                going -= 1
