"""Small storages for the rules for allocation, and what is on them."""

import math
import random

from iodaemon.core.job import DiskId
from iodaemon.core.storage import (
    Allocation,
    Disk,
    Storage,
    StorageLedger,
    StorageNode,
    StorageRequest,
)

GB = 10**9


def disk(name, gb=4000, read=3.13e9, write=2.93e9):
    return Disk(
        id=DiskId(name), capacity_bytes=gb * GB, read_bytes_per_s=read, write_bytes_per_s=write
    )


def node(name, disks, server="", network=12.5e9, **kinds):
    """A node with so many disks, or these sizes in GB."""
    sizes = [4000] * disks if isinstance(disks, int) else disks
    made = tuple(disk(f"{name}:{place}", gb, **kinds) for place, gb in enumerate(sizes))
    return StorageNode(id=name, disks=made, server=server, network_bytes_per_s=network)


def ledger(*nodes, seed=1):
    return StorageLedger(Storage(nodes=nodes), random.Random(seed))


def two_servers():
    """Of the published tests: nodes of 2 and 3 disks; nodes of 3, 4 and 1."""
    return ledger(
        node("a0", 2, "a"),
        node("a1", [4000, 8000, 4000], "a"),
        node("b0", 3, "b"),
        node("b1", 4, "b"),
        node("b2", 1, "b"),
    )


def request(gb=20, start=0.0, end=10_800.0, name="r"):
    return StorageRequest(id=name, size_bytes=round(gb * GB), start_s=start, end_s=end)


def take(books, name, gb, start=3600.0, end=16_200.0):
    entry = Allocation(DiskId(name), gb * GB, start, end)
    books.take(entry)
    return entry


FOREVER = math.inf
