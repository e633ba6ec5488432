"""A suspended job stands still, all of it, and notices nothing."""

import contextlib
import random
import sys
import time

import pytest
from harness import let_others_work, until

from iodaemon.errors import RequestError

pytestmark = pytest.mark.node

CHAIN = """
import os, sys
while not os.path.exists(sys.argv[1]):
    if os.fork():
        os._exit(0)
    os.setsid()
    with open(sys.argv[2], "a") as file:
        file.write("x")
"""


def test_a_chain_that_forks_on_and_leaves_its_session_is_caught(shared):
    gate, ticks = shared.place / "gate", shared.place / "ticks"
    job = shared.submit(sys.executable, "-S", "-c", CHAIN, str(gate), str(ticks))
    until(ticks.exists, "start")
    shared.suspend(job)
    shared.await_state(job, "SUSPENDED_USER")
    before = ticks.stat().st_size
    let_others_work()
    after = ticks.stat().st_size
    shared.client.resume(job)
    until(lambda: ticks.stat().st_size > after, "progress")
    gate.touch()

    assert before == after
    assert [("COMPLETED", 0)] == shared.outcome(job)


def test_a_shell_that_starts_one_command_after_another_is_caught_at_any_moment(shared):
    job = shared.gated("it", step="/bin/true")
    shared.goes_on("it")
    for _ in range(15):
        assert shared.suspend(job) == "SUSPENDED_USER"
        shared.client.resume(job)
    shared.open_gate("it")

    assert [("COMPLETED", 0)] == shared.outcome(job)


def test_a_job_that_is_just_ending_ends_truly_whenever_it_is_suspended(shared):
    chance = random.Random(3)
    for _ in range(15):
        job = shared.script("sleep 0.02; exit 3")
        time.sleep(chance.uniform(0.0, 0.04))
        for ask in (shared.client.suspend, shared.client.resume):
            with contextlib.suppress(RequestError):  # it has ended already
                ask(job)

        assert [("FAILED", 3)] == shared.outcome(job)


def test_the_last_word_counts_when_it_is_suspended_and_resumed_in_haste(shared):
    job = shared.gated("it")
    shared.goes_on("it")
    for _ in range(20):
        shared.client.suspend(job)
        shared.client.resume(job)
    state = shared.states(job)
    shared.goes_on("it")
    shared.open_gate("it")

    assert state == ["RUNNING"]
    assert [("COMPLETED", 0)] == shared.outcome(job)


def test_a_job_stays_still_while_nobody_asks_anything_for_many_grace_times(make_server):
    server = make_server(orphan_grace="0.3 s").start()
    job = server.gated("it", code=3)
    server.goes_on("it")
    server.suspend(job)
    server.await_state(job, "SUSPENDED_USER")
    before = server.ticks("it")
    time.sleep(2.0)

    assert server.frozen()
    assert before == server.ticks("it")

    server.client.resume(job)
    server.open_gate("it")

    assert [("FAILED", 3)] == server.outcome(job)
