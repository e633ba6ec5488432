"""A submission whose answer was lost is repeated, and its jobs are made once."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading

import pytest
from builders import job

from iodaemon.api.client import Client
from iodaemon.core.job import JobState
from iodaemon.daemon import driver as driver_module
from iodaemon.daemon.journal.record import RequestKey
from iodaemon.errors import NoDaemon, Unanswered

JOB = b'{"environment": {}, "jobs": [{"command": ["job"], "hold": true}]}'


def submit(served, key):
    return served.ask("POST", "/v1/jobs", JOB, Idempotency_Key=key)


def request_from(client):
    """The bytes of one request, to the end of its body."""
    data = client.recv(1 << 16)
    while b"\r\n\r\n" not in data:
        data += client.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    while found and len(body) < int(found[1]):
        data, body = data + (more := client.recv(1 << 16)), body + more
    return data


class Thief:
    """Stands between client and daemon and loses the first so many answers."""

    def __init__(self, path, to, lost):
        self.path, self._to, self._left = str(path), to, lost
        self.asked = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.socket(socket.AF_UNIX) as daemon:
                self.asked += 1
                client.settimeout(10.0)
                daemon.settimeout(10.0)
                daemon.connect(self._to)
                daemon.sendall(request_from(client))
                answer = daemon.recv(1 << 16)
                if self._left:
                    self._left -= 1
                else:
                    client.sendall(answer)

    def lose(self, answers):
        self._left = answers

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def thief(served, tmp_path):
    """Make one that loses so many answers; a client through it."""
    with contextlib.ExitStack() as stack:

        def make(lost, reconnect_s=20.0):
            thief = stack.enter_context(
                contextlib.closing(Thief(tmp_path / "thief.sock", served.socket_path, lost))
            )
            return thief, Client(thief.path, timeout_s=10.0, reconnect_s=reconnect_s)

        yield make


HELD = [{"command": ["job"], "hold": True}]


def test_a_lost_answer_is_asked_for_again_and_the_job_is_made_once(served, thief):
    between, client = thief(lost=2)
    told = []

    ids = client.submit_warned(HELD, {}, on_lost=told.append)["ids"]

    assert 3 == between.asked
    assert 1 == len(told)
    assert ids == sorted(served.state.jobs)


def test_where_no_answer_comes_it_is_said_that_nobody_knows(served, thief):
    _, client = thief(lost=10**6, reconnect_s=0.5)

    with pytest.raises(Unanswered, match="not known whether that was done; 'iod queue'"):
        client.submit(HELD, {})
    assert 1 == len(served.state.jobs)


def test_a_key_makes_a_submission_the_same_one_and_another_key_another(served):
    first, again, other = submit(served, "a"), submit(served, "a"), submit(served, "b")
    changed = served.ask("POST", "/v1/jobs", JOB + b" ", Idempotency_Key="a")

    assert (201, {"ids": [1]}) == (again.status, again.json)
    assert (first.json, {"ids": [2]}) == (again.json, other.json)
    assert (409, "conflict") == changed.error[:2]
    assert "of another submission, of jobs 1 to 1; choose a new one" in changed.error[2]
    assert 2 == len(served.state.jobs)


def make(job_id, now_s):
    return job(job_id, state=JobState.HELD, at_s=now_s, user_hold=True)


def made(served, *requests):
    """The ids that the driver gives to these submissions, which are made at once."""

    async def submit_all():
        asked = [served.driver.submit([make], {}, "env", request) for request in requests]
        return await asyncio.gather(*asked)

    return asyncio.run_coroutine_threadsafe(submit_all(), served.loop).result(10.0)


def test_many_keys_of_one_user_leave_those_of_another_known(served, monkeypatch):
    """Also after a restart: the journal is asked for so many of each."""
    monkeypatch.setattr(driver_module, "MOST_REQUESTS", 2)
    monkeypatch.setattr("iodaemon.daemon.journal.load.MOST_REQUESTS", 2)
    asked = ((7, "a"), (8, "a"), (8, "b"), (8, "c"), (7, "a"), (8, "a"))

    ids = [made(served, RequestKey(uid, key, "of the body")) for uid, key in asked]

    assert [[[1]], [[2]], [[3]], [[4]], [[1]], [[5]]] == ids
    assert [("a", 7), ("c", 8), ("a", 8)] == [
        (each.key, each.uid) for each in served.journal.restore().requests
    ]


def test_two_that_were_both_found_new_are_one_when_they_are_made(served):
    """As two requests are whose bodies are decoded at the same time."""
    assert [[1], [1]] == made(served, *2 * [RequestKey(1000, "a", "of the body")])


def test_a_key_is_known_after_a_restart_and_goes_with_its_jobs(serve):
    submit(serve(), "a")
    served = serve()
    [job_id] = submit(served, "a").json["ids"]
    served.client.cancel(job_id)
    served.journal.prune(served.driver.timeline.now_s + 60.0)
    served.journal.flush()

    assert 1 == job_id
    assert {"ids": [2]} == submit(serve(), "a").json


def test_a_submission_that_was_refused_may_be_made_with_its_key(served):
    served.journal._writer.execute("PRAGMA query_only=ON")
    refused = submit(served, "a")
    served.journal._writer.execute("PRAGMA query_only=OFF")
    served.until(lambda: not served.driver.problem)

    assert 503 == refused.status
    assert (201, 1) == (submit(served, "a").status, len(served.client.jobs()["jobs"]))


@pytest.mark.parametrize("key", ["x" * 65, "a\tb"])
def test_what_is_no_key_is_refused(served, key):
    status, code, message = submit(served, key).error

    assert (400, "refused") == (status, code)
    assert "Idempotency-Key: give 1 to 64 printable ASCII characters" in message


def test_what_makes_no_difference_twice_is_asked_again_and_a_question_is_not(served, thief):
    job_id = served.submit(hold=True)
    between, client = thief(lost=1)

    client.suspend(job_id)
    assert 2 == between.asked
    between.lose(1)
    with pytest.raises(NoDaemon, match="ask again") as error:
        client.node()
    assert not isinstance(error.value, Unanswered)
