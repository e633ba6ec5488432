"""Finish times of many packs at once, compiled where numba is installed, else in plain Python."""

from __future__ import annotations

import functools
import importlib.util
from typing import Final, Literal

import msgspec

from iodaemon.core.rule import OrderKey
from iodaemon.policy.order import CHANGING, ORDERS, fifo
from iodaemon.simulator.kernel import plain

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


def finish_times(
    batch: Batch,
    order: OrderKey = fifo,
    *,
    io_first: bool = False,
    engine: Engine = "auto",
) -> list[float]:
    """When each job of the batch ends, s after the start of its pack.

    Args:
        batch: the packs.
        order: who is served first; one of :data:`iodaemon.policy.order.ORDERS`, or anybody's own,
            which is then taken to change while jobs wait, and run as it is: what Python can do,
            numba may not.
        io_first: whether an iteration begins with its I/O phase, not with its compute phase.
        engine: how to run.
    """
    columns = (batch.bounds, batch.compute_s, batch.io_s, batch.iterations)
    changes = _is_changing(order)
    is_ours = any(order is key for key in ORDERS.values())
    if engine == "compiled" or (engine == "auto" and is_ours and has_numba()):
        from iodaemon.simulator.kernel import compiled

        named = None if order is fifo else order
        return compiled.serve(named, columns, changes=changes, io_first=io_first)
    finish_s = [0.0] * len(batch.compute_s)
    if order is fifo:
        plain.serve_fifo(*columns, finish_s, io_first=io_first)
    elif changes:
        plain.serve_changing(order, *columns, finish_s, io_first=io_first)
    else:
        plain.serve_fixed(order, *columns, finish_s, io_first=io_first)
    return finish_s


def _is_changing(order: OrderKey) -> bool:
    """Whether keys must be computed anew at each instant; of an unknown order: yes."""
    return not any(order is key for name, key in ORDERS.items() if name not in CHANGING)
