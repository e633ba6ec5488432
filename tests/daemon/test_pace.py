"""A timeslice shorter than a reading takes: said once, skipped instants, regulation goes on."""

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


class Clock:
    """Stands until it is pushed on."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def read(pace, clock, *durations_s, timeslice_s=1.0):
    for duration_s in durations_s:
        pace.begin()
        clock.now_s += duration_s
        pace.end(timeslice_s)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock):
    return Pace(Counts().sampling, clock)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records]


def test_readings_within_the_timeslice_are_no_problem(pace, clock, caplog):
    read(pace, clock, 0.001, 1.0, 0.9)
    read(pace, clock, *[5.0] * (SLOW_READINGS - 1), 0.1, *[5.0] * (SLOW_READINGS - 1))

    assert ("", []) == (pace.problem, warnings(caplog))


def test_slow_readings_one_after_the_other_are_said_once_with_what_to_do(pace, clock, caplog):
    read(pace, clock, *[1.4] * 9)

    assert PROBLEM == pace.problem
    assert [f'event=sampling_too_slow text="{PROBLEM}"'] == warnings(caplog)


def test_asking_again_before_the_answer_does_not_make_it_shorter(clock):
    counts = Counts()
    pace = Pace(counts.sampling, clock)
    pace.begin()
    clock.now_s += 2.0
    read(pace, clock, 1.0)
    pace.end(1.0)

    names = [f"iodaemon_sampling_duration_seconds_{part}" for part in ("count", "sum")]
    assert [1.0, 3.0] == [counts.registry.get_sample_value(name) for name in names]


def test_when_readings_are_quick_again_it_is_no_problem_any_more_and_not_said_again(
    pace, clock, caplog
):
    read(pace, clock, 1.4, 1.4, 1.4, 0.1)
    assert "" == pace.problem
    read(pace, clock, 1.4, 1.4, 1.4)

    assert (PROBLEM, 1) == (pace.problem, len(warnings(caplog)))


def test_the_node_report_has_it(pace, clock):
    read(pace, clock, 1.4, 1.4, 1.4)

    assert {"timeslice_s": 1.0, "last_s": 1.4, "skipped": 7, "problem": PROBLEM} == {
        key: pytest.approx(value) if isinstance(value, float) else value
        for key, value in pace.report(7).items()
    }


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
