"""Answers that may never come: who waits, for how long, and what is known meanwhile."""

import asyncio
import os
import pwd
import threading
from types import SimpleNamespace

import pytest
from harness import until

from iodaemon.node import name_service
from iodaemon.node.name_service import (
    MOST_AT_ONCE,
    Lookups,
    find_groups,
    find_name,
    find_uid,
)


class Database:
    """One that can be told to say nothing, and counts what it is asked."""

    def __init__(self):
        self.speaks = threading.Event()
        self.speaks.set()
        self.values = {}
        self.asked = []

    def look_up(self, key):
        self.asked.append(key)
        self.speaks.wait()
        return self.values.get(key)


@pytest.fixture
def database():
    database = Database()
    yield database
    database.speaks.set()


@pytest.fixture
def complaints():
    return []


@pytest.fixture
def lookups(database, complaints):
    return Lookups(
        database.look_up, fresh_s=3600, on_silence=lambda key, s: complaints.append((key, s))
    )


def wait_for(lookups, key):
    return until(lambda: lookups.known(key), f"an answer about {key}").value


def test_what_is_answered_is_kept_and_not_asked_for_again(database, lookups):
    database.values[7] = "ann"

    answers = [lookups.get(7, 20).value for _ in range(3)]

    assert ["ann"] * 3 == answers
    assert [7] == database.asked


def test_nobody_waits_longer_than_said_and_only_the_first_waits_at_all(
    database, lookups, complaints
):
    database.speaks.clear()

    answers = [lookups.get(7, 0.2), *(lookups.get(key, 3600) for key in (7, 7, 8, 9) * 5)]

    assert [None] * 21 == answers
    assert [(7, 0.2)] == complaints
    until(lambda: [7, 8, 9] == sorted(database.asked), "a question about each")


def test_who_was_waited_for_in_vain_is_known_to_hang_however_short_that_was(
    database, lookups, complaints, monkeypatch
):
    """By the clock less time may have passed since the question than the caller waited."""
    monkeypatch.setattr(name_service, "time", SimpleNamespace(monotonic=lambda: 5.0))
    database.speaks.clear()

    asyncio.run(lookups.refresh(7, 0.01))
    asyncio.run(lookups.refresh(7, 3600))

    assert [(7, 0.01)] == complaints


def test_what_comes_late_is_known_from_then_on_and_an_old_answer_holds_until_then(database):
    lookups = Lookups(database.look_up, fresh_s=0)
    database.values[7] = "ann"
    database.speaks.clear()
    assert lookups.get(7, 0.01) is None

    database.speaks.set()
    assert "ann" == wait_for(lookups, 7)

    database.values[7] = "bob"
    database.speaks.clear()
    asyncio.run(lookups.refresh(7, 0.01))
    assert "ann" == lookups.get(7, 0.01).value

    database.speaks.set()
    until(lambda: "bob" == lookups.get(7, 20).value, "the new answer")


def test_so_many_hang_at_a_time_and_no_more(database, lookups):
    database.speaks.clear()

    answers = {lookups.get(key, 0.01) for key in range(10 * MOST_AT_ONCE)}

    assert {None} == answers
    until(lambda: list(range(MOST_AT_ONCE)) == sorted(database.asked), "so many questions")


def test_a_refresh_leaves_the_event_loop_to_others(database, lookups, complaints):
    database.speaks.clear()

    async def both():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await lookups.refresh(7, 0.5)
        ticking.cancel()
        await lookups.refresh(7, 3600)  # it is known to hang
        return ticks

    assert asyncio.run(both()) > 10
    assert [(7, 0.5)] == complaints


def test_a_refresh_waits_for_what_is_new(database):
    lookups = Lookups(database.look_up, fresh_s=0)
    for name in ("ann", "bob"):
        database.values[7] = name
        asyncio.run(lookups.refresh(7, 20))

        assert name == lookups.known(7).value


def test_a_database_that_fails_has_not_answered():
    def fail(key):
        raise OSError(5, "Input/output error")

    lookups = Lookups(fail, fresh_s=3600)

    assert (None, None) == (lookups.get(7, 20), lookups.known(7))


def test_it_complains_again_after_a_while_and_not_before(database, complaints, monkeypatch):
    lookups = Lookups(
        database.look_up, fresh_s=0, on_silence=lambda key, s: complaints.append((key, s))
    )
    for every_s in (3600.0, 0.0):
        monkeypatch.setattr(name_service, "COMPLAIN_EVERY_S", every_s)
        for key in (1, 2):
            database.speaks.clear()
            asyncio.run(lookups.refresh(key, 0.01))
            database.speaks.set()
            wait_for(lookups, key)
        lookups = Lookups(
            database.look_up, fresh_s=0, on_silence=lambda key, s: complaints.append((key, s))
        )

    assert [1, 1, 2] == [key for key, _ in complaints]


def tell(database, lookups, *keys):
    for key in keys:
        asyncio.run(lookups.refresh(key, 20))
        assert lookups.known(key).value == database.values.get(key)


def known_of(lookups, *keys):
    return [key for key in keys if lookups.known(key) is not None]


def test_strangers_push_out_each_other_and_no_user(database, lookups, monkeypatch):
    monkeypatch.setattr(name_service, "_MOST_KEPT", 5)
    database.values = {1: "ann", 2: frozenset({7}), 3: 0, 99: frozenset()}  # 0 is root

    tell(database, lookups, 1, 2, 3, 99, *range(100, 110))

    assert [1, 2, 3, 108, 109] == known_of(lookups, 1, 2, 3, 99, *range(100, 110))


def test_of_users_whoever_was_asked_for_longest_ago_is_forgotten(database, monkeypatch):
    lookups = Lookups(database.look_up, fresh_s=0)
    monkeypatch.setattr(name_service, "_MOST_KEPT", 3)
    database.values = dict.fromkeys(range(10), "ann")

    tell(database, lookups, 1, 2, 3, 1, 4)
    assert [1, 3, 4] == known_of(lookups, 1, 2, 3, 4)

    database.values[1] = None  # an account that is closed
    tell(database, lookups, 1, 5)
    assert [3, 4, 5] == known_of(lookups, 1, 2, 3, 4, 5)

    tell(database, lookups, 11, 12)  # one place for all strangers
    assert [4, 5, 12] == known_of(lookups, 1, 2, 3, 4, 5, 11, 12)


async def asked_for(database, count):
    """Wait until so many questions have come."""
    while len(database.asked) < count:  # noqa: ASYNC110 - threads ask
        await asyncio.sleep(0.001)


def test_a_refresh_waits_for_its_turn_while_many_others_are_asked_for(database, lookups):
    database.speaks.clear()
    database.values = dict.fromkeys(range(100), "ann")

    async def scene():
        waiting = [asyncio.create_task(lookups.refresh(key % 100, 3600)) for key in range(200)]
        await asked_for(database, MOST_AT_ONCE)
        begun = len(database.asked)
        waiting[50].cancel()
        database.speaks.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        return begun

    assert MOST_AT_ONCE == asyncio.run(scene())
    assert list(range(100)) == known_of(lookups, *range(100))
    assert 100 == len(database.asked)


def test_a_refresh_whose_turn_does_not_come_gives_up_and_the_hanging_are_known(
    database, lookups, complaints
):
    database.speaks.clear()

    async def scene():
        first = [asyncio.create_task(lookups.refresh(key, 0.2)) for key in range(MOST_AT_ONCE)]
        await asyncio.sleep(0)
        await lookups.refresh(100, 0.3)
        await asyncio.gather(*first)
        await lookups.refresh(101, 3600)  # all that may hang do

    asyncio.run(scene())

    assert MOST_AT_ONCE == len(database.asked)
    assert [0.2] == [waited_s for _, waited_s in complaints]


def test_the_system_says_who_is_who():
    me = pwd.getpwuid(os.geteuid())

    assert me.pw_name == find_name(me.pw_uid)
    assert me.pw_uid == find_uid(me.pw_name)
    assert frozenset(os.getgrouplist(me.pw_name, me.pw_gid)) == find_groups(me.pw_uid)
    assert (None, None) == (find_name(3_999_999_999), find_uid("no-such-user"))
    assert frozenset() == find_groups(3_999_999_999)


def test_where_no_thread_can_be_had_it_is_asked_again_later(lookups, database, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", refuse)
        refused = [lookups.get(key, within_s=0) for key in range(MOST_AT_ONCE + 1)]
        asyncio.run(lookups.refresh(99, within_s=20))
    database.values = {7: "ann"}

    assert {None} == set(refused)
    assert "ann" == lookups.get(7, within_s=20).value
