"""What the daemon does not say to the keeper, because the keeper would hang up on it."""

import asyncio

import pytest
from builders import platform

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.keeper_command import KeeperSpec
from iodaemon.backend.linux.link import KeeperLink
from iodaemon.backend.linux.node import LinuxNode
from iodaemon.core import event as ev
from iodaemon.core.decision import Start
from iodaemon.daemon.timeline import WallTimeline
from iodaemon.errors import TooLarge

TOO_LONG = "%" * protocol.LARGEST_LINE_BYTES
HELLO = {"freezer": "none", "detail": "", "pid": 1}


class Keeper:
    """Greets, notes what it is asked, and hangs up where the real one does."""

    def __init__(self):
        self.asked = []
        self.connections = 0
        self.listens = asyncio.Event()
        self.listens.set()

    async def serve(self, reader, writer):
        self.connections += 1
        buffer = bytearray()
        while data := await reader.read(1 << 16):
            buffer += data
            try:
                messages = protocol.split_lines(buffer)
            except ValueError:
                break
            for message in messages:
                await self.listens.wait()
                self.asked.append(message["verb"])
                ok = HELLO if message["verb"] == "hello" else {}
                writer.write(protocol.encode({"id": message["id"], "ok": ok}))
        writer.close()


def with_keeper(tmp_path, play, *, shows_keeper=False):
    keeper = Keeper()
    path = tmp_path / "keeper.sock"

    async def scene():
        server = await asyncio.start_unix_server(keeper.serve, path, limit=1 << 24)
        try:
            await asyncio.wait_for(play(path, keeper) if shows_keeper else play(path), 20.0)
        finally:
            server.close()

    asyncio.run(scene())
    return keeper


def test_what_the_keeper_would_hang_up_on_is_never_sent(tmp_path):
    async def play(path):
        link = KeeperLink(
            KeeperSpec(state=tmp_path, socket=path, grace_s=60.0, is_service=True),
            on_connected=lambda: None,
            on_trouble=lambda _: None,
        )
        await link.open()
        with pytest.raises(TooLarge, match="can be passed on; put data into a file"):
            await link.ask("start", job=1, attempt=1, launch={"stdout": TOO_LONG})
        await link.ask("thaw", job=2, attempt=1)
        await link.close(leave=False)

    keeper = with_keeper(tmp_path, play)

    assert ["hello", "thaw"] == keeper.asked
    assert 1 == keeper.connections


def test_a_job_that_cannot_be_passed_on_fails_and_no_other_waits_for_it(tmp_path):
    posted = []
    told = asyncio.Event()

    def post(event):
        posted.append(event)
        told.set()

    async def play(path):
        node = LinuxNode(
            platform=platform(1),
            timeline=WallTimeline(asyncio.get_running_loop()),
            post=post,
            launch_of=lambda _: {"cpus": list(range(2_000_000))},
            keeper=KeeperSpec(state=tmp_path, socket=path, grace_s=60.0, is_service=True),
        )
        await node.open()
        node.perform(Start(job_id=7, attempt=1, partition=0, slots=(0,)))
        await told.wait()
        await node.close()

    with_keeper(tmp_path, play)
    [event] = posted

    assert ev.StartFailed is type(event)
    assert (7, 126) == (event.job_id, event.exit_code)


def test_the_silence_of_a_keeper_is_told_until_it_answers_and_nothing_asked_is_lost(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("iodaemon.backend.linux.link._LOOK_S", 0.05)
    troubles, told, agreed = [], asyncio.Event(), asyncio.Event()

    async def play(path, keeper):
        link = KeeperLink(
            KeeperSpec(state=tmp_path, socket=path, grace_s=0.3, is_service=True),
            on_connected=agreed.set,
            on_trouble=lambda problem: (troubles.append(problem), told.set()),
        )
        await link.open()
        keeper.listens.clear()
        asking = asyncio.ensure_future(link.ask("thaw", job=2, attempt=1))
        await told.wait()
        was_pending = not asking.done()
        keeper.listens.set()
        await asking
        await agreed.wait()
        assert was_pending
        assert "" == link.problem
        await link.close(leave=False)

    keeper = with_keeper(tmp_path, play, shows_keeper=True)

    assert "the keeper (pid 1) " in troubles[0]
    assert "" == troubles[-1]
    assert 1 == keeper.asked.count("thaw")
