"""Does time go on evenly: the wall clock against the monotonic one, and timers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.doctor.finding import Finding, Values, judge

SLEEPS: Final = 20
SLEEP_S: Final = 0.01
MOST_STEP_S: Final = 0.005
"""ntpd slews by at most 0.5 ms a second (adjtime); what moves more in so short a time was set."""
LATE_MEDIAN_S: Final = 0.005
LATE_WORST_S: Final = 0.1
"""The shortest timeslice of the shipped policies' tests is 100 ms."""
_SLOW_SOURCES: Final = frozenset({"acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies"})
"""Each reading leaves the CPU for a chip, or is as coarse as a tick."""
_READINGS: Final = 2000
_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the clocks did meanwhile.

    Attributes:
        step_s: how much further the wall clock went than the monotonic one.
        watched_s: how long they were watched.
        late_s: how much longer each sleep took than it should, in order.
        source: the kernel's clock source; empty: not shown.
        reading_s: what it takes to ask for the time.
    """

    step_s: float
    watched_s: float
    late_s: tuple[float, ...]
    source: str
    reading_s: float


def probe_clock() -> Reading:
    """Sleep a little, often."""
    monotonic_s, wall_s = time.monotonic(), time.time()
    late_s = []
    for _ in range(SLEEPS):
        start_s = time.monotonic()
        time.sleep(SLEEP_S)
        late_s.append(time.monotonic() - start_s - SLEEP_S)
    watched_s = time.monotonic() - monotonic_s
    step_s = time.time() - wall_s - watched_s
    start_s = time.perf_counter()
    for _ in range(_READINGS):
        time.monotonic()
    return Reading(
        step_s=step_s,
        watched_s=watched_s,
        late_s=tuple(late_s),
        source=_SOURCE.read_text().strip() if _SOURCE.exists() else "",
        reading_s=(time.perf_counter() - start_s) / _READINGS,
    )


def judge_clock(reading: Reading) -> Iterator[Finding]:
    """The step, the source, the timers."""
    yield _judge_step(reading)
    yield _judge_source(reading)
    yield _judge_timers(reading.late_s)


def _judge_step(reading: Reading) -> Finding:
    shown = (
        f"{reading.step_s * 1000:+.2f} ms against the monotonic clock "
        f"in {reading.watched_s * 1000:.0f} ms"
    )
    return judge(
        abs(reading.step_s) <= MOST_STEP_S,
        "wall clock",
        shown,
        {"step_s": reading.step_s},
        cost="times in the history are off; running times and timeslices are not, they go by the "
        "monotonic clock",
        remedy="let a time service slew the clock instead of setting it",
    )


def _judge_source(reading: Reading) -> Finding:
    shown = f"{reading.source or 'not shown'}, {reading.reading_s * 1e9:.0f} ns a reading"
    values: Values = {"source": reading.source, "reading_s": reading.reading_s}
    return judge(
        reading.source not in _SLOW_SOURCES,
        "clock source",
        shown,
        values,
        cost="each look at the clock takes long, for jobs as well",
        remedy="see in 'dmesg' why the kernel gave up the tsc",
    )


def _judge_timers(late_s: tuple[float, ...]) -> Finding:
    median_s, worst_s = statistics.median(late_s), max(late_s)
    shown = (
        f"{len(late_s)} sleeps of {SLEEP_S * 1000:.0f} ms ended {median_s * 1000:.2f} ms late "
        f"(median), {worst_s * 1000:.2f} ms (worst)"
    )
    values = {"median_s": median_s, "worst_s": worst_s}
    return judge(
        median_s <= LATE_MEDIAN_S and worst_s <= LATE_WORST_S,
        "timers",
        shown,
        values,
        cost="timeslices are uneven, and suspends come late",
        remedy="leave a CPU to the system, or take a timeslice of a second or more",
    )
