"""Who may do what, of those who have an account; all who have none are one user."""

import asyncio
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import get_args

import pytest
from builders import job
from served import ANOTHER, NOBODY, PYTHON, ROOT_ONLY, as_user

from iodaemon.core.job import JobState
from iodaemon.daemon import account
from iodaemon.daemon.account import STRANGERS, Accounts
from iodaemon.daemon.http import access
from iodaemon.daemon.http.access import Actor, Front, Rights, Verb, authorise, read_peer
from iodaemon.errors import NotPermitted
from iodaemon.node.name_service import Lookups

VERBS = set(get_args(Verb))
OF_A_JOB = {"cancel", "requeue", "suspend", "resume", "phase", "read_output"}
OWN = Rights(owner_uid=1000)
SHARED = Rights(owner_uid=990, is_shared=True, admin_gid=980, min_uid=1000)

ANN, BOB = Actor(1, 1001, frozenset({1001})), Actor(2, 1002, frozenset({1002, 100}))
ROOT, MEMBER = Actor(3, 0, frozenset({0})), Actor(4, 1003, frozenset({1003, 980}))
DAEMON, UNKNOWN = Actor(5, 990, frozenset({980})), Actor(6, 65534, frozenset({65534}))
HELD_BY_ROOT = job(7, uid=1001, state=JobState.SUSPENDED_USER, held_by_uid=0)


def may(actor, rights, made=None, verbs=VERBS):
    """The verbs that the actor may; each other one is refused in a line that names both."""
    allowed = set()
    for verb in verbs:
        try:
            authorise(actor, verb, made, rights)
        except NotPermitted as error:
            refusal = str(error)
        else:
            allowed.add(verb)
            continue
        assert f"uid {actor.uid} may not {verb}" in refusal
        assert "\n" not in refusal
    return allowed


@pytest.mark.parametrize("made", [None, job(7)], ids=["no job", "a job"])
def test_an_own_daemon_is_for_its_user_alone_and_hints_on_others_are_roots(made):
    assert VERBS - {"hint_others"} == may(Actor(pid=1, uid=1000), OWN, made)
    assert VERBS == may(Actor(pid=1, uid=0), OWN._replace(owner_uid=0), made)
    for uid in (0, 999, 1001, 65534, 2**32 - 1):
        assert set() == may(Actor(pid=1, uid=uid, gids=frozenset({980})), OWN, made)


@pytest.mark.parametrize(
    ("actor", "with_anns_job", "without"),
    [
        (ANN, {"see", *OF_A_JOB}, {"see", "submit", "hint"}),
        (BOB, {"see"}, {"see", "submit", "hint"}),
        (UNKNOWN, {"see"}, {"see"}),
        (MEMBER, {"see", *OF_A_JOB}, VERBS),
        (ROOT, {"see", *OF_A_JOB}, VERBS - {"submit", "hint"}),
        (DAEMON, {"see", *OF_A_JOB}, VERBS - {"submit", "hint"}),
    ],
    ids=["owner", "other", "nobody", "member", "root", "daemon"],
)
def test_who_may_do_what_on_a_shared_daemon(actor, with_anns_job, without):
    assert with_anns_job == may(actor, SHARED, job(7, uid=1001), {"see", *OF_A_JOB})
    assert without == may(actor, SHARED)


def test_without_a_group_of_its_own_only_root_acts_on_all():
    rights = SHARED._replace(admin_gid=None)

    assert {"cancel"} == may(ROOT, rights, job(7, uid=1001), {"cancel"})
    assert set() == may(MEMBER, rights, job(7, uid=1001), {"cancel"})


@pytest.mark.parametrize(
    ("actor", "allowed"),
    [
        (ANN, OF_A_JOB - {"resume", "requeue"}),
        (BOB, set()),
        (ROOT, OF_A_JOB),
        (MEMBER, OF_A_JOB),
        (DAEMON, OF_A_JOB),
    ],
    ids=["owner", "other", "root", "member", "daemon"],
)
def test_what_an_administrator_suspended_an_administrator_lets_go(actor, allowed):
    assert allowed == may(actor, SHARED, HELD_BY_ROOT, OF_A_JOB)


def test_the_peer_is_what_the_kernel_says():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        actor = read_peer(ours)

    groups = frozenset((os.getegid(), *os.getgroups()))
    assert Actor(pid=os.getpid(), uid=os.geteuid(), gids=groups) == actor


ADMINS = 4711


@pytest.fixture
def groups(monkeypatch):
    """What the databases say of each user; asked anew for each request."""
    groups = {}
    lookups = Lookups(lambda uid: groups.get(uid, frozenset()), fresh_s=0)
    for module in (account, access):
        monkeypatch.setattr(module, "groups_of_users", lambda: lookups)
    return groups


@pytest.fixture
def may_suspend(groups, for_all):
    """What another user is told who wants to suspend root's job."""
    served = for_all(Rights(owner_uid=4321, is_shared=True, admin_gid=ADMINS))
    served.running()

    def may():
        told = as_user(served, ANOTHER, "POST", "/v1/jobs/1/suspend", {})
        return told.status if told.status == 200 else told.error[1]

    return may


@ROOT_ONLY
def test_who_leaves_the_group_is_no_administrator_and_who_comes_is_without_a_login(
    may_suspend, groups, caplog
):
    caplog.set_level("INFO", "iodaemon")
    told = []
    for own in ({ANOTHER, ADMINS}, {ANOTHER}, {ANOTHER, ADMINS}):
        groups[ANOTHER] = frozenset(own)
        told.append(may_suspend())

    assert [200, "not_permitted", 200] == told
    went, _ = (line for line in caplog.messages if "groups_changed" in line)
    assert f"uid={ANOTHER} came=none went={ADMINS} " in went


@ROOT_ONLY
def test_who_has_no_account_any_more_is_no_administrator(may_suspend):
    assert "not_permitted" == may_suspend()


def test_the_time_in_which_it_is_noticed_is_the_one_that_is_told():
    page = (Path(__file__).parents[2] / "docs" / "trouble.md").read_text()

    assert f"within {account.GROUPS_FRESH_S:g} s" in page


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
