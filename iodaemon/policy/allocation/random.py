"""Any disk: a server, one of its nodes, one of its disks, each at random; nothing is looked at.

It never refuses; whether the space is there is found out by whoever takes it.

Source: Monniot, Tessier, Robert, Antoniu, CCPE 2023 (StorAlloc), section 4.2.
"""

from __future__ import annotations

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Refusal, StorageRequest, StorageView


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A disk at random; it has no parameters."""

    def choose(
        self,
        view: StorageView,
        request: StorageRequest,  # noqa: ARG002 - nothing of it matters
        memory: None,
    ) -> tuple[DiskId | Refusal, None]:
        """The disk; disks of a node with fewer of them are taken more often."""
        nodes = view.rng.choice(view.storage.servers)
        return view.rng.choice(view.rng.choice(nodes).disks).id, memory
