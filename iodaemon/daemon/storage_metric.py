"""Metrics of tiers of storage: what their disks have, and what is promised of it."""

from __future__ import annotations

from collections import Counter
from typing import Final

from iodaemon.core.allotting import NO_SPACE
from iodaemon.daemon.metric import Metric, Rows, Scene


def _capacity(scene: Scene) -> Rows:
    for tier in scene.driver.state.stock.tiers:
        for disk in tier.disks:
            yield (tier.name, disk.id), disk.capacity_bytes


def _allocated(scene: Scene) -> Rows:
    stock = scene.driver.state.stock
    promised = stock.promised_bytes()
    for tier in stock.tiers:
        for disk in tier.disks:
            yield (tier.name, disk.id), promised.get(disk.id, 0)


def _holders(scene: Scene) -> Rows:
    """Jobs that run on a tier, those included that got no space of it."""
    state = scene.driver.state
    counts = Counter(job.tier for job in state.live if job.tier is not None)
    return (((tier.name,), counts[tier.name]) for tier in state.stock.tiers)


def _kept(scene: Scene) -> Rows:
    state = scene.driver.state
    if state.stock.tiers:
        jobs = (state.jobs[job_id] for job_id in state.stock.holders)
        yield (), sum(job.scratch_kept is not None for job in jobs)


def _waiting(scene: Scene) -> Rows:
    state = scene.driver.state
    if state.stock.tiers:
        yield (), sum(reason.code == NO_SPACE for reason in state.reasons.values())


STORAGE_METRICS: Final = (
    Metric(
        "tier_disk_capacity_bytes",
        "gauge",
        ("tier", "disk"),
        "What jobs may have of the disk of a storage tier.",
        _capacity,
    ),
    Metric(
        "tier_disk_allocated_bytes",
        "gauge",
        ("tier", "disk"),
        "What is promised of it to jobs that run, or whose directories are still there.",
        _allocated,
    ),
    Metric(
        "tier_jobs",
        "gauge",
        ("tier",),
        "Jobs that asked for space and run on the tier, with space of it or without.",
        _holders,
    ),
    Metric(
        "scratch_kept_jobs",
        "gauge",
        (),
        "Ended jobs whose space is kept, because their output could not be copied for example.",
        _kept,
    ),
    Metric(
        "storage_waiting_jobs",
        "gauge",
        (),
        "Jobs that the admission looked at and that wait for space of a storage tier.",
        _waiting,
    ),
)
