"""What a way to pack jobs and to order their I/O makes of a workload, on one and more I/O nodes.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, sections 5 and 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.measure import mean, stretch
from iodaemon.core.rule import OrderKey
from iodaemon.errors import ConfigError
from iodaemon.policy.list_order import ORDERS
from iodaemon.policy.packing import Item, Pack, assign, make_packs
from iodaemon.registry import find_own, nearest
from iodaemon.simulator.carretero import Application, io_load
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.kernel import Batch, Engine, finish_times

PackOrder = Literal["best-fit", "creation"]
"""In which order Make-Pack looks at the packs: by decreasing processors in use, or as opened."""
FIRST_FIT: Final = "first-fit"
AS_SUBMITTED: Final = "as-submitted"
LOAD: Final = "load"


def find_order(name: str) -> OrderKey:
    """One of the eight list orders by name, or anybody's own: ``my.module:function``.

    Raises:
        ValueError: there is none; says which come near.
    """
    if ":" in name:
        try:
            own: Any = find_own("order", name)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if not callable(own):
            raise ValueError(f"order {name!r}: must be a function of eight numbers")
        order: OrderKey = own
        return order
    if name not in ORDERS:
        hint = nearest(name, tuple(ORDERS))
        raise ValueError(f"unknown order {name!r}; {hint}; your own is written my.module:function")
    return ORDERS[name]


class Strategy(msgspec.Struct, frozen=True):
    """A way to pack and an order of I/O.

    Attributes:
        name: ``PACKING/ORDER``, for example ``1/fifo``.
        packing: ``first-fit``; ``as-submitted``: the same, but jobs are taken as they come, not
            by decreasing length; ``load``; or S as a number.
        bound: S of Make-Pack; infinite for First-Fit; None: the I/O load of the workload.
        order: a list order (``find_order``).
    """

    name: str
    packing: str
    bound: float | None
    order: str


def parse_strategy(name: str) -> Strategy:
    """The strategy of this name: ``first-fit/fifo``, ``load/fifo``, ``1.5/longest_remaining``.

    Raises:
        ValueError: it is none.
    """
    packing, _, order = name.partition("/")
    try:
        find_order(order)
    except ValueError as error:
        raise ValueError(f"strategy {name!r}: {error}") from error
    return Strategy(name, packing, _parse_bound(packing, name), order)


def _parse_bound(packing: str, name: str) -> float | None:
    if packing in (FIRST_FIT, AS_SUBMITTED):
        return math.inf
    if packing == LOAD:
        return None
    try:
        bound = float(packing)
    except ValueError:
        bound = math.nan
    if not bound > 0.0:
        raise ValueError(
            f"strategy {name!r}: {packing!r} is no way to pack; write first-fit, as-submitted, "
            "load, or a number above 0 (the sensibility S)"
        )
    return bound


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all strategies.

    Attributes:
        partition_nodes: P, compute nodes of one I/O node.
        io_nodes: how many I/O nodes; each count is measured.
        pack_order: how Make-Pack looks for a place.
        engine: how the packs are run.
    """

    partition_nodes: int = 2048
    io_nodes: tuple[int, ...] = (1,)
    pack_order: PackOrder = "best-fit"
    engine: Engine = "auto"


def run_strategies(
    applications: Sequence[Application], strategies: Sequence[Strategy], setting: Setting
) -> list[Row]:
    """Pack, run every pack, put the packs on the I/O nodes; once for each strategy.

    Columns of a row: ``packs``, how many; ``stretch``, mean over the packs of the largest in it;
    ``ideal_s`` and ``real_s``, sums of the packs' lengths without contention and with it, and
    ``worst_ratio``, the largest real / ideal length of one. In node-seconds: ``exec_node_s``, time
    at compute or I/O, ``delay_node_s``, waiting for I/O, ``idle_node_s``, time that nobody holds a
    node, or its application has ended before its pack. ``makespan_N_s`` with N I/O nodes.
    """
    packs = {each.packing: pack_applications(applications, each, setting) for each in strategies}
    ends: dict[str, list[list[float]]] = {}
    for order in sorted({each.order for each in strategies}):
        mine = [each for each in strategies if each.order == order]
        chosen = [pack for each in mine for pack in packs[each.packing]]
        made = iter(run_packs(applications, chosen, order, setting))
        ends |= {each.name: [next(made) for _ in packs[each.packing]] for each in mine}
    return [_columns(packs[each.packing], ends[each.name], setting) for each in strategies]


def pack_applications(
    applications: Sequence[Application], strategy: Strategy, setting: Setting
) -> tuple[Pack, ...]:
    """The packs of a workload; an item's id is the place of the application."""
    items = [
        Item(id=place, slots=each.nodes, alone_s=each.alone_s, volume_bytes=each.volume)
        for place, each in enumerate(applications)
    ]
    if strategy.packing == AS_SUBMITTED:
        return _as_submitted(items, setting.partition_nodes)
    bound = strategy.bound
    return make_packs(
        items,
        slots=setting.partition_nodes,
        stretch_bound=io_load(applications, setting.partition_nodes) if bound is None else bound,
        bandwidth_bytes_per_s=1.0,
        fullest_first=setting.pack_order == "best-fit",
    )


def _as_submitted(items: Iterable[Item], slots: int) -> tuple[Pack, ...]:
    """Each job into the first pack with the slots, in the order in which they come."""
    packs: list[list[Item]] = []
    for item in items:
        for pack in packs:
            if sum(other.slots for other in pack) + item.slots <= slots:
                pack.append(item)
                break
        else:
            packs.append([item])
    return tuple(Pack(items=tuple(pack)) for pack in packs)


def run_packs(
    applications: Sequence[Application], packs: Iterable[Pack], order: str, setting: Setting
) -> list[list[float]]:
    """When each job of each pack ends, s after the pack's start, in the order of its items."""
    batch = Batch()
    columns: list[list[int]] = []
    for pack in packs:
        ids = sorted(item.id for item in pack.items)
        column = {place: len(batch.io_s) + number for number, place in enumerate(ids)}
        for each in (applications[place] for place in ids):
            batch.add_job(each.compute_s, each.io_s, each.iterations)
        batch.end_pack()
        columns.append([column[item.id] for item in pack.items])
    end_s = finish_times(batch, find_order(order), engine=setting.engine)
    return [[end_s[column] for column in pack] for pack in columns]


def _columns(packs: Sequence[Pack], ends: Sequence[Sequence[float]], setting: Setting) -> Row:
    ideal_s = [pack.alone_s for pack in packs]
    real_s = [max(end_s) for end_s in ends]
    worst = [
        max(stretch(end, item.alone_s) for end, item in zip(end_s, pack.items, strict=True))
        for pack, end_s in zip(packs, ends, strict=True)
    ]
    exec_node_s = held_node_s = 0.0
    for pack, end_s in zip(packs, ends, strict=True):
        exec_node_s += sum(item.slots * item.alone_s for item in pack.items)
        held_node_s += sum(item.slots * e for item, e in zip(pack.items, end_s, strict=True))
    return {
        "packs": len(packs),
        "stretch": mean(worst),
        "ideal_s": sum(ideal_s),
        "real_s": sum(real_s),
        "worst_ratio": max(real / ideal for real, ideal in zip(real_s, ideal_s, strict=True)),
        "exec_node_s": exec_node_s,
        "delay_node_s": held_node_s - exec_node_s,
        "idle_node_s": setting.partition_nodes * sum(real_s) - held_node_s,
        **{f"makespan_{n}_s": makespan_by_lpt_s(ideal_s, real_s, n) for n in setting.io_nodes},
    }


def makespan_by_lpt_s(ideal_s: Sequence[float], real_s: Sequence[float], io_nodes: int) -> float:
    """Packs on I/O nodes: LPT by the lengths as they are foreseen; then what they really take."""
    loads_s = [0.0] * io_nodes
    for chosen, length_s in zip(assign(ideal_s, io_nodes), real_s, strict=True):
        loads_s[chosen] += length_s
    return max(loads_s)
