"""What is decided about one attempt of a job, or told of it, never reaches the next one."""

import asyncio
import os

import pytest
from builders import job, platform
from sampling import Samplers

from iodaemon.core import event as ev
from iodaemon.core.decision import Kill, Start, Stop, Suspend
from iodaemon.core.job import JobState
from iodaemon.daemon.timeline import WallTimeline
from iodaemon.node.linux import LinuxNode
from iodaemon.supervisor.anchor import Config
from iodaemon.supervisor.protocol import decode


class Client:
    """A supervisor that says what the test says; remembers what it was asked."""

    problem = ""
    jobs_cgroup = None
    controls = ()

    def __init__(self):
        self.asked = []
        self.hello = {"ledger": "11"}

    def wish(self, wish, **fields):
        self.asked.append((wish, fields.get("key")))

    def send(self, line):
        self.wish(**decode(line))

    def flush(self):
        """All is sent at once."""

    async def beat(self, within_s):
        """It takes longer than that."""


def start(attempt):
    return Start(job_id=1, attempt=attempt, partition=0, slots=(0,))


FAILED = {"state": "failed", "code": "died", "problem": "gone", "is_lasting": False}
RUNNING = {"state": "running", "pid": 7, "holder": 7, "frozen": False, "started_us": None}
ENDED = {"state": "ended", "exit": {"code": 0, "signal": None}, "started_us": None}
BEGUN = [("prepare", "1.1"), ("run", "1.1")]
AGAIN = [("prepare", "1.2"), ("run", "1.2")]


def with_node(tmp_path, play):
    """Play a scene with a node; the events it posted and what it asked the supervisor."""
    posted = []

    async def scene(samplers):
        config = Config(str(tmp_path), os.geteuid(), outputs=str(tmp_path / "output"))
        node = LinuxNode(
            platform=platform(1),
            timeline=WallTimeline(asyncio.get_running_loop()),
            post=posted.append,
            launch_of=lambda _: {"command": ["true"]},
            job_of=lambda _: None,
            supervisor=config,
            state_dir=tmp_path,
        )
        node.client, node.sampler = Client(), samplers.client
        await play(node)
        for task in list(node._tasks):
            task.cancel()
        return node.client.asked

    with Samplers() as samplers:
        asked = samplers.run(scene(samplers))
    kinds = (ev.StartsBlocked,)
    return [event for event in posted if not isinstance(event, kinds)], asked


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def fail_first(node):
    node.perform(start(1))
    await settle()
    node._on_message({"key": "1.1", **FAILED})


@pytest.mark.parametrize("decision", [Stop(job_id=1), Kill(job_id=1), Suspend(job_id=1)])
def test_what_comes_after_the_end_does_not_reach_the_next_attempt(tmp_path, decision):
    async def play(node):
        await fail_first(node)
        node.perform(decision)  # the journal was slow
        node.perform(start(2))
        await settle()

    _, asked = with_node(tmp_path, play)

    assert [*BEGUN, *AGAIN] == asked


@pytest.mark.parametrize("decision", [Stop(job_id=1), Kill(job_id=1)])
def test_what_comes_while_the_next_attempt_is_prepared_does_not_reach_it(tmp_path, decision):
    async def play(node):
        await fail_first(node)
        node.prepare([start(2)])
        node.perform(decision)  # as above
        node.perform(start(2))
        await settle()
        node._on_message({"key": "1.2", **RUNNING})

    _, asked = with_node(tmp_path, play)

    assert [*BEGUN, *AGAIN] == asked


@pytest.mark.parametrize("late", [FAILED, RUNNING, ENDED, {"state": "absent"}])
def test_a_late_word_of_one_attempt_says_nothing_of_the_next(tmp_path, late):
    async def play(node):
        await fail_first(node)
        node.perform(start(2))
        await settle()
        node._on_message({"key": "1.1", **late})
        node._on_message({"error": "no", "wish": "freeze", "key": "1.1"})
        node._on_used({"1.1": {"read_bytes": 9, "written_bytes": 9, "calls": 9}})
        await settle()

    posted, asked = with_node(tmp_path, play)
    forgotten = [("forget", "1.1")] if late["state"] in ("failed", "ended") else []

    assert [*BEGUN, *AGAIN] == [each for each in asked if each not in forgotten]
    assert [(ev.StartFailed, 1)] == [(type(event), event.attempt) for event in posted]


def test_a_signal_that_waits_for_a_command_is_given_to_that_attempt_only(tmp_path):
    """A SIGTERM of what is not its command yet waits until it is."""

    async def play(node):
        node.perform(start(1))
        node.perform(Stop(job_id=1))
        await settle()
        node._on_message({"key": "1.1", **FAILED})
        node.perform(start(2))
        await settle()
        node._on_message({"key": "1.2", **RUNNING})

    posted, asked = with_node(tmp_path, play)

    assert [*BEGUN, *AGAIN] == asked
    assert [ev.StartFailed, ev.JobStarted] == [type(event) for event in posted]


def test_a_standstill_that_nobody_here_asked_for_is_no_event(tmp_path):
    """It is found when somebody asks; a person's suspend is answered all the same."""
    frozen = {"key": "1.1", **RUNNING, "frozen": True}

    async def play(node):
        node.perform(start(1))
        await settle()
        for report in ({"key": "1.1", **RUNNING}, frozen):
            node._on_message(report)
        node.perform(Suspend(job_id=1))
        for report in (frozen, {"key": "1.1", **RUNNING}):
            node._on_message(report)

    posted, _ = with_node(tmp_path, play)

    assert [ev.JobStarted, ev.JobSuspended, ev.JobResumed] == [type(event) for event in posted]


def test_the_end_of_a_job_that_the_daemon_does_not_know_yet_is_not_forgotten(tmp_path):
    async def play(node):
        ended = {"key": "1.1", **ENDED}
        node._on_message(ended)
        adopting = asyncio.create_task(
            node.adopt([job(state=JobState.RUNNING)], same_boot=True, ledger="11")
        )
        await settle()
        node._on_message(ended)
        node._on_message({"synced": 1})
        await adopting

    posted, asked = with_node(tmp_path, play)

    assert ("forget", "1.1") not in asked
    assert [0] == [event.exit.code for event in posted if isinstance(event, ev.JobExited)]
