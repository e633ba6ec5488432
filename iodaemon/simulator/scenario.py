"""A machine and its jobs as a file describes them, for studies that need no code."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from iodaemon.core.job import JobSpec
from iodaemon.errors import ConfigError
from iodaemon.model.disk import SimulatedDisk
from iodaemon.model.profile import (
    DEFAULT_LINK,
    Hold,
    Profile,
    Read,
    Stage,
    Transfer,
    Write,
    parse_profile,
)
from iodaemon.model.scaling import Scaling, constant_scaling, table_scaling
from iodaemon.model.spec import LinkSpec, StoreSpec
from iodaemon.policy.list_order import CHANGING, ORDERS
from iodaemon.registry import nearest
from iodaemon.simulator.run import Submission

STEPS: Final = ("compute", "read", "write", "transfer", "stage")
DEFAULT_STORE: Final = "bb"
"""Of ``stores`` and ``holds``: a burst buffer."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The disk below all sockets; the page cache is Linux's with 16 GiB of memory.

    Attributes:
        capacity_bytes_per_s: what one stream gets.
        scaling: the part of the capacity that is left, for all together, with 1, 2, 3 ...
            streams; the last one holds beyond. Empty: all of it, always.
        stream_cap_bytes_per_s: no job's stream is faster. None: no such bound.
    """

    capacity_bytes_per_s: float = 500e6
    scaling: tuple[float, ...] = ()
    stream_cap_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a disk that delivers nothing."""
        _check_stream(self)

    def simulated(self) -> SimulatedDisk:
        """The disk of the simulated node."""
        return SimulatedDisk(
            capacity_bytes_per_s=self.capacity_bytes_per_s,
            scaling=_scaling(self.scaling),
            stream_cap_bytes_per_s=self.stream_cap_bytes_per_s,
        )


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link to storage elsewhere, such as a parallel file system or an I/O node.

    Attributes:
        id: its name, for the jobs.
        capacity_bytes_per_s: what one stream gets.
        sharing: ``fair``: all jobs at once; ``exclusive``: one at a time.
        order: who is next on an exclusive link.
        scaling: the part of the capacity that is left with 1, 2, 3 ... streams; see the disk.
        stream_cap_bytes_per_s: no job's stream is faster. None: no such bound.
        per_socket: each socket has one for itself.
    """

    id: str = DEFAULT_LINK
    capacity_bytes_per_s: float
    sharing: Literal["fair", "exclusive"] = "fair"
    order: str = "fifo"
    scaling: tuple[float, ...] = ()
    stream_cap_bytes_per_s: float | None = None
    per_socket: bool = False

    def __post_init__(self) -> None:
        """Refuse what nothing could flow over, and an order that is none."""
        _check_stream(self)
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}; {nearest(self.order, tuple(ORDERS))}")
        if self.order != "fifo" and self.sharing == "fair":
            raise ValueError(f"order {self.order!r} needs sharing = 'exclusive'")

    def simulated(self) -> LinkSpec:
        """The link of the simulated node."""
        is_exclusive = self.sharing == "exclusive"
        return LinkSpec(
            id=self.id,
            capacity_bytes_per_s=self.capacity_bytes_per_s,
            sharing=self.sharing,
            order=ORDERS[self.order] if is_exclusive else None,
            order_is_fixed=is_exclusive and self.order not in CHANGING,
            scaling=_scaling(self.scaling),
            stream_cap_bytes_per_s=self.stream_cap_bytes_per_s,
            per_partition=self.per_socket,
        )


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """A store, such as a burst buffer, in which jobs hold room while they live.

    Attributes:
        id: its name, for the jobs.
        capacity_bytes: how much there is.
    """

    id: str = DEFAULT_STORE
    capacity_bytes: int

    def __post_init__(self) -> None:
        """Refuse a store that nothing fits into."""
        if self.capacity_bytes <= 0:
            raise ValueError("capacity_bytes must be above 0")

    def simulated(self) -> StoreSpec:
        """The store of the simulated node."""
        return StoreSpec(id=self.id, capacity_bytes=self.capacity_bytes)


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one kind.

    Attributes:
        does: what each really does: ``compute=5s read=2GiB write=200MB transfer=1GB stage=1GB``,
            in this order; the last two go over the link, the others to the disk. Staging is
            what the storage moves for it: none of its own I/O.
        repeat: so many times over.
        speaks: it tells of each read, write and transfer, and waits for its turn before it.
        link: of its transfers and staging.
        store: in which it holds room.
        holds_bytes: how much, from its start to its end. 0: none.
        name: for people.
        count: how many jobs.
        submit_s: when the first one is submitted.
        every_s: time between two submits. 0: all at once.
        cpus: slots that each one asks for.
        walltime_s: bound on its run time. None: no bound.
        io_rate_bytes_per_s: I/O that it declares. None: unknown to the policies.
        no_suspend: it must not be suspended.
    """

    does: str
    repeat: int = 1
    speaks: bool = False
    link: str = DEFAULT_LINK
    store: str = DEFAULT_STORE
    holds_bytes: int = 0
    name: str = ""
    count: int = 1
    submit_s: float = 0.0
    every_s: float = 0.0
    cpus: int = 1
    walltime_s: float | None = None
    io_rate_bytes_per_s: float | None = None
    no_suspend: bool = False

    def __post_init__(self) -> None:
        """Refuse steps that are none, and jobs that ask for nothing."""
        for key in ("repeat", "count", "cpus"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if self.holds_bytes < 0:
            raise ValueError(f"holds_bytes is {self.holds_bytes}; it must not be below 0")
        words = self.does.split()
        if not words:
            raise ValueError("does is empty; write for example 'compute=5s read=2GiB'")
        for word in words:
            kind, found, _ = word.partition("=")
            if not found or kind not in STEPS:
                raise ValueError(f"does: {word!r} is no step; {nearest(kind, STEPS)}")
        try:
            parse_profile(words)
        except ConfigError as error:
            raise ValueError(f"does: {error}") from error

    @property
    def uses_link(self) -> bool:
        """Whether it transfers or stages anything."""
        return any(isinstance(step, Transfer | Stage) for step in self._profile().steps)

    @property
    def uses_disk(self) -> bool:
        """Whether it reads or writes anything."""
        return any(isinstance(step, Read | Write) for step in self._profile().steps)

    def submissions(self) -> list[Submission]:
        """The jobs."""
        profile, spec = self._profile(), self._spec()
        return [
            (self.submit_s + number * self.every_s, spec, profile) for number in range(self.count)
        ]

    def _profile(self) -> Profile:
        steps = tuple(
            msgspec.structs.replace(step, link=self.link)
            if isinstance(step, Transfer | Stage)
            else step
            for step in parse_profile(self.does.split()).steps
        )
        holds = (Hold(self.store, self.holds_bytes),) if self.holds_bytes else ()
        return Profile(steps=steps, repeat=self.repeat, holds=holds, speaks=self.speaks)

    def _spec(self) -> JobSpec:
        return JobSpec(
            command=("simulated", *self.does.split()),
            name=self.name,
            cpus=self.cpus,
            walltime_s=self.walltime_s,
            io_rate_bytes_per_s=self.io_rate_bytes_per_s,
            no_suspend=self.no_suspend,
        )


def _check_stream(shared: Disk | Link) -> None:
    if shared.capacity_bytes_per_s <= 0.0:
        raise ValueError("capacity_bytes_per_s must be above 0")
    if shared.scaling and min(shared.scaling) <= 0.0:
        raise ValueError(f"scaling is {list(shared.scaling)}; every part must be above 0")
    if shared.stream_cap_bytes_per_s == 0.0:
        raise ValueError("stream_cap_bytes_per_s must be above 0")


def _scaling(parts: tuple[float, ...]) -> Scaling:
    return table_scaling(parts) if parts else constant_scaling
