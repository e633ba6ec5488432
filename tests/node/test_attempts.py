"""What is decided about one attempt of a job never reaches the next one."""

import asyncio

import pytest
from builders import platform

from iodaemon.backend.linux.keeper_command import KeeperSpec
from iodaemon.backend.linux.node import LinuxNode
from iodaemon.core import event as ev
from iodaemon.core.decision import Kill, Start, Stop
from iodaemon.daemon.timeline import WallTimeline


class SlowLink:
    """A keeper that answers each request when the test says so; remembers what it was asked."""

    problem = ""

    def __init__(self):
        self.asked = []
        self.answers = asyncio.Queue()

    async def ask(self, verb, **fields):
        self.asked.append((verb, fields["attempt"], fields.get("signal")))
        return await self.answers.get()


def start(attempt):
    return Start(job_id=1, attempt=attempt, partition=0, slots=(0,))


ENDED = {"status": {"ended_s": 1.0, "started_s": 1.0, "never_ran": "gone", "exit_code": 127}}


def with_node(tmp_path, play):
    """Play a scene with a node; the events it posted and what it asked the keeper."""
    posted = []

    async def scene():
        node = LinuxNode(
            platform=platform(1),
            timeline=WallTimeline(asyncio.get_running_loop()),
            post=posted.append,
            launch_of=lambda _: {},
            keeper=KeeperSpec(state=tmp_path, socket=tmp_path / "keeper.sock", grace_s=1.0),
        )
        node.link = SlowLink()
        await play(node)
        for task in list(node._tasks):
            task.cancel()
        return node.link.asked

    return posted, asyncio.run(scene())


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("decision", [Stop(job_id=1), Kill(job_id=1)])
def test_a_signal_that_comes_after_the_end_does_not_reach_the_next_attempt(tmp_path, decision):
    async def play(node):
        node.perform(start(1))
        await settle()
        node.link.answers.put_nowait(ENDED)
        await settle()
        node.perform(decision)  # the journal was slow
        node.perform(start(2))
        await settle()

    _, asked = with_node(tmp_path, play)

    assert asked == [("start", 1, None), ("start", 2, None)]


def test_the_answer_to_a_signal_says_nothing_about_the_next_attempt(tmp_path):
    async def play(node):
        node.perform(start(1))
        node.perform(Stop(job_id=1))
        await settle()
        node.link.answers.put_nowait(ENDED)
        await settle()
        node.perform(start(2))
        await settle()
        node.link.answers.put_nowait({"signalled": 1})
        await settle()

    posted, asked = with_node(tmp_path, play)

    assert asked == [("start", 1, None), ("kill", 1, 15), ("start", 2, None)]
    assert [ev.StartFailed] == [type(event) for event in posted]
