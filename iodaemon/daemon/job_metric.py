"""Metrics of policy, jobs and sockets: read from the state, the rules and the tally."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final, get_args

from iodaemon.core.bandwidth import Bandwidth
from iodaemon.core.decision import TrialVerdict
from iodaemon.core.job import SUSPENDED, JobState
from iodaemon.core.platform import PartitionId
from iodaemon.core.state import CONTENTION
from iodaemon.daemon.aggregate import PLACES
from iodaemon.daemon.metric import Histograms, Metric, Rows, Scene
from iodaemon.registry import rule_name

# -- policy -------------------------------------------------------------------------------------


def _policy(scene: Scene) -> Rows:
    controller = scene.driver.controller
    regulation = rule_name(controller.rules.regulation)
    yield (controller.rules.name, regulation, str(controller.regulator.mode)), 1.0


def _rules_set_aside(scene: Scene) -> Rows:
    yield (), len(scene.driver.controller.faults)


def _rule_faults(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.rule_faults)


def _io_bound(scene: Scene) -> Rows:
    rule = scene.driver.controller.rules.regulation
    bound = getattr(rule, "io_bound_bytes_per_s", None)  # rules need not have one
    if bound is not None:
        yield (), bound


# -- jobs -------------------------------------------------------------------------------------


def _jobs(scene: Scene) -> Rows:
    for state, count in scene.driver.state.by_state().items():
        if not state.is_final:
            yield (str(state),), count


def _finished(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.finished)


def _decisions(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.decisions)


def _suspensions(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.suspended.counts)


def _suspended_s(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.suspended.seconds(scene.driver.timeline.now_s))


def _shadow_suspensions(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.shadow.counts)


def _shadow_s(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.shadow.seconds(scene.driver.timeline.now_s))


def _longest_suspension(scene: Scene) -> Rows:
    now_s = scene.driver.timeline.now_s
    for state in sorted(SUSPENDED):
        since_s = [job.since_s for job in scene.driver.state.live if job.state is state]
        yield (str(state),), max(0.0, now_s - min(since_s, default=now_s))


def _limits(scene: Scene) -> Rows:
    for limit in scene.driver.state.limits:
        if limit.limit is not None:
            yield (limit.resource,), limit.limit


def _contending(scene: Scene) -> Rows:
    return (((limit.resource,), limit.contending) for limit in scene.driver.state.limits)


def _trials(scene: Scene) -> Rows:
    """Every series is there from the start, as of ``_moved``."""
    names = ["memory", *(device.id for device in scene.driver.state.platform.devices)]
    counts = dict.fromkeys(product(names, get_args(TrialVerdict)), 0)
    return sorted((counts | scene.driver.tally.trials).items())


def _limit_waiting(scene: Scene) -> Rows:
    yield (), scene.driver.state.count_waiting(CONTENTION)


def _starts_blocked(scene: Scene) -> Rows:
    yield (), bool(scene.driver.state.starts_blocked)


def _counted(counts: Mapping[str, float]) -> Rows:
    return (((name,), count) for name, count in sorted(counts.items()))


def _expectations(scene: Scene) -> Rows:
    return _counted(scene.driver.tally.expectations)


def _hindsight(scene: Scene) -> Histograms:
    return {(source,): each for source, each in scene.driver.tally.hindsight.items()}


def _moved(scene: Scene) -> Rows:
    """Every series is there from the start: rate() does not see how a new one began."""
    platform = scene.driver.state.platform
    sockets = [str(partition.id) for partition in platform.partitions]
    places = [*(device.id for device in platform.devices), *PLACES]
    moved = dict.fromkeys(product(sockets, places, ("read", "write")), 0)
    return sorted((moved | scene.driver.book.moved).items())


# -- sockets ------------------------------------------------------------------------------------


def _slots(scene: Scene) -> Rows:
    for partition in scene.driver.state.platform.partitions:
        yield (str(partition.id),), partition.size


def _slots_free(scene: Scene) -> Rows:
    for partition in scene.driver.state.platform.partitions:
        yield (str(partition.id),), scene.driver.state.slots_idle(partition.id)


def _job_bandwidth(scene: Scene) -> Rows:
    for partition_id, rates in _rates(scene):
        known = [rate for rate in rates if rate is not None]
        socket = str(partition_id)
        yield (socket, "read"), sum(rate.read_bytes_per_s for rate in known)
        yield (socket, "write"), sum(rate.written_bytes_per_s for rate in known)


def _jobs_unknown(scene: Scene) -> Rows:
    for partition_id, rates in _rates(scene):
        yield (str(partition_id),), sum(rate is None for rate in rates)


def _rates(scene: Scene) -> Iterator[tuple[PartitionId, list[Bandwidth | None]]]:
    """Each socket with the rates of its jobs that have been started; None: unknown."""
    state = scene.driver.state
    started = [job for job in state.live if job.state is not JobState.STARTING]
    for partition in state.platform.partitions:
        here = [job for job in started if job.partition == partition.id]
        yield partition.id, [state.meter.bandwidth(job.id) for job in here]


JOB_METRICS: Final = (
    Metric(
        "policy_info",
        "gauge",
        ("policy", "regulation", "mode"),
        "The policy in force, its regulation rule, and whether that acts (on), only decides "
        "(shadow) or rests (off); always 1.",
        _policy,
    ),
    Metric(
        "rules_set_aside",
        "gauge",
        (),
        "1 while policy none is in force because a rule of the configured one failed, and 1 more "
        "for each storage tier whose rule failed.",
        _rules_set_aside,
    ),
    Metric(
        "rule_failures_total",
        "counter",
        ("kind",),
        "Rules that were set aside because they failed.",
        _rule_faults,
    ),
    Metric(
        "io_bound_bytes_per_second",
        "gauge",
        (),
        "The operator's cap on what all jobs move together; absent where there is none.",
        _io_bound,
    ),
    Metric("jobs", "gauge", ("state",), "Jobs that have not ended, by state.", _jobs),
    Metric("jobs_finished_total", "counter", ("state",), "Ended jobs, by end state.", _finished),
    Metric(
        "decisions_total",
        "counter",
        ("decision",),
        "What the daemon decided, by kind, whoever asked for it.",
        _decisions,
    ),
    Metric(
        "job_suspensions_total",
        "counter",
        ("reason",),
        "How often jobs were brought to a standstill, by the code of the reason.",
        _suspensions,
    ),
    Metric(
        "suspended_seconds_total",
        "counter",
        ("reason",),
        "How long jobs stood still, summed over jobs, by the code of the reason.",
        _suspended_s,
    ),
    Metric(
        "shadow_suspensions_total",
        "counter",
        ("reason",),
        "How often regulation in shadow would have suspended a job, by the code of the reason.",
        _shadow_suspensions,
    ),
    Metric(
        "shadow_suspended_seconds_total",
        "counter",
        ("reason",),
        "How long jobs would have stood still for regulation in shadow, summed over jobs, by the "
        "code of the reason.",
        _shadow_s,
    ),
    Metric(
        "job_bytes_total",
        "counter",
        ("socket", "device", "direction"),
        "What jobs read and wrote until they ended, as far as it is known, by their socket and the "
        "disk that their open files lie on; several: on more than one, none: on no disk of this "
        "machine, unknown: not known.",
        _moved,
    ),
    Metric(
        "job_io_expectations_total",
        "counter",
        ("source",),
        "Started jobs, by where it was known from what their I/O would be.",
        _expectations,
    ),
    Metric(
        "job_io_expected_ratio",
        "histogram",
        ("source",),
        "Of ended jobs whose I/O was foretold, the expected mean rate over the true one, 1 kB/s "
        "added to both; by where it was known from.",
        _hindsight,
    ),
    Metric(
        "longest_suspension_seconds",
        "gauge",
        ("state",),
        "For how long the job that has stood still longest does so in a row; 0: none does.",
        _longest_suspension,
    ),
    Metric(
        "limit_jobs",
        "gauge",
        ("resource",),
        "How many jobs should contend for memory or a device at once, as regulation found out; "
        "absent where no limit is known to be needed.",
        _limits,
    ),
    Metric(
        "contending_jobs",
        "gauge",
        ("resource",),
        "Jobs that contend for memory or a device now; absent where regulation does not look.",
        _contending,
    ),
    Metric(
        "limit_waiting_jobs",
        "gauge",
        (),
        "Jobs that wait because enough others contend for a resource (reason Contention).",
        _limit_waiting,
    ),
    Metric(
        "trials_total",
        "counter",
        ("resource", "verdict"),
        "Steps of finding out how many jobs should contend: another number began to be tried, was "
        "kept or undone, or evidence said so (learned).",
        _trials,
    ),
    Metric(
        "starts_blocked",
        "gauge",
        (),
        "1 while no job can start because journal or backend are unavailable, else 0.",
        _starts_blocked,
    ),
    Metric("slots", "gauge", ("socket",), "Slots of each socket.", _slots),
    Metric("slots_free", "gauge", ("socket",), "Slots that no job holds.", _slots_free),
    Metric(
        "job_bandwidth_bytes_per_second",
        "gauge",
        ("socket", "direction"),
        "What the jobs of a socket moved in the last timeslice, as far as it is known.",
        _job_bandwidth,
    ),
    Metric(
        "jobs_io_unknown",
        "gauge",
        ("socket",),
        "Started jobs whose bandwidth is not known, just begun or unreadable; not in the sum.",
        _jobs_unknown,
    ),
)
