"""Every metric that is read from the state, one row each, and the page of all metrics."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from iodaemon.core.job import SUSPENDED
from iodaemon.core.meter import SECTOR_BYTES
from iodaemon.core.state import State
from iodaemon.core.stock import NO_SPACE
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.metrics.counts import PREFIX, Counts
from iodaemon.daemon.usage import DIRECTIONS, PLACES


class Scene(NamedTuple):
    """All that can be shown.

    Attributes:
        driver: with the state, the journal, the rules, the counts and the usage.
        supervisor_problem: why no supervisor answers; empty: one does.
        is_protected: the supervisor has an anchor, which would start another one.
        log_lines_lost: lines of the log that could not be written.
    """

    driver: Driver
    supervisor_problem: Callable[[], str] = str
    is_protected: Callable[[], bool] = lambda: True
    log_lines_lost: Callable[[], int] = int

    @property
    def state(self) -> State:
        """That of the driver."""
        return self.driver.state


Rows = Iterable[tuple[tuple[str, ...], float]]
"""Label values, in the order of the metric's labels, and the value."""


class Metric(NamedTuple):
    """One metric that is read.

    Attributes:
        name: without the prefix; a counter's ends with ``_total``, all others are gauges.
        help: one sentence, for people.
        get: its values now; without labels one number, or None where it is not known.
        labels: names of its labels.
    """

    name: str
    help: str
    get: Callable[[Scene], Rows | float | None]
    labels: tuple[str, ...] = ()

    def family(self, found: Rows | float | None) -> Family:
        """The metric with these values, as the client library writes it."""
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        family = kind(PREFIX + self.name, self.help, labels=self.labels)
        rows = found if isinstance(found, Iterable) else [] if found is None else [((), found)]
        for labels, value in rows:
            family.add_metric(labels, value)
        return family


# -- jobs and sockets ---------------------------------------------------------------------------


def _jobs(scene: Scene) -> Rows:
    counts = scene.state.by_state()
    return (((str(state),), count) for state, count in counts.items() if not state.is_final)


def _longest_suspension(scene: Scene) -> Rows:
    now_s = scene.driver.timeline.now_s
    since_s = dict.fromkeys(sorted(SUSPENDED), now_s)
    for job in scene.state.live:
        if job.state in SUSPENDED:
            since_s[job.state] = min(since_s[job.state], job.since_s)
    return (((str(state),), now_s - began_s) for state, began_s in since_s.items())


def _job_bytes(scene: Scene) -> Rows:
    """Every series is there from the start: rate() does not see how a new one began."""
    platform = scene.state.platform
    sockets = [str(partition.id) for partition in platform.partitions]
    places = [*(device.id for device in platform.devices), *PLACES]
    none = dict.fromkeys(product(sockets, places, DIRECTIONS), 0)
    return sorted((none | scene.driver.usage.moved).items())


def _io_bound(scene: Scene) -> float | None:
    rule = scene.driver.controller.rules.regulation
    return getattr(rule, "io_bound_bytes_per_s", None)  # rules need not have one


def _slots(scene: Scene) -> Rows:
    return (((str(each.id),), each.size) for each in scene.state.platform.partitions)


def _slots_free(scene: Scene) -> Rows:
    state = scene.state
    return (((str(each.id),), state.slots_idle(each.id)) for each in state.platform.partitions)


# -- devices ------------------------------------------------------------------------------------


def _devices(unit: float, *fields: str) -> Callable[[Scene], Rows]:
    """What the kernel counts in these fields, in so many of the metric's unit; two: by direction.

    Times wrap after 2**32 ms, which ``rate()`` takes for a restart.
    """

    def get(scene: Scene) -> Rows:
        for device, counters in sorted(scene.driver.usage.devices.items()):
            if len(fields) == 1:
                yield (device,), getattr(counters, fields[0]) * unit
                continue
            for direction, field in zip(DIRECTIONS, fields, strict=True):
                yield (device, direction), getattr(counters, field) * unit

    return get


def _other_bytes(scene: Scene) -> Rows:
    return sorted(scene.driver.usage.others().items())


def _pressure(scene: Scene) -> Rows:
    last = scene.state.meter.last
    if last is not None and last.node.io_stall_s is not None:
        yield ("io",), last.node.io_stall_s
    if last is not None and last.node.memory_stall_s is not None:
        yield ("memory",), last.node.memory_stall_s


# -- sampling -----------------------------------------------------------------------------------


def _last_sample(scene: Scene) -> float | None:
    last = scene.state.meter.last
    return None if last is None else last.at_s


def _sampler_success(scene: Scene) -> Rows:
    state = scene.state
    last = state.meter.last
    if last is None:
        return
    counters = (last.jobs[job.id] for job in state.live if job.id in last.jobs)
    yield (
        ("job_io",),
        all(job.read_bytes is not None or job.written_bytes is not None for job in counters),
    )
    yield ("diskstats",), bool(last.devices) or not state.platform.devices
    yield ("io_pressure",), last.node.io_stall_s is not None
    yield ("memory_pressure",), last.node.memory_stall_s is not None
    yield ("meminfo",), last.node.dirty_bytes is not None
    yield ("vmstat",), last.node.refault_bytes is not None


def _silent_processes(scene: Scene) -> float:
    last = scene.state.meter.last
    counters = () if last is None else last.jobs.values()
    return len({job.silent_pid for job in counters if job.silent_pid})


# -- tiers of storage ---------------------------------------------------------------------------


def _capacity(scene: Scene) -> Rows:
    for tier in scene.state.stock.tiers:
        for disk in tier.disks:
            yield (tier.name, disk.id), disk.capacity_bytes


def _allocated(scene: Scene) -> Rows:
    stock = scene.state.stock
    promised = stock.promised_bytes()
    for tier in stock.tiers:
        for disk in tier.disks:
            yield (tier.name, disk.id), promised.get(disk.id, 0)


def _tier_jobs(scene: Scene) -> Rows:
    state = scene.state
    counts = Counter(job.tier for job in state.live if job.tier is not None)
    return (((tier.name,), counts[tier.name]) for tier in state.stock.tiers)


def _kept(scene: Scene) -> float | None:
    state = scene.state
    if not state.stock.tiers:
        return None
    jobs = (state.jobs[job_id] for job_id in state.stock.holders)
    return sum(job.scratch_kept is not None for job in jobs)


def _waiting(scene: Scene) -> float | None:
    if not scene.state.stock.tiers:
        return None
    return sum(reason.code == NO_SPACE for reason in scene.state.reasons.values())


METRICS: Final = (
    Metric("jobs", "Jobs that have not ended, by state.", _jobs, ("state",)),
    Metric(
        "longest_suspension_seconds",
        "How long the job that is suspended longest has been; 0 if none is.",
        _longest_suspension,
        ("state",),
    ),
    Metric(
        "job_bytes_total",
        "Bytes that jobs read and wrote, by their socket and the disk of their open files; "
        "several, none: not on one disk of this machine; unknown: not known.",
        _job_bytes,
        ("socket", "device", "direction"),
    ),
    Metric(
        "io_bound_bytes_per_second",
        "The configured limit on what all jobs move; absent if there is none.",
        _io_bound,
    ),
    Metric("slots", "Slots of each socket.", _slots, ("socket",)),
    Metric("slots_free", "Slots that no job holds.", _slots_free, ("socket",)),
    Metric(
        "starts_blocked",
        "1 while no job can start because journal or supervisor are unavailable, else 0.",
        lambda scene: bool(scene.state.starts_blocked),
    ),
    Metric(
        "draining",
        "1 while no job starts because the node is drained, else 0.",
        lambda scene: scene.state.drain is not None,
    ),
    Metric(
        "rules_set_aside",
        "Rules that failed and are not used: 1 for the policy, 1 for each storage tier.",
        lambda scene: len(scene.driver.controller.faults),
    ),
    Metric(
        "device_bytes_total",
        "Bytes that the device read and wrote since boot.",
        _devices(SECTOR_BYTES, "read_sectors", "written_sectors"),
        ("device", "direction"),
    ),
    Metric(
        "device_other_bytes_total",
        "Part of these, since the daemon's start, that jobs did not move.",
        _other_bytes,
        ("device", "direction"),
    ),
    Metric(
        "device_requests_total",
        "Requests that the device completed since boot.",
        _devices(1, "reads", "writes"),
        ("device", "direction"),
    ),
    Metric(
        "device_request_seconds_total",
        "Time from queueing to completion, summed over requests.",
        _devices(0.001, "read_ms", "write_ms"),
        ("device", "direction"),
    ),
    Metric(
        "device_queue_seconds_total",
        "Time with requests in flight, multiplied by their number.",
        _devices(0.001, "queue_ms"),
        ("device",),
    ),
    Metric(
        "device_busy_seconds_total",
        "Time with at least one request in flight.",
        _devices(0.001, "busy_ms"),
        ("device",),
    ),
    Metric(
        "pressure_stall_seconds_total",
        "Time in which at least one task of the machine waited for io or memory "
        "(/proc/pressure); absent if the kernel does not measure it.",
        _pressure,
        ("resource",),
    ),
    Metric(
        "last_sample_timestamp_seconds",
        "Time of the last sample, in seconds since 1970; absent before it.",
        _last_sample,
    ),
    Metric(
        "sampler_success",
        "1 if the source could be read for the last sample, else 0; job_io: of each job.",
        _sampler_success,
        ("source",),
    ),
    Metric(
        "sampling_too_slow",
        "1 while sampling takes longer than the timeslice, else 0.",
        lambda scene: bool(scene.driver.pace.problem),
    ),
    Metric(
        "silent_processes",
        "Processes of jobs that hang in execve; the I/O of their jobs is unknown.",
        _silent_processes,
    ),
    Metric(
        "supervisor_problem",
        "1 while no supervisor answers and no job can start or end, else 0.",
        lambda scene: bool(scene.supervisor_problem()),
    ),
    Metric(
        "supervisor_unprotected",
        "1 while the supervisor has no anchor (exit codes are lost if it is killed), else 0.",
        lambda scene: not scene.is_protected(),
    ),
    Metric(
        "journal_lag_seconds",
        "How long the oldest batch has waited to become durable; 0 if none waits.",
        lambda scene: scene.driver.journal.lag_s,
    ),
    Metric(
        "journal_problem",
        "1 while the journal cannot be written and submissions are refused, else 0.",
        lambda scene: bool(scene.driver.problem),
    ),
    Metric(
        "log_lines_lost_total",
        "Log lines that were dropped because standard error accepted nothing.",
        lambda scene: scene.log_lines_lost(),
    ),
    Metric(
        "tier_disk_capacity_bytes",
        "Space that jobs may use on the disk of a storage tier.",
        _capacity,
        ("tier", "disk"),
    ),
    Metric(
        "tier_disk_allocated_bytes",
        "Part of it that is promised to running jobs or kept for ended ones.",
        _allocated,
        ("tier", "disk"),
    ),
    Metric(
        "tier_jobs",
        "Running jobs that asked for space and are on the tier, with or without space there.",
        _tier_jobs,
        ("tier",),
    ),
    Metric(
        "scratch_kept_jobs",
        "Ended jobs whose space is kept, e.g. because output could not be copied.",
        _kept,
    ),
    Metric("storage_waiting_jobs", "Jobs that wait for space of a storage tier.", _waiting),
)
"""What is read, in the order in which it is shown."""


class Exporter(Collector):
    """Renders the page. What is read is read anew for each page, in the daemon's loop."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        """All metrics in Prometheus' text format, with ``process_*`` of the daemon itself."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """What is read, then what is counted."""
        driver = self._scene.driver
        yield from (metric.family(metric.get(self._scene)) for metric in METRICS)
        driver.counts.count_until(driver.timeline.now_s)
        yield from driver.counts.registry.collect()


def markdown_table() -> str:
    """All metrics as a table for people."""
    rows = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    read = ((metric.family(()), metric.labels) for metric in METRICS)
    counted = (  # each has its series from the start
        (family, tuple(label for label in family.samples[0].labels if label != "le"))
        for family in Counts().registry.collect()
    )
    for family, names in (*read, *counted):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in names)
        rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(markdown_table() + "\n")
