"""What the rule remembers from one slice to the next."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from iodaemon.core.decision import LimitState
from iodaemon.core.job import JobId
from iodaemon.core.sample import NodeCounters
from iodaemon.policy.regulation.adaptive.contender import Seen
from iodaemon.policy.regulation.adaptive.evidence import Reads, Signs
from iodaemon.policy.regulation.adaptive.limiter import Limiter

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """From one slice to the next.

    Attributes:
        at_s: when it was made.
        since_s: when there was last nothing to do: the batch began.
        node: the node's counters then.
        jobs: the live jobs then.
        reads: since the number of jobs at once last changed.
        signs: of the devices.
        many: jobs that contended for anything.
        limiters: by resource.
        held: what each suspended job stands still for.
        crew: who runs on and contends for each resource.
        limits: what was told of them.
        most: so many slots may be in use.
        grown_s: since when.
        over: slices in a row in which the operator's cap was exceeded.
    """

    at_s: float
    since_s: float
    node: NodeCounters = NodeCounters()
    jobs: Mapping[JobId, Seen] = _EMPTY
    reads: Reads
    signs: Signs = Signs()
    many: int = 0
    limiters: Mapping[str, Limiter] = _EMPTY
    held: Mapping[JobId, str] = _EMPTY
    crew: Mapping[str, frozenset[JobId]] = _EMPTY
    limits: tuple[LimitState, ...] = ()
    most: int = 0
    grown_s: float = 0.0
    over: int = 0


def nothing(at_s: float) -> Memory:
    """What is remembered at the beginning."""
    return Memory(at_s=at_s, since_s=at_s, reads=Reads(since_s=at_s))
