"""A job tells of its I/O over the socket: it waits, is killed, reconnects, gives back."""

import json
import socket
import threading

import pytest
from served import Served

from iodaemon import phase
from iodaemon.core import event as ev
from iodaemon.core.job import JobId

EXCLUSIVE = {"rule": "exclusive"}


@pytest.fixture
def served(tmp_path):
    server = Served(tmp_path)
    yield server
    server.close()


@pytest.fixture
def exclusive(tmp_path):
    server = Served(tmp_path, regulation=EXCLUSIVE)
    yield server
    server.close()


class InJob:
    """The module as one job's program calls it, in a thread, to be looked at meanwhile."""

    def __init__(self, served, job_id, monkeypatch=None, **options):
        self.job_id = job_id
        self.outcome = []
        self._ask = lambda: phase._ask(
            {"phase": "io", "expect_bytes": None},
            timeout_s=options.get("timeout_s"),
            patience_s=options.get("patience_s", 20.0),
            api=served.socket_path,
            job=str(job_id),
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self._ask()
        except phase.NoTurn as error:
            self.outcome.append(error.why)
        else:
            self.outcome.append("turn")

    def join(self):
        self._thread.join(20.0)
        assert not self._thread.is_alive()
        return self.outcome[0]


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


def hear_heartbeats(client):
    """What comes until five of them have come."""
    received = b""
    while received.count(b"\n\r\n") < 5:
        received += client.recv(1 << 16)
    return received


def of(served, job_id):
    return served.state.jobs[JobId(job_id)].phase


def waits(served, job_id):
    return served.until(lambda: of(served, job_id) and of(served, job_id).granted_s is None)


def has_turn(served, job_id):
    return served.until(lambda: of(served, job_id) and of(served, job_id).granted_s is not None)


def test_without_a_rule_that_gives_turns_everybody_has_one_at_once(served):
    first, second = served.running(), served.running()

    assert ["turn", "turn"] == [InJob(served, i).join() for i in (first, second)]


def test_one_at_a_time(exclusive):
    first, second = exclusive.running(), exclusive.running()
    assert InJob(exclusive, first).join() == "turn"
    other = InJob(exclusive, second)
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


def test_what_is_expected_is_kept(exclusive):
    job_id = exclusive.running()
    with asking(exclusive, job_id, 2 << 30):
        has_turn(exclusive, job_id)

    assert exclusive.client.job(job_id)["phase"]["expect_bytes"] == 2 << 30


def test_a_client_that_is_gone_waits_no_longer(exclusive):
    first, second = exclusive.running(), exclusive.running()
    InJob(exclusive, first).join()
    client = asking(exclusive, second)
    waits(exclusive, second)
    client.close()

    exclusive.until(lambda: of(exclusive, second) is None)
    assert of(exclusive, first) is not None


def test_of_two_clients_of_one_job_one_may_go(exclusive):
    first, second = exclusive.running(), exclusive.running()
    InJob(exclusive, first).join()
    stays = InJob(exclusive, second)
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
    first, second = exclusive.running(), exclusive.running()
    InJob(exclusive, first).join()
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
    first, second, third = (exclusive.running() for _ in range(3))
    InJob(exclusive, first).join()
    waiting, ended = InJob(exclusive, second), InJob(exclusive, third)
    waits(exclusive, second)
    waits(exclusive, third)
    exclusive.client.cancel(third, grace_s=0.0)
    assert ended.join() == "refused"

    exclusive.client.cancel(first, grace_s=0.0)
    assert waiting.join() == "turn"


def test_a_client_looks_for_the_daemon_that_went_away(tmp_path):
    served = Served(tmp_path, regulation=EXCLUSIVE)
    first, second = served.running(), served.running()
    InJob(served, first).join()
    waiting = InJob(served, second)
    waits(served, second)
    served.close()

    again = Served(tmp_path, regulation=EXCLUSIVE)
    try:
        waits(again, second)
        assert of(again, first).granted_s is not None, "a turn that was given is still had"
        done(again, first)
        assert waiting.join() == "turn"
    finally:
        again.close()


def test_without_a_daemon_it_goes_on_after_a_while(tmp_path):
    class Nobody:
        socket_path = str(tmp_path / "none.sock")

    assert InJob(Nobody, 1, patience_s=0.3).join() == "daemon"


def test_a_daemon_that_is_deaf_is_no_daemon(tmp_path, monkeypatch):
    monkeypatch.setattr(phase, "_SILENCE_S", 0.05)

    class Deaf:
        socket_path = str(tmp_path / "deaf.sock")

    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(Deaf.socket_path)
        deaf.listen()

        assert InJob(Deaf, 1, patience_s=0.3).join() == "daemon"


def test_while_it_waits_a_client_hears_that_the_daemon_lives(exclusive, monkeypatch):
    exclusive.context.heartbeat_s = 0.02
    monkeypatch.setattr(phase, "_SILENCE_S", 1.0)
    first, second = exclusive.running(), exclusive.running()
    InJob(exclusive, first).join()
    with asking(exclusive, second) as client:
        received = hear_heartbeats(client)
        done(exclusive, first)
        while b"0\r\n\r\n" not in received:
            received += client.recv(1 << 16)

    assert b'"granted":true' in received


def test_the_answer_with_heartbeats_is_one_json_document(exclusive):
    exclusive.context.heartbeat_s = 0.02
    first, second = exclusive.running(), exclusive.running()
    InJob(exclusive, first).join()
    waiting = InJob(exclusive, second)
    waits(exclusive, second)
    with asking(exclusive, second) as beside:
        hear_heartbeats(beside)
        done(exclusive, first)

        assert waiting.join() == "turn"


def test_it_waits_no_longer_than_it_said(exclusive):
    first, second = exclusive.running(), exclusive.running()
    InJob(exclusive, first).join()

    assert InJob(exclusive, second, timeout_s=0.3).join() == "timeout"
    exclusive.until(lambda: of(exclusive, second) is None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "phase"),
        (b'{"phase": "io", "expect_bytes": -1}', "expect_bytes"),
        (
            b'{"phase": "io", "expect_bytes": 9223372036854775808}',
            "expect_bytes must be at most",
        ),
        (b'{"phase": "out"}', "phase"),
        (b'{"phase": "io", "what": 1}', "what"),
        (b"\xff", "the request is no JSON"),
    ],
)
def test_a_malformed_request_is_refused(exclusive, body, said):
    job_id = exclusive.running()
    status, code, message = exclusive.ask("POST", f"/v1/jobs/{job_id}/phase", body).error

    assert (400, "refused") == (status, code)
    assert said in message


def test_a_job_that_does_not_run_has_no_phases(exclusive):
    job_id = exclusive.ended()
    answer = exclusive.ask("POST", f"/v1/jobs/{job_id}/phase", b'{"phase": "io"}')

    assert "only a job that runs does I/O" in answer.error[2]
    assert exclusive.ask("POST", "/v1/jobs/99/phase", b'{"phase": "io"}').error[0] == 404
