"""What a simulated platform consists of, beside its slots: links, stores, a disk."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from iodaemon.core.rule import OrderKey
from iodaemon.model.disk import SimulatedDisk
from iodaemon.model.memory import SimulatedMemory
from iodaemon.model.profile import DEFAULT_LINK
from iodaemon.model.scaling import Scaling, constant_scaling


class LinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One link that jobs move bytes over.

    Attributes:
        id: its name in profiles.
        capacity_bytes_per_s: what it delivers to one stream.
        sharing: ``fair``: all at once, max-min fair by weight within their caps; ``exclusive``:
            one at a time, never taken away from it, the next one by ``order``.
        order: of an exclusive link. None: first come, first served.
        order_is_fixed: the keys of waiting jobs keep their order while they wait, so that each is
            asked for once only; otherwise all are asked for whenever the link becomes free.
        scaling: the part of the capacity that is left with n streams.
        stream_cap_bytes_per_s: no stream is faster.
        per_partition: each partition has a link of this name for itself.
    """

    id: str
    capacity_bytes_per_s: float
    sharing: Literal["fair", "exclusive"] = "fair"
    order: OrderKey | None = None
    order_is_fixed: bool = False
    scaling: Scaling = constant_scaling
    stream_cap_bytes_per_s: float | None = None
    per_partition: bool = False

    def __post_init__(self) -> None:
        """Refuse what nothing could flow over."""
        cap = self.stream_cap_bytes_per_s
        if not 0.0 < self.capacity_bytes_per_s < math.inf or not (cap is None or cap > 0.0):
            raise ValueError(f"link {self.id}: the capacity and the cap of a stream are above 0")
        if self.order is not None and self.sharing != "exclusive":
            raise ValueError(f"link {self.id}: only an exclusive link has an order")


class StoreSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Room for bytes that jobs hold.

    Attributes:
        id: its name in profiles.
        capacity_bytes: how much there is.
    """

    id: str
    capacity_bytes: int

    def __post_init__(self) -> None:
        """Refuse a store that nothing fits into."""
        if self.capacity_bytes <= 0:
            raise ValueError(f"store {self.id}: the capacity is above 0")


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """All of it.

    Attributes:
        links: each with its own id.
        stores: each with its own id.
        disk: the node's disk below its page cache, for Read and Write. None: it has none.
        memory: what working sets share. None: there is enough of it for everybody.
        counting: of jobs' I/O on the disk: what was done, as the ``kernel`` does, or ``demand``
            (``demand.py``).
        asked_bytes: counted as demand, so much at most is what a stream has asked for and not got.
            None: all that is left of what it reads or writes.
    """

    links: tuple[LinkSpec, ...] = ()
    stores: tuple[StoreSpec, ...] = ()
    disk: SimulatedDisk | None = SimulatedDisk()
    memory: SimulatedMemory | None = None
    counting: Literal["kernel", "demand"] = "kernel"
    asked_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse two of one name."""
        for kind, ids in (
            ("link", [link.id for link in self.links]),
            ("store", [store.id for store in self.stores]),
        ):
            if twice := sorted({name for name in ids if ids.count(name) > 1}):
                raise ValueError(f"two {kind}s are called {twice[0]}")
        if self.disk is None and (self.memory is not None or self.counting == "demand"):
            raise ValueError("without a disk nothing is paged in, and no demand is counted")
        if self.asked_bytes is not None and self.asked_bytes <= 0:
            raise ValueError(f"asked_bytes is {self.asked_bytes}; above 0")


DEFAULT_MODEL = Model(links=(LinkSpec(id=DEFAULT_LINK, capacity_bytes_per_s=1e9),))
"""A server with a disk of 500 MB/s and a mounted parallel file system that delivers 1 GB/s."""
