"""Does what is seen of a device still fit what was measured of it? Pure.

1. It moved more than ``FAR`` times the most that was measured, for ``SUSTAIN_ABOVE`` slices in a
   row: what was measured was not all, or it is another device behind the same name.
2. Lone requests take far longer than the longest, or far shorter than the shortest measured, for
   ``SUSTAIN_LONE`` slices with lone requests in a row. Requests were alone in a slice where hardly
   more than one was in flight while any was.

What was seen once is told until it is measured again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from iodaemon.core.meter import DeviceLoad, lone_range_s
from iodaemon.core.platform import ServiceTimes

FAR: Final = 1.5
"""Steps of a calibration on a shared virtual machine differ by less."""
FAR_TIMES: Final = 3.0
"""A lone request is one of many places and patterns: twice or half is nothing to speak of."""
SUSTAIN_ABOVE: Final = 10
SUSTAIN_LONE: Final = 30
ALONE: Final = 1.25
"""Requests in flight while any is, up to which they count as alone."""
LEAST_REQUESTS_PER_S: Final = 5.0


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How a device has done so far.

    Attributes:
        above: slices in a row with more than was ever measured.
        lone: slices with lone requests in a row that took far longer (or shorter).
        problem: what does not fit, in words; empty: nothing that was seen.
    """

    above: int = 0
    lone: int = 0
    problem: str = ""


def judge(
    fit: Fit, load: DeviceLoad, *, most_bytes_per_s: float, service: ServiceTimes | None
) -> Fit:
    """What is known after one more slice.

    Args:
        fit: what was known before.
        load: the device in this slice.
        most_bytes_per_s: the most that was measured; 0: nothing was.
        service: how long lone requests took.
    """
    if fit.problem:
        return fit
    is_above = 0.0 < FAR * most_bytes_per_s < load.total_bytes_per_s
    above = fit.above + 1 if is_above else 0
    outside = None if service is None else _outside(load, service)
    lone = fit.lone if outside is None else (fit.lone + 1 if outside else 0)
    problem = ""
    if above >= SUSTAIN_ABOVE:
        problem = (
            f"it moves {load.total_bytes_per_s / 1e6:.0f} MB/s, and at most "
            f"{most_bytes_per_s / 1e6:.0f} MB/s was measured"
        )
    elif lone >= SUSTAIN_LONE:
        problem = outside or ""
    return Fit(above=above, lone=lone, problem=problem)


def _outside(load: DeviceLoad, service: ServiceTimes) -> str | None:
    """How lone requests differ from what was measured; empty: they do not; None: there were none.

    Discards and flushes, of which nothing was measured, make a slice say nothing.
    """
    requests_per_s = load.reads_per_s + load.writes_per_s
    measured = lone_range_s(load, service)
    is_alone = load.queue_length <= ALONE * load.busy_ratio
    if measured is None or requests_per_s < LEAST_REQUESTS_PER_S or not is_alone:
        return None
    took_s = load.queue_length / requests_per_s
    if measured[0] / FAR_TIMES <= took_s <= measured[1] * FAR_TIMES:
        return ""
    low, high = (1000.0 * each for each in measured)
    return (
        f"a lone request takes {1000.0 * took_s:.3g} ms, and {low:.3g} to {high:.3g} ms was "
        "measured"
    )
