"""Metrics of devices, of the measuring itself, of the journal and of the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import iodaemon
from iodaemon.core.bandwidth import DeviceLoad
from iodaemon.core.job import Job
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import Sample
from iodaemon.daemon.metric import Metric, Rows, Scene

# -- devices ------------------------------------------------------------------------------------


def _device_read(scene: Scene) -> Rows:
    return (((device,), load.read_bytes_per_s) for device, load in _loads(scene))


def _device_written(scene: Scene) -> Rows:
    return (((device,), load.written_bytes_per_s) for device, load in _loads(scene))


def _device_wait(scene: Scene) -> Rows:
    for device, load in _loads(scene):
        for direction, wait_s in (("read", load.read_await_s), ("write", load.write_await_s)):
            if wait_s is not None:
                yield (device, direction), wait_s


def _device_queue(scene: Scene) -> Rows:
    return (((device,), load.queue_length) for device, load in _loads(scene))


def _device_busy(scene: Scene) -> Rows:
    return (((device,), load.busy_ratio) for device, load in _loads(scene))


def _device_bytes(scene: Scene) -> Rows:
    for device, totals in scene.driver.device_book.totals():
        yield from (((device, way), size) for way, size in totals.bytes.items())


def _device_other_bytes(scene: Scene) -> Rows:
    for device, totals in scene.driver.device_book.totals():
        yield from (((device, way), size) for way, size in totals.other_bytes.items())


def _device_requests(scene: Scene) -> Rows:
    for device, totals in scene.driver.device_book.totals():
        yield from (((device, way), count) for way, count in totals.requests.items())


def _device_request_s(scene: Scene) -> Rows:
    for device, totals in scene.driver.device_book.totals():
        yield from (((device, way), time_s) for way, time_s in totals.request_s.items())


def _device_queue_s(scene: Scene) -> Rows:
    return (((device,), totals.queue_s) for device, totals in scene.driver.device_book.totals())


def _device_busy_s(scene: Scene) -> Rows:
    return (((device,), totals.busy_s) for device, totals in scene.driver.device_book.totals())


def _pressure(scene: Scene) -> Rows:
    last = scene.driver.state.meter.last
    if last is None:
        return
    for resource, stall_s in (("io", last.node.io_stall_s), ("memory", last.node.memory_stall_s)):
        if stall_s is not None:
            yield (resource,), stall_s


def _refaults(scene: Scene) -> Rows:
    last = scene.driver.state.meter.last
    if last is not None and last.node.refault_bytes is not None:
        yield (), last.node.refault_bytes


def _loads(scene: Scene) -> Sequence[tuple[DeviceId, DeviceLoad]]:
    return sorted(scene.driver.state.meter.devices.items())


# -- sampling -----------------------------------------------------------------------------------


def _last_sample(scene: Scene) -> Rows:
    last = scene.driver.state.meter.last
    if last is not None:
        yield (), last.at_s


def _sampler_success(scene: Scene) -> Rows:
    state = scene.driver.state
    if state.meter.last is None:
        return
    yield ("job_io",), _all_jobs_read(state.meter.last, list(state.live))
    yield ("diskstats",), bool(state.meter.last.devices) or not state.platform.devices
    node = state.meter.last.node
    yield ("io_pressure",), node.io_stall_s is not None
    yield ("memory_pressure",), node.memory_stall_s is not None
    yield ("meminfo",), node.dirty_bytes is not None
    yield ("vmstat",), node.refault_bytes is not None


def _silent_processes(scene: Scene) -> Rows:
    last = scene.driver.state.meter.last
    counters = () if last is None else last.jobs.values()
    yield (), len({job.silent_pid for job in counters if job.silent_pid})


def _all_jobs_read(last: Sample, live: Sequence[Job]) -> bool:
    counters = [last.jobs[job.id] for job in live if job.id in last.jobs]
    return all(job.read_bytes is not None or job.written_bytes is not None for job in counters)


# -- journal, daemon ----------------------------------------------------------------------------


def _journal_lag(scene: Scene) -> Rows:
    yield (), scene.driver.journal.lag_s


def _journal_queued(scene: Scene) -> Rows:
    yield (), scene.driver.journal.queued


def _journal_problem(scene: Scene) -> Rows:
    yield (), bool(scene.driver.problem)


def _journal_failures(scene: Scene) -> Rows:
    yield (), scene.driver.tally.journal_failures


def _draining(scene: Scene) -> Rows:
    yield (), scene.driver.state.drain is not None


def _controls(scene: Scene) -> Rows:
    return (((name,), is_there) for name, is_there in scene.controls().items())


def _build(_: Scene) -> Rows:
    yield (iodaemon.__version__,), 1.0


NODE_METRICS: Final = (
    Metric("build_info", "gauge", ("version",), "The daemon that answers; always 1.", _build),
    Metric(
        "draining",
        "gauge",
        (),
        "1 while nothing starts because the node is drained, else 0.",
        _draining,
    ),
    Metric(
        "device_bytes_total",
        "counter",
        ("device", "direction"),
        "What the device moved since the machine was started, whoever asked for it.",
        _device_bytes,
    ),
    Metric(
        "device_other_bytes_total",
        "counter",
        ("device", "direction"),
        "Of that, since the daemon was started, what jobs did not move.",
        _device_other_bytes,
    ),
    Metric(
        "device_requests_total",
        "counter",
        ("device", "direction"),
        "Requests that the device completed since the machine was started.",
        _device_requests,
    ),
    Metric(
        "device_request_seconds_total",
        "counter",
        ("device", "direction"),
        "Time from queueing to completion, summed over these requests.",
        _device_request_s,
    ),
    Metric(
        "device_queue_seconds_total",
        "counter",
        ("device",),
        "Time with requests in flight, times their number.",
        _device_queue_s,
    ),
    Metric(
        "device_busy_seconds_total",
        "counter",
        ("device",),
        "Time with a request in flight.",
        _device_busy_s,
    ),
    Metric(
        "pressure_stall_seconds_total",
        "counter",
        ("resource",),
        "Time in which at least one task of the machine waited for io or memory "
        "(/proc/pressure); absent where the kernel does not say.",
        _pressure,
    ),
    Metric(
        "refault_bytes_total",
        "counter",
        (),
        "What the machine read again shortly after it had given it up, page cache and swap "
        "(/proc/vmstat); absent where the kernel does not say.",
        _refaults,
    ),
    Metric(
        "device_read_bytes_per_second",
        "gauge",
        ("device",),
        "What the device read in the last timeslice, whoever asked for it.",
        _device_read,
    ),
    Metric(
        "device_written_bytes_per_second",
        "gauge",
        ("device",),
        "What the device wrote in the last timeslice, whoever asked for it.",
        _device_written,
    ),
    Metric(
        "device_wait_seconds",
        "gauge",
        ("device", "direction"),
        "Mean time of a request from queueing to completion in the last timeslice (r_await, "
        "w_await); absent where none completed.",
        _device_wait,
    ),
    Metric(
        "device_queue_length",
        "gauge",
        ("device",),
        "Mean number of requests in flight in the last timeslice (aqu-sz).",
        _device_queue,
    ),
    Metric(
        "device_busy_ratio",
        "gauge",
        ("device",),
        "Share of the last timeslice with a request in flight, at most 1 (%util).",
        _device_busy,
    ),
    Metric(
        "last_sample_timestamp_seconds",
        "gauge",
        (),
        "When the counters were last read, in seconds since 1970; absent before the first time.",
        _last_sample,
    ),
    Metric(
        "samples_skipped_total",
        "counter",
        (),
        "Timeslices without a sample because the last reading was still under way.",
        lambda scene: [((), scene.samples_skipped())],
    ),
    Metric(
        "sampler_success",
        "gauge",
        ("source",),
        "1 where the source could be read for the last sample, else 0; job_io: for every job.",
        _sampler_success,
    ),
    Metric(
        "silent_processes",
        "gauge",
        (),
        "Processes of jobs that do not answer (they hang in execve), one a job: its I/O is not "
        "known.",
        _silent_processes,
    ),
    Metric(
        "job_control",
        "gauge",
        ("control",),
        "1 where the jobs' cgroups have it, else 0: cpuset (a job stays on its socket, but by a "
        "scope of its user's own systemd), io "
        "(io.stat), memory (--mem is a limit), pids (max_processes is one), pressure.",
        _controls,
    ),
    Metric(
        "sampling_duration_seconds",
        "histogram",
        (),
        "From asking for a sample to having it.",
        lambda scene: scene.driver.pace.durations,
    ),
    Metric(
        "sampling_too_slow",
        "gauge",
        (),
        "1 while readings take longer than the timeslice, one after the other, else 0.",
        lambda scene: [((), bool(scene.driver.pace.problem))],
    ),
    Metric(
        "step_duration_seconds",
        "histogram",
        (),
        "What the controller takes to apply the events of one instant and decide.",
        lambda scene: scene.driver.tally.step,
    ),
    Metric(
        "journal_lag_seconds",
        "gauge",
        (),
        "How long the oldest batch has waited to become durable; 0: none waits.",
        _journal_lag,
    ),
    Metric("journal_queued", "gauge", (), "Batches that are not durable yet.", _journal_queued),
    Metric(
        "supervisor_problem",
        "gauge",
        (),
        "1 while no supervisor answers, else 0: no job can be started, suspended, resumed or "
        "ended.",
        lambda scene: [((), bool(scene.supervisor_problem()))],
    ),
    Metric(
        "supervisor_unprotected",
        "gauge",
        (),
        "1 while the supervisor has no anchor, else 0: if it is killed, exit codes are lost.",
        lambda scene: [((), not scene.is_protected())],
    ),
    Metric(
        "journal_problem",
        "gauge",
        (),
        "1 while the journal cannot be written and submissions are refused, else 0.",
        _journal_problem,
    ),
    Metric(
        "journal_failures_total",
        "counter",
        (),
        "Batches that the journal could not write; what they held is tried again.",
        _journal_failures,
    ),
    Metric(
        "log_lines_lost_total",
        "counter",
        (),
        "Lines of the log that could not be written: standard error took nothing for too long.",
        lambda scene: [((), scene.log_lines_lost())],
    ),
)
