"""A suspended job stands still, all of it, and notices nothing."""

import contextlib
import random
import time

import pytest
from harness import until

from iodaemon.errors import RequestError

pytestmark = pytest.mark.node


def test_the_last_word_counts_when_it_is_suspended_and_resumed_in_haste(shared):
    """A shell is caught at any moment between one command and the next."""
    job = shared.gated("it", step="/bin/true")
    shared.goes_on("it")
    for _ in range(20):
        assert shared.suspend(job) == "SUSPENDED_USER"
        shared.client.resume(job)
    state = shared.states(job)
    shared.goes_on("it")
    shared.open_gate("it")

    assert state == ["RUNNING"]
    assert [("COMPLETED", 0)] == shared.outcome(job)


def test_a_job_that_is_just_ending_ends_truly_whenever_it_is_suspended(shared):
    chance = random.Random(3)
    for _ in range(10):
        job = shared.script("sleep 0.02; exit 3")
        time.sleep(chance.uniform(0.0, 0.04))
        for ask in (shared.client.suspend, shared.client.resume):
            with contextlib.suppress(RequestError):  # it has ended already
                ask(job)

        assert [("FAILED", 3)] == shared.outcome(job)


def test_a_job_stays_still_while_nobody_asks_anything_for_many_grace_times(make_server):
    server = make_server(orphan_grace="0.3 s").start()
    job = server.gated("it", code=3)
    server.goes_on("it")
    server.suspend(job)
    before = server.ticks("it")
    until(lambda: server.job(job)["suspended_user_s"] > 1.2, "four grace times")

    assert server.frozen()
    assert before == server.ticks("it")

    server.client.resume(job)
    server.open_gate("it")

    assert [("FAILED", 3)] == server.outcome(job)
