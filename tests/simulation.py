"""A simulated node on a virtual timeline, and what it said; C = 100 MB/s, memory 1000 MB/s."""

import math

import pytest
from builders import MB

from iodaemon.core import event as ev
from iodaemon.core.decision import Start
from iodaemon.core.job import JobId
from iodaemon.core.sample import Sample
from iodaemon.model.node import (
    Model,
    Profile,
    SimulatedDisk,
    SimulatedNode,
    default_platform,
)
from iodaemon.simulator.timeline import VirtualTimeline

DISK = SimulatedDisk(
    capacity_bytes_per_s=100.0 * MB,
    memory_bytes_per_s=1000.0 * MB,
    dirty_background_bytes=400 * MB,
    dirty_limit_bytes=800 * MB,
)


class LateTimeline(VirtualTimeline):
    """Makes every call at the next whole second: a busy machine on wall time."""

    def call_at(self, time_s, call, **options):
        return super().call_at(math.ceil(time_s), call, **options)


class Sim:
    """A node on a timeline, and what it said."""

    def __init__(self, disk=DISK, timeline=None, model=None, **options):
        self.timeline = timeline if timeline is not None else VirtualTimeline()
        self.said = []
        self.profiles = {}
        self.node = SimulatedNode(
            default_platform(),
            self.timeline,
            self.said.append,
            self.profiles.__getitem__,
            model=Model(disk=disk) if model is None else model,
            **options,
        )

    def start(self, *profiles, first=1, attempt=1):
        for number, steps in enumerate(profiles, start=first):
            made = steps if isinstance(steps, Profile) else Profile(steps=tuple(steps))
            self.profiles[JobId(number)] = made
            self.node.perform(Start(job_id=number, attempt=attempt, partition=0, slots=(number,)))
        return self

    def at(self, time_s, *decisions):
        self.timeline.run_until(time_s)
        for decision in decisions:
            self.node.perform(decision)
        return self

    def run(self):
        self.timeline.run()
        return self

    def sample(self, time_s) -> Sample:
        self.at(time_s).node.sample()
        self.timeline.run_until(time_s)
        return next(e.sample for e in reversed(self.said) if isinstance(e, ev.SampleTaken))

    def ends(self):
        """Job -> when it ended, in the order of ending."""
        return {e.job_id: e.at_s for e in self.said if isinstance(e, ev.JobExited)}

    def exits(self):
        return {e.job_id: e.exit for e in self.said if isinstance(e, ev.JobExited)}

    def kinds(self):
        return [type(e).__name__ for e in self.said]


def approx(expected):
    return pytest.approx(expected, rel=1e-9)


def sectors(expected_bytes):
    """The device counts whole sectors."""
    return pytest.approx(expected_bytes, abs=512)


def device_bytes(sample):
    return sample.devices["sim0"].written_sectors * 512
