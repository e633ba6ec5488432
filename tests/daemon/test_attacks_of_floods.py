"""One user's flood of requests beside another user's few."""

import asyncio
import json
import logging
import os
import subprocess
from contextlib import ExitStack

import pytest
from aiohttp.http_exceptions import BadHttpMessage
from served import ANOTHER, NOBODY, PYTHON, ROOT_ONLY

from iodaemon.daemon import telltale
from iodaemon.daemon.http.access import AT_ONCE, FairQueue, give_place
from iodaemon.daemon.telltale import MalformedRequests

pytestmark = pytest.mark.node

FLOOD = 250
"""Connections, each with a request on its way at any time: almost as many as one user may have."""


@pytest.fixture
def served(for_all):
    """Its timeslice is so long that nothing changes by itself."""
    return for_all(regulation={"timeslice": "60 s"})


ATTACK = """
import mmap, os, selectors, signal, socket, struct, sys, time
path, target, flood, flooder, other = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
shared = mmap.mmap(-1, 8)

def connect():
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    return one

def send_flood():
    ask = f"GET {target} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode()
    waiting, answered = selectors.DefaultSelector(), 0
    for _ in range(flood):
        one = connect()
        one.sendall(ask)
        waiting.register(one, selectors.EVENT_READ, bytearray())
    while True:
        for key, _ in waiting.select():
            key.data.extend(key.fileobj.recv(1 << 18))
            head, found, body = bytes(key.data).partition(b"\\r\\n\\r\\n")
            if not found:
                continue
            length = int(head.lower().partition(b"content-length:")[2].split(b"\\r\\n")[0])
            if len(body) >= length:
                answered += 1
                shared[:8] = struct.pack("q", answered)
                key.data.clear()
                key.fileobj.sendall(ask)

def answers():
    return struct.unpack("q", shared[:8])[0]

child = os.fork()
if not child:
    os.close(1)
    os.setgid(flooder)
    os.setuid(flooder)
    send_flood()
os.setgid(other)
os.setuid(other)
until = time.monotonic() + 60
while answers() < 2 * flood and time.monotonic() < until:
    time.sleep(0.01)
for _ in range(20):
    before = answers()
    with connect() as one:
        one.sendall(b"GET /v1/mode HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        answer = b""
        while piece := one.recv(65536):
            answer += piece
    print(int(answer.split()[1]), answers() - before, flush=True)
"""


@ROOT_ONLY
def test_a_flood_of_requests_delays_another_user_by_a_few_of_them(served):
    """The count is of the flood's answers while one request of the other user is on its way.

    The least of twenty is looked at: in the others this test itself may have been the slow one.
    """
    words = [ATTACK, served.socket_path, "/v1/jobs", str(FLOOD), str(NOBODY), str(ANOTHER)]
    attack = subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", *words],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = attack.communicate(timeout=120)
    finally:
        os.killpg(attack.pid, 9)
    rows = [tuple(map(int, line.split())) for line in told.splitlines()]

    assert [200] * 20 == [status for status, _ in rows]
    assert min(flooded for _, flooded in rows) < FLOOD / 2


def test_node_and_metrics_are_computed_once_until_something_changes(served):
    pages = {served.ask("GET", "/metrics").body for _ in range(30)}
    assert {200} == {served.ask("GET", "/v1/node").status for _ in range(30)}
    computed = served.node_reports
    served.running()
    slots = served.ask("GET", "/v1/node").json["sockets"]

    assert (1, 1) == (len(pages), computed)
    assert {1} == {job for socket in slots for job in socket["jobs"]}
    assert pages != {served.ask("GET", "/metrics").body}


def test_a_user_who_waits_for_many_ends_is_still_answered(served):
    job_id = served.running()
    body = json.dumps({"ids": [job_id], "timeout_s": 20})
    long = (
        f"POST /v1/wait HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}",
        f"GET /v1/jobs/{job_id}/logs?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /v1/wait HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",  # its body never comes
        "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
    )
    with ExitStack() as opened:
        for request in long * 2 * AT_ONCE:
            opened.enter_context(served.raw()).sendall(request.encode())

        assert 200 == served.ask("GET", "/v1/jobs").status


def test_malformed_requests_are_one_line_in_the_log_at_most(served, caplog):
    two_lengths = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"
    with caplog.at_level(logging.INFO):
        assert {400} == {served.exchange(two_lengths).status for _ in range(100)}

    assert [] == [line for line in caplog.messages if "Error" in line]
    assert [] == [each for each in caplog.records if each.exc_info]
    assert sum("event=malformed_requests" in line for line in caplog.messages) <= 1


def test_the_next_line_about_malformed_requests_counts_those_between():
    now_s = 100.0
    rule = MalformedRequests(lambda: now_s)

    def told():
        error = BadHttpMessage("bad\nline")
        info = (type(error), error, None)
        record = logging.LogRecord("x", logging.ERROR, "", 0, "Error from %s", ("",), info)
        return record.getMessage() if rule.filter(record) else None

    first, *others = [told() for _ in range(10)]
    now_s += telltale.MALFORMED_EVERY_S
    later = told()

    assert first is not None
    assert [None] * 9 == others
    assert "count=10" in later
    assert "\n" not in later
    fault = logging.LogRecord("x", logging.ERROR, "", 0, "fault", (), (OSError, OSError(), None))
    assert rule.filter(fault)
    assert fault.exc_info is not None


# -- the queue ---------------------------------------------------------------------------------


def test_a_request_that_is_cancelled_while_it_waits_loses_no_place():
    async def scene():
        queue, gate = FairQueue(), asyncio.Event()

        async def hold():
            async with queue.place(7):
                await gate.wait()

        held = [asyncio.create_task(hold()) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        gate.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.gather(*held, *waiting, return_exceptions=True)
        async with asyncio.timeout(10.0):
            for _ in range(3 * AT_ONCE):
                await hold()

    asyncio.run(scene())


def test_a_request_that_waits_for_something_else_gives_its_place_on():
    async def scene():
        queue, gate = FairQueue(), asyncio.Event()

        async def wait():
            async with queue.place(7):
                give_place()
                await gate.wait()

        waiting = [asyncio.create_task(wait()) for _ in range(10 * AT_ONCE)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10.0), queue.place(7):
            gate.set()
        await asyncio.gather(*waiting)

    asyncio.run(scene())
