"""The daemon's line to the supervisor, where that says nonsense."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from iodaemon.errors import BackendError
from iodaemon.node.supervisor_client import SupervisorClient
from iodaemon.supervisor import anchor, protocol

HELLO = protocol.encode({"hello": {"protocol": protocol.VERSION, "ledger": "1"}})


def talk(said):
    """Open a line to somebody who answers the first wish with these bytes; what arrives."""
    arrived = []
    wanted = said.count(b"\n") - 1

    async def answer(reader, writer):
        await reader.readline()
        writer.write(said)
        await reader.read()
        writer.close()

    async def play(place):
        all_there = asyncio.Event()

        def take(message):
            arrived.append(message)
            if len(arrived) == wanted:
                all_there.set()

        server = await asyncio.start_unix_server(answer, place / anchor.SOCKET)
        client = SupervisorClient(
            anchor.Config(str(place), daemon_uid=os.geteuid()),
            place / "supervisor.log",
            on_connected=lambda: None,
            on_message=take,
            on_used=lambda _: None,
            on_trouble=lambda _: None,
        )
        try:
            await client.open()
            await all_there.wait()
        finally:
            await client.hang_up()
            server.close()

    with tempfile.TemporaryDirectory() as place:
        asyncio.run(asyncio.wait_for(play(Path(place)), 20.0))
    return arrived


@pytest.mark.parametrize("said", [b"nonsense\n", b"17\n", b"\xff\n", b"[]\n"])
def test_a_supervisor_that_says_nonsense_is_told_in_one_line(said):
    with pytest.raises(BackendError, match="the supervisor refuses: what it says is no message"):
        talk(said)


def test_nonsense_among_reports_is_told_and_keeps_no_report_away():
    absent = {"key": "1.1", "state": "absent"}
    refused, report = talk(HELLO + b"nonsense\n" + protocol.encode(absent))

    assert "what it says is no message" in refused["error"]
    assert absent == report
