"""One user who is many: the numbers of a user namespace, which have no account."""

import asyncio
import socket
import struct
import subprocess
import threading

import pytest
from served import NOBODY, PYTHON, ROOT_ONLY, as_user

from iodaemon.daemon import account
from iodaemon.daemon.account import STRANGERS, Accounts
from iodaemon.daemon.http import access
from iodaemon.daemon.http.access import Front
from iodaemon.node.name_service import Lookups

NUMBER = 100_001
"""As subuid(5) has them."""


@ROOT_ONLY
def test_a_number_without_an_account_submits_and_hints_nothing(for_all):
    served = for_all()
    for target, body, verb in (
        ("/v1/jobs", {"jobs": [{"command": ["x"]}]}, "submit"),
        ("/v1/hints", {"runs": []}, "hint"),
        ("/v1/hints/forget", {"keys": ["program:x"]}, "hint"),
    ):
        status, _, message = as_user(served, NUMBER, "POST", target, body).error
        assert 403 == status
        told = f"uid {NUMBER} has no account on this machine (any more), and may not {verb}; "
        assert told in message
    for uid in (NUMBER, NOBODY):
        assert 200 == as_user(served, uid, "GET", "/v1/jobs").status


@ROOT_ONLY
def test_numbers_without_an_account_are_counted_as_one_user(for_all, monkeypatch):
    monkeypatch.setattr(access, "MOST_OF_A_USER", 3)
    served = for_all()
    hold = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    hold += "s.sendall(b'GET /v1/mode HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); s.recv(9); print(1)"
    hold += "; sys.stdout.flush(); sys.stdin.read()"
    holders = [
        subprocess.Popen(
            [PYTHON, "-I", "-S", "-c", hold, served.socket_path],
            user=NUMBER + number,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        for number in range(3)
    ]
    try:
        for holder in holders:
            assert b"1\n" == holder.stdout.readline()
        another = as_user(served, NUMBER + 9, "GET", "/v1/jobs")
        mine = served.ask("GET", "/v1/jobs").status
    finally:
        for holder in holders:
            holder.communicate()

    assert (503, "unavailable") == another.error[:2]
    assert 200 == mine


def test_root_finds_room_where_all_others_have_taken_theirs(monkeypatch):
    monkeypatch.setattr(access, "MOST_IN_ALL", 5)
    doors = Front(lambda: None, Accounts())

    assert [True] * 5 == [doors.enter(1000 + number) for number in range(5)]
    assert not doors.enter(1005)
    assert doors.enter(0)
    doors.leave(1003)
    assert doors.enter(1005)


class Line:
    """A connection of the user with this number: the server's transport, and its socket."""

    def __init__(self, uid):
        self.uid = uid

    def get_extra_info(self, name):
        assert "socket" == name
        return self

    def getsockopt(self, _level, option, _size):
        return struct.pack("3i", 1, self.uid, self.uid) if option == socket.SO_PEERCRED else b""

    def pause_reading(self):
        pass

    resume_reading = close = pause_reading


def room(doors, pool):
    """How many connections this pool has room for; it is full afterwards."""
    return sum(doors.enter(pool) for _ in range(2 * access.MOST_OF_A_USER))


@pytest.mark.parametrize("account", ["ann", None])
@pytest.mark.parametrize("turns", [0, 1, 2, 4])
def test_connections_that_end_as_their_user_is_known_are_not_counted(account, turns):
    """So many turns of the event loop after the answer is there."""
    gate = threading.Event()

    async def scene():
        users = users_by(lambda _: account if gate.wait(10.0) else None)
        doors = Front(asyncio.Protocol, users)
        lines = [doors() for _ in range(50)]
        for line in lines:
            line.connection_made(Line(7))
        await asyncio.sleep(0)
        gate.set()
        while not users.is_fresh(7):  # noqa: ASYNC110 - its turns are counted
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        for line in lines:
            line.connection_lost(None)
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        return [room(doors, pool) for pool in (access.ASKING, 7, STRANGERS)]

    assert [access.MOST_OF_A_USER] * 3 == asyncio.run(scene())


# -- lookups -------------------------------------------------------------------------------------


def users_by(look_up):
    return Accounts(Lookups(look_up, fresh_s=300.0))


def asked(users, *uids):
    """What is answered of these, one after the other."""

    async def scene():
        return [await users.ask(uid) for uid in uids]

    return asyncio.run(scene())


def test_who_is_known_is_not_asked_for_again_and_root_never():
    looked = []

    def look_up(uid):
        looked.append(uid)
        if uid == 9:
            raise OSError("no database")
        return "ann" if uid == 7 else None

    users = users_by(look_up)

    assert [True, False, True, False, None, None] == asked(users, 7, 8, 7, 8, 9, 9)
    assert [7, 8, 9, 9] == looked
    assert (7, STRANGERS, STRANGERS) == (users.pool(7), users.pool(8), users.pool(9))
    assert (True, [True], 0) == (users.is_fresh(0), asked(users, 0), users.pool(0))


def test_silent_databases_hold_nobody_up_and_take_a_few_threads(monkeypatch):
    monkeypatch.setattr(account, "WITHIN_S", 0.05)
    gate, looked = threading.Event(), []

    def silent(uid):
        looked.append(uid)
        return "ann" if gate.wait(10.0) else None

    async def scene():
        users = users_by(silent)
        told = await asyncio.gather(*(users.ask(uid) for uid in range(1, 51)))
        assert [1, 2, 3, 4, 5, 6, 7, 8] == sorted(looked)
        gate.set()
        while not all(map(users.is_fresh, range(1, 9))):  # noqa: ASYNC110 - threads answer
            await asyncio.sleep(0.01)
        return told, users.pool(1)

    assert ([None] * 50, 1) == asyncio.run(scene())
