"""A job tells of its I/O over the socket: it waits, is killed, reconnects, gives back."""

import json
import socket
import threading

import pytest

from iodaemon import phase
from iodaemon.core import event as ev
from iodaemon.core.job import JobId

EXCLUSIVE = {"rule": "exclusive"}


@pytest.fixture
def exclusive(serve):
    return serve(regulation=EXCLUSIVE)


class InJob:
    """The module as one job's program calls it, in a thread, to be looked at meanwhile."""

    def __init__(self, api, job_id, *, timeout_s=None, patience_s=20.0):
        self.outcome = []

        def run():
            asked = {"timeout_s": timeout_s, "patience_s": patience_s, "api": api}
            try:
                phase._ask({"phase": "io", "expect_bytes": None}, **asked, job=str(job_id))
            except phase.NoTurn as error:
                self.outcome.append(error.why)
            else:
                self.outcome.append("turn")

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self):
        self._thread.join(20.0)
        assert not self._thread.is_alive()
        return self.outcome[0]


def in_job(served, job_id, **options):
    return InJob(served.socket_path, job_id, **options)


def contended(served):
    """Two jobs that run, of which the first has its turn."""
    first, second = served.running(), served.running()
    assert in_job(served, first).join() == "turn"
    return first, second


def done(served, job_id):
    return served.ask("POST", f"/v1/jobs/{job_id}/phase", b'{"phase": "done"}')


def asking(served, job_id, expect_bytes=None):
    """A client that has asked and reads nothing yet."""
    client = served.raw()
    body = json.dumps({"phase": "io", "expect_bytes": expect_bytes}).encode()
    head = (
        f"POST /v1/jobs/{job_id}/phase HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client.sendall(head.encode() + body)
    return client


def of(served, job_id):
    return served.state.jobs[JobId(job_id)].phase


def waits(served, job_id):
    return served.until(lambda: of(served, job_id) and of(served, job_id).granted_s is None)


def test_one_at_a_time(exclusive):
    first, second = contended(exclusive)
    other = in_job(exclusive, second)
    waits(exclusive, second)
    record = exclusive.client.job(second)
    why = exclusive.client.why(second)

    assert record["reason"]["text"].startswith("waits for its turn to do I/O: job 1 has it, for ")
    assert record["phase"]["granted_s"] is None
    assert "waits for its turn to do I/O: job 1 has it" in why["is_so"]
    assert why["until"].startswith("its turn, and at the latest in ")
    assert why["since_s"] == record["phase"]["asked_s"]

    assert done(exclusive, first).status == 200
    assert other.join() == "turn"
    assert exclusive.client.job(first)["phase"] is None
    assert "has its turn to do I/O" in exclusive.client.why(second)["is_so"]


def test_a_client_that_is_gone_waits_no_longer(exclusive):
    first, second = contended(exclusive)
    client = asking(exclusive, second)
    waits(exclusive, second)
    client.close()

    exclusive.until(lambda: of(exclusive, second) is None)
    assert of(exclusive, first) is not None


def test_of_two_clients_of_one_job_one_may_go(exclusive):
    first, second = contended(exclusive)
    stays = in_job(exclusive, second)
    goes = asking(exclusive, second)
    exclusive.until(lambda: exclusive.context.phase_waits[JobId(second)] == 2)
    goes.close()
    exclusive.until(lambda: exclusive.context.phase_waits[JobId(second)] == 1)

    assert of(exclusive, second) is not None
    done(exclusive, first)
    assert stays.join() == "turn"


@pytest.mark.parametrize("order", ["its turn first", "its end first"])
def test_a_turn_that_nobody_was_told_of_is_given_back(exclusive, order):
    """The client goes in the very moment in which its turn comes."""
    first, second = contended(exclusive)
    client = asking(exclusive, second)
    waits(exclusive, second)

    def end_of_the_first():
        now_s = exclusive.driver.timeline.now_s
        exclusive.driver.post(ev.PhaseDone(at_s=now_s, job_id=JobId(first)))
        if order == "its turn first":
            exclusive.driver._turn()
        client.close()

    exclusive.call(end_of_the_first)

    exclusive.until(lambda: of(exclusive, first) is None and of(exclusive, second) is None)


def test_the_end_of_a_job_gives_its_turn_to_the_next_and_answers_its_clients(exclusive):
    first, second = contended(exclusive)
    third = exclusive.running()
    waiting, ended = in_job(exclusive, second), in_job(exclusive, third)
    waits(exclusive, second)
    waits(exclusive, third)
    exclusive.client.cancel(third, grace_s=0.0)
    assert ended.join() == "refused"

    exclusive.client.cancel(first, grace_s=0.0)
    assert waiting.join() == "turn"


def test_a_client_looks_for_the_daemon_that_went_away(serve):
    served = serve(regulation=EXCLUSIVE)
    first, second = contended(served)
    waiting = in_job(served, second)
    waits(served, second)

    again = serve(regulation=EXCLUSIVE)
    waits(again, second)
    assert of(again, first).granted_s is not None, "a turn that was given is still had"
    done(again, first)
    assert waiting.join() == "turn"


@pytest.mark.parametrize("is_there", [False, True], ids=["none", "deaf"])
def test_without_a_daemon_that_answers_it_goes_on_after_a_while(tmp_path, monkeypatch, is_there):
    monkeypatch.setattr(phase, "_SILENCE_S", 0.05)
    with socket.socket(socket.AF_UNIX) as deaf:
        if is_there:
            deaf.bind(str(tmp_path / "iod.sock"))
            deaf.listen()

        assert InJob(str(tmp_path / "iod.sock"), 1, patience_s=0.3).join() == "daemon"


def test_while_it_waits_a_client_hears_that_the_daemon_lives(exclusive, monkeypatch):
    """The answer with these heartbeats is one JSON document."""
    exclusive.context.heartbeat_s = 0.02
    monkeypatch.setattr(phase, "_SILENCE_S", 1.0)
    first, second = contended(exclusive)
    waiting = in_job(exclusive, second)
    waits(exclusive, second)
    with asking(exclusive, second) as client:
        received = b""
        while received.count(b"\n\r\n") < 5:
            received += client.recv(1 << 16)
        done(exclusive, first)
        while b"0\r\n\r\n" not in received:
            received += client.recv(1 << 16)

    assert b'"granted":true' in received
    assert waiting.join() == "turn"


def test_it_waits_no_longer_than_it_said(exclusive):
    _, second = contended(exclusive)

    assert in_job(exclusive, second, timeout_s=0.3).join() == "timeout"
    exclusive.until(lambda: of(exclusive, second) is None)


def test_a_request_that_is_wrong_or_of_a_job_that_does_not_run_is_refused(exclusive):
    ended, job_id = exclusive.ended(), exclusive.running()
    for number, body, status, said in (
        (job_id, b"{}", 400, "phase"),
        (job_id, b'{"phase": "io", "expect_bytes": -1}', 400, "expect_bytes"),
        (job_id, b'{"phase": "io", "expect_bytes": %d}' % 2**63, 400, "must be at most"),
        (job_id, b'{"phase": "out"}', 400, "phase"),
        (job_id, b'{"phase": "io", "what": 1}', 400, "what"),
        (job_id, b"\xff", 400, "the request is no JSON"),
        (ended, b'{"phase": "io"}', 400, "only a job that runs does I/O"),
        (99, b'{"phase": "io"}', 404, "no job 99"),
    ):
        found, _, message = exclusive.ask("POST", f"/v1/jobs/{number}/phase", body).error
        assert (status, True) == (found, said in message), message
