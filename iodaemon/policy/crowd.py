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
   Where the device moves clearly less than before and answers below the knee, too many are held:
   one comes back, and in the next slice twice as many as did in this one, as long as that is so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from iodaemon.core.congestion import KNEE_WAIT, Sense
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


class Crowding(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of crowds at a device.

    Attributes:
        wasted_slices: slices in a row in which the device did clearly less for many requests than
            it does one at a time.
        returning: how many may come back now because too many are held; 0: none for that.
        returned: how many of these did.
        most_bytes_per_s: what it moved when some of a crowd were suspended, the most of all times
            since somebody is held; 0: no crowd is.
    """

    wasted_slices: int = 0
    returning: int = 0
    returned: int = 0
    most_bytes_per_s: float = 0.0

    def after(
        self, sense: Sense, moved_bytes_per_s: float, *, is_held: bool, is_calm: bool
    ) -> Crowding:
        """After one more slice; ``is_held``: somebody is suspended for this device."""
        most_bytes_per_s = self.most_bytes_per_s if is_held else 0.0
        is_below_knee = is_calm and (sense.last_wait or 0.0) < KNEE_WAIT  # in this slice as well
        is_short = is_below_knee and moved_bytes_per_s < LESS * most_bytes_per_s
        return Crowding(
            wasted_slices=self.wasted_slices + 1 if is_wasted(sense) else 0,
            returning=max(1, 2 * self.returned) if is_short else 0,
            most_bytes_per_s=most_bytes_per_s,
        )

    def with_return(self) -> Crowding:
        """When one has come back."""
        return msgspec.structs.replace(self, returned=min(self.returned + 1, self.returning))

    def minds(self, crowd_slices: int) -> bool:
        """Many small jobs may be taken off; ``crowd_slices``: so long it must have been wasted."""
        return self.most_bytes_per_s > 0.0 or self.wasted_slices >= crowd_slices


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
