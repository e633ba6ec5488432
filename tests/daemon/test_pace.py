"""A timeslice shorter than a reading takes is told once, and its instants are skipped."""

import asyncio

import pytest
from builders import platform

from iodaemon.core.sample import Sample
from iodaemon.daemon.metrics.counts import SLOW_READINGS, Counts, Pace
from iodaemon.node.linux import LinuxNode
from iodaemon.simulator.timeline import VirtualTimeline
from iodaemon.supervisor import anchor

PROBLEM = (
    "reading the counters takes 1.4 s, longer than the timeslice of 1 s; "
    'write timeslice = "3 s" under [regulation]'
)


class TimedPace(Pace):
    """A pace over readings that took so long, by a clock of its own."""

    def __init__(self):
        self.now_s = 0.0
        self.counts = Counts()
        super().__init__(self.counts.sampling, lambda: self.now_s)

    def read(self, *durations_s):
        for duration_s in durations_s:
            self.begin()
            self.now_s += duration_s
            self.end(1.0)


def test_slow_readings_one_after_the_other_are_said_once_with_what_to_do(caplog):
    pace, hiccup = TimedPace(), [5.0] * (SLOW_READINGS - 1)
    pace.read(0.001, 1.0, 0.9, *hiccup, 0.1, *hiccup, 0.1)
    assert ("", []) == (pace.problem, caplog.messages)

    pace.read(*[1.4] * 9)
    report = {"timeslice_s": 1.0, "last_s": pytest.approx(1.4), "skipped": 7, "problem": PROBLEM}
    assert report == pace.report(7)
    pace.read(0.1)
    assert "" == pace.problem
    pace.read(1.4, 1.4, 1.4)
    assert PROBLEM == pace.problem
    assert [f'event=sampling_too_slow text="{PROBLEM}"'] == caplog.messages


def test_asking_again_before_the_answer_does_not_make_it_shorter():
    pace = TimedPace()
    pace.begin()
    pace.now_s += 2.0
    pace.read(1.0)
    pace.end(1.0)

    names = [f"iodaemon_sampling_duration_seconds_{part}" for part in ("count", "sum")]
    assert [1.0, 3.0] == [pace.counts.registry.get_sample_value(name) for name in names]


class StuckReader:
    """Reads when it is let; has the interface of the client as far as sampling uses it."""

    def __init__(self):
        self.may_read = asyncio.Event()
        self.readings = 0

    async def read(self, at_s):
        self.readings += 1
        await self.may_read.wait()
        return Sample(at_s=at_s)


def test_instants_that_come_during_a_reading_are_skipped_and_not_queued_up(tmp_path):
    async def scenario():
        events = []
        node = LinuxNode(
            platform=platform(1),
            timeline=VirtualTimeline(),
            post=events.append,
            launch_of=lambda _: {},
            job_of=lambda _: None,
            supervisor=anchor.Config(
                runtime=str(tmp_path), daemon_uid=0, outputs=str(tmp_path / "output")
            ),
            state_dir=tmp_path,
        )
        real, node.sampler = node.sampler, StuckReader()
        for _ in range(5):
            node.sample()
            await asyncio.sleep(0)
        assert (1, 4, 0) == (node.sampler.readings, node.samples_skipped, len(events))

        node.sampler.may_read.set()
        await node._reading
        assert 1 == len(events)
        node.sample()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert (2, 4) == (node.sampler.readings, node.samples_skipped)
        node.sampler = real
        real.close()

    asyncio.run(scenario())
