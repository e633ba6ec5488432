"""What becomes of a job that is one too many for a device and asked never to be suspended.

1. It is slowed down, by a cap on what it may move there: half of what it moved in the last slice,
   of which no more counts than an equal part of what the device moved. A job that dirties pages as
   fast as the memory takes them would not notice half of that.
2. The cap is on what it writes, where it writes more than it reads; else on what it reads.
3. It keeps that cap until there is room at the device, as who stands still does until then.

Never for the memory: a job that is slowed down keeps as much of it. Never where the kernel, or the
backend, knows no caps (``View.may_cap``).

Source: measured (docs/regulation.md, "A ladder before freezing").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from iodaemon.core.decision import Cap
from iodaemon.core.job import Job, JobId
from iodaemon.core.platform import DeviceId
from iodaemon.core.view import View

PART: Final = 0.5
"""Of what it moved: measured; a part so large relieves the device, and leaves the job its pace."""
LEAST_BYTES_PER_S: Final = 1e6
"""No cap is tighter: a job with a heartbeat has to get on (Linux charges whole pages and requests).
"""


def slow_down(view: View, device: str, contenders: Sequence[Job], many: int) -> dict[JobId, Cap]:
    """The caps of those who may have one, at most so many; who has one keeps it.

    Args:
        view: at the end of the slice.
        device: that they are too many for.
        contenders: all of them, those first that are to be slowed down first.
        many: how many are too many.
    """
    able = [job for job in contenders if job.spec.no_suspend and view.may_cap(job.id)]
    had = view.caps
    able.sort(key=lambda job: not _is_on(had.get(job.id), device))  # stable
    caps: dict[JobId, Cap] = {}
    for job in able:
        if len(caps) >= many:
            break
        known = had.get(job.id)
        cap = known if _is_on(known, device) else _half(view, device, job, len(contenders))
        if cap is not None:
            caps[job.id] = cap
    return caps


def _is_on(cap: Cap | None, device: str) -> bool:
    if cap is None:
        return False
    return device in cap.read_bytes_per_s or device in cap.written_bytes_per_s


def _half(view: View, device: str, job: Job, many: int) -> Cap | None:
    """The cap of a job that has none yet; None: it moved nothing, or what it moved is not known."""
    name = DeviceId(device)
    moved, load = view.bandwidth(job.id), view.devices.get(name)
    if moved is None or load is None or moved.total_bytes_per_s <= 0.0:
        return None
    own = min(moved.total_bytes_per_s, load.total_bytes_per_s / many)
    most = {name: max(LEAST_BYTES_PER_S, PART * own)}
    if moved.written_bytes_per_s > moved.read_bytes_per_s:
        return Cap(written_bytes_per_s=most)
    return Cap(read_bytes_per_s=most)
