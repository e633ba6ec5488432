"""What users may try against a shared daemon, and against each other by way of it."""

import json
import logging
import os
import random
import threading

import pytest
from decoding import decode_submission
from process import wait_until
from served import ANOTHER, ROOT_ONLY, as_user

from iodaemon.cli import main
from iodaemon.core.decision import Start
from iodaemon.core.job import JobId
from iodaemon.core.limits import Sharing
from iodaemon.core.platform import PartitionId, SlotId
from iodaemon.daemon.http import access
from iodaemon.daemon.http.submission import SubmittedJob, adjust, environment_key, job_maker
from iodaemon.daemon.launching import launch_record
from iodaemon.daemon.metrics.table import Exporter, Scene
from iodaemon.errors import RequestError
from iodaemon.model.node import default_platform
from iodaemon.supervisor.launch import parse_launch
from iodaemon.supervisor.protocol import LineReader, decode, encode, parse_limits

pytestmark = pytest.mark.node

FUZZED = int(os.environ.get("IOD_FUZZED", "400"))
"""Requests of the fuzzed kind; a longer run: IOD_FUZZED=100000."""
EVIL = "a\x1b]0;owned\x07\x1b[2J\r\n# HELP x\nevent=ready job=1\u202e\x9b31m\x00"[:-1]


@pytest.fixture
def served(for_all):
    return for_all(sharing=Sharing(max_queued=5, max_slots=3))


# -- another's job, another's files ------------------------------------------------------------


@ROOT_ONLY
def test_a_user_does_nothing_with_another_users_job_and_reads_none_of_its_output(served):
    job_id = served.running()
    served.output(job_id, b"secret")
    asked = [("POST", verb) for verb in ("cancel", "requeue", "suspend", "resume", "phase")]
    asked += [("GET", f"logs?stream={stream}") for stream in ("stdout", "stderr")]

    for method, what in asked:
        body = {} if method == "POST" else None
        told = as_user(served, ANOTHER, method, f"/v1/jobs/{job_id}/{what}", body)
        assert (403, "not_permitted") == told.error[:2], what
        assert b"secret" not in told.body
    assert "RUNNING" == served.state.jobs[JobId(job_id)].state


@pytest.mark.parametrize("query", ["stream=stdout", "stream=stderr&follow=1"])
def test_the_daemon_reads_no_file_that_a_submitter_named(served, query):
    """It may read what its submitter may not, and would hand it out."""
    secret = served.output(served.running(), b"secret")
    outputs = served.outputs
    for path in (str(secret), f"{outputs}/../../../etc/shadow", "/etc/shadow", f"{outputs}/%j.1"):
        job_id = served.submit("exit=0", stdout=path, stderr=path)

        assert "read it there" in served.ask("GET", f"/v1/jobs/{job_id}/logs?{query}").error[2]


def test_identity_is_no_word_of_the_client(served):
    body = b'{"jobs": [{"command": ["id"], "uid": 0}]}'
    headers = {"X_Remote_User": "root", "Authorization": "Basic cm9vdDo=", "X_Uid": "0"}

    assert 400 == served.ask("POST", "/v1/jobs", body).error[0]
    answer = served.ask("POST", "/v1/jobs", b'{"jobs": [{"command": ["id"]}]}', **headers)
    [job_id] = answer.json["ids"]
    assert os.geteuid() == served.state.jobs[JobId(job_id)].uid


@ROOT_ONLY
def test_the_owner_does_not_let_go_what_an_administrator_suspended(served):
    body = {"jobs": [{"command": ["compute=1000s"]}]}
    [job_id] = as_user(served, ANOTHER, "POST", "/v1/jobs", body).json["ids"]
    served.until(lambda: served.state.jobs[JobId(job_id)].state == "RUNNING")
    served.client.suspend(job_id)
    for verb in ("resume", "requeue"):
        told = as_user(served, ANOTHER, "POST", f"/v1/jobs/{job_id}/{verb}", {})
        assert (403, True) == (told.status, "an administrator suspended it" in told.error[2])
    assert "SUSPENDED_USER" == served.client.job(job_id)["state"]
    served.client.resume(job_id)

    for own in ("suspend", "resume"):
        assert 200 == as_user(served, ANOTHER, "POST", f"/v1/jobs/{job_id}/{own}", {}).status


# -- floods ------------------------------------------------------------------------------------


def test_a_flood_of_jobs_ends_at_the_limit(served):
    body = b'{"jobs": [{"command": ["exit=0"], "hold": true}]}'
    statuses = []

    def submit():
        statuses.extend(served.ask("POST", "/v1/jobs", body).status for _ in range(4))

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [201] * 5 + [400] * 19 == sorted(statuses)
    assert 5 == served.call(lambda: served.driver.waiting(os.geteuid()))


@ROOT_ONLY
def test_a_flood_of_connections_is_its_users_own(served):
    flood = [served.raw() for _ in range(access.MOST_OF_A_USER)]
    try:
        served.until(lambda: True)
        one_more = served.exchange(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n")
        another = as_user(served, ANOTHER, "GET", "/v1/jobs")
    finally:
        for connection in flood:
            connection.close()

    assert (503, "unavailable") == one_more.error[:2]
    assert "too many connections of this user" in one_more.error[2]
    assert 200 == another.status
    assert wait_until(lambda: served.ask("GET", "/v1/jobs").status == 200)


def test_a_slow_sender_holds_nobody_up(served, monkeypatch):
    monkeypatch.setattr(access, "BODY_WITHIN_S", 0.5)
    with served.raw() as slow, served.raw() as header:
        slow.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n{")
        header.sendall(b"GET /v1/jo")
        assert 200 == served.ask("GET", "/v1/jobs").status
        answer = b""
        while b"\r\n\r\n{" not in answer:
            answer += slow.recv(1 << 16)

    assert b"the body was not here within" in answer


def test_large_bodies_of_a_user_come_one_after_the_other(served):
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served.raw() as slow, served.raw() as second:
        slow.sendall(head)
        served.await_turn("body", True, 0)
        second.sendall(head + b"0\r\n\r\n")
        served.await_turn("body", True, 1)
        slow.sendall(b"0\r\n\r\n")
        told = [connection.recv(1 << 16) for connection in (slow, second)]

    assert all(each.startswith(b"HTTP/1.1 400") for each in told)


# -- another's hints ---------------------------------------------------------------------------

RUN = {"command": ["job"], "ended_s": 1.6e9, "run_s": 100.0, "processes": 8, "read_bytes": 0}
RUN |= {"written_bytes": 1, "io_s": 20.0, "operations": 1000, "name": "", "job": "1"}


@ROOT_ONLY
def test_a_user_gives_hints_on_own_jobs_and_drops_own_ones(served):
    own = {"runs": [RUN | {"uid": ANOTHER}, RUN | {"uid": None, "job": "2"}]}
    assert 201 == as_user(served, ANOTHER, "POST", "/v1/hints", own).status

    told = as_user(served, ANOTHER, "POST", "/v1/hints/forget", {"keys": ["program:job"]})

    assert (200, ["program:job"]) == (told.status, told.json["forgotten"])


@ROOT_ONLY
def test_a_user_says_nothing_of_another_users_jobs(served):
    runs = {"runs": [RUN | {"uid": 0}]}
    assert 201 == served.ask("POST", "/v1/hints", json.dumps(runs).encode()).status
    told = f"uid {ANOTHER} may not give hints on jobs of uid 0; count the runs as your own"

    for target, body in (
        ("/v1/hints", {"runs": [RUN | {"uid": None}, RUN | {"uid": 0, "job": "2"}]}),
        ("/v1/hints/forget", {"uid": 0, "keys": ["program:job"]}),
    ):
        status, _, message = as_user(served, ANOTHER, "POST", target, body).error
        assert (403, True) == (status, told in message)
    hints = as_user(served, ANOTHER, "GET", "/v1/hints").json["hints"]
    assert {0} == {hint["uid"] for hint in hints}


# -- requests that are none --------------------------------------------------------------------

PLAIN = [None, 0, -1, 2**63, 10**400, 1.5, True, "", "\0", "\ud800", EVIL, "/", "../..", "a" * 999]
TAILS = ["", "/1", "/-1", "/" + "9" * 40, "/1/cancel", "/1/logs?tail=x", "/../../etc", "/%00"]
TAILS += ["/1/phase"]


def word(generator, depth=0):
    if depth > 3 or generator.random() < 0.7:
        return generator.choice(PLAIN)
    if generator.random() < 0.5:
        return [word(generator, depth + 1) for _ in range(generator.randrange(4))]
    names = ["command", "cwd", "jobs", "name", "cpus", "ids", "grace_s", "umask", "stdout", "x"]
    return {generator.choice(names): word(generator, depth + 1) for _ in range(3)}


def request(generator):
    """The bytes of one request; some are whole, some are cut, mixed up or noise."""
    method = generator.choice(["GET", "POST", "DELETE", "PUT", "HEAD", "\x00", "P" * 50])
    target = generator.choice(["/v1/jobs", "/v1/wait", "/v1/mode", "/", "/v1/history"])
    body = json.dumps({"jobs": [word(generator)], "ids": word(generator)}).encode()
    if generator.random() < 0.4:
        body = json.dumps(word(generator)).encode()
    length = generator.choice([len(body), len(body), len(body), 0, -1, 3])
    head = f"{method} {target}{generator.choice(TAILS)} HTTP/1.1\r\nHost: x\r\n"
    head += f"Connection: close\r\nContent-Length: {length}\r\n\r\n"
    data = bytearray(head.encode() + body)
    for _ in range(generator.choice([0, 0, 0, 1, 4])):
        data[generator.randrange(len(data))] = generator.randrange(256)
    return bytes(data[: generator.randrange(1, len(data))] if generator.random() < 0.1 else data)


def submission(generator):
    """One that is nearly right: what is asked for has the right names, and any values."""
    names = SubmittedJob.__struct_fields__
    job = {name: word(generator) for name in names if generator.random() < 0.2}
    right = {"command": ["x", "y"], "cpus": 1, "cwd": "/", "umask": 0o22, "name": EVIL}
    job |= {name: value for name, value in right.items() if generator.random() < 0.8}
    environment = {str(word(generator)): "v"} if generator.random() < 0.3 else {}
    return json.dumps({"jobs": [job], "environment": environment}).encode()


def test_any_submission_is_refused_or_can_be_passed_on():
    generator, machine, accepted = random.Random(5), default_platform(), 0
    start = Start(job_id=JobId(1), attempt=1, partition=PartitionId(0), slots=(SlotId(0),))
    for _ in range(10 * FUZZED):
        try:
            made = decode_submission(submission(generator), machine)
        except RequestError:
            continue
        [heeded], _ = adjust(made.jobs, None, {})
        job = job_maker(heeded, 1000, environment_key(made.environment))(JobId(1), 0.0)
        launch = launch_record(job, start, machine, made.environment, api_socket="/s", open_files=9)
        line = encode({"wish": "prepare", "key": "1.1", "launch": launch})
        [passed_on] = LineReader().feed(line)
        read = parse_launch(decode(passed_on))
        for name in ("command", "environment", "directory", "uid", "umask", "stdout", "stderr"):
            assert launch[name] == getattr(read, name), name
        parse_limits(launch)
        accepted += 1
    assert accepted > FUZZED // 2


@pytest.mark.timeout(120 + FUZZED // 10)
def test_the_daemon_outlives_whatever_it_is_sent(served):
    generator = random.Random(4)
    for _ in range(FUZZED):
        with served.raw() as connection:
            connection.settimeout(0.01)
            try:
                connection.sendall(request(generator))
                connection.recv(1 << 16)
            except (TimeoutError, BrokenPipeError, ConnectionResetError):
                pass
    served.call(served.state.check)

    assert 200 == served.ask("GET", "/v1/jobs").status
    assert served.call(lambda: served.driver.waiting(os.geteuid())) <= 5


# -- control characters ------------------------------------------------------------------------


def test_a_name_gives_no_orders_to_terminal_log_or_metrics(served, caplog, capsys):
    with caplog.at_level(logging.INFO):
        job_id = served.submit("exit=3", name=EVIL, stdout=f"/nowhere/{EVIL}")
        assert served.client.wait([job_id], timeout_s=10.0)["finished"]

    for words in (["queue", "-a"], ["show", str(job_id)], ["why", str(job_id)], ["history"]):
        main(["--api", served.socket_path, *words])
    printed = capsys.readouterr()
    status, _, told = served.ask("GET", f"/v1/jobs/{job_id}/logs").error
    page = served.call(Exporter(Scene(served.driver)).page).decode()
    lines = [told, *(printed.out + printed.err).split("\n"), *page.split("\n"), *caplog.messages]
    assert 400 == status
    assert [] == [line for line in lines if not line.isprintable()]
    assert "owned" not in page
