"""Many small jobs that fill a place only together: who matters then, and when too many are held.

1. A job with less than ``LIGHT_SHARE`` of the load is light, and spared: to stop it would relieve
   nothing. That holds of a few light jobs beside heavy ones, not of 25 that are alike. Where light
   jobs put more than half of the load there together (a crowd), a job matters from half of an equal
   share on. So those who are spared for their size never put more than half of it there.
2. At a device that takes more than a long wait. Many jobs that mostly compute wait for one another
   now and then, and lose nothing by it; jobs that began together read together at first. A crowd
   is taken off where the device does clearly less for it than it does one request at a time, and
   the wait has been high for a turn.
3. What a crowd puts on a full device says little of what each of it puts on one that is not full.
   Where the device moves clearly less than before and answers as if alone, too many are held, and
   one after the other comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from iodaemon.core.congestion import Sense
from iodaemon.core.job import JobId

LIGHT_SHARE: Final = 0.05
"""A job with less than this part of the load is light."""
CROWD_SHARE: Final = 0.5
"""Light jobs with more than this part of the load together are a crowd; of an equal share in it,
the part from which on a job matters."""
WASTED: Final = 2.0
"""A request takes so many times longer than all in flight would one after the other: half of what
the device could do is lost, and more."""
LESS: Final = 0.85
"""Clearly less is less than this part of it."""


def is_wasted(sense: Sense) -> bool:
    """True where a device does clearly less than it does for one request at a time.

    By Little's law: what is in flight over the time that it takes.
    """
    return sense.high_slices > 0 and (sense.last_wait or 0.0) > WASTED * sense.queue_length


def is_crowd(parts: Mapping[JobId, float], load: float) -> bool:
    """True where light jobs put most of the load there."""
    light = (part for part in parts.values() if part < LIGHT_SHARE * load)
    return sum(light) > CROWD_SHARE * load


def heavy_from(parts: Mapping[JobId, float], load: float) -> float:
    """The part of a load from which on a job matters, where a crowd may be taken off.

    More than half of what jobs put there is of such jobs, unless half of it is of no job at all.
    """
    if not is_crowd(parts, load):
        return LIGHT_SHARE * load
    sharing = sum(part > 0.0 for part in parts.values())
    return CROWD_SHARE * load / sharing
