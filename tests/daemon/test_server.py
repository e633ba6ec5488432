"""The API over a real socket: every documented row, and everything a client can do wrong."""

import gzip
import json
import os
import re
import socket
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from calling import call_as
from process import TREE, await_read, wait_until
from served import Served, open_files

from iodaemon.api.client import Client
from iodaemon.core.job import JobId
from iodaemon.daemon.driver import JOURNAL_RETRY_S
from iodaemon.daemon.http.routes import act as action
from iodaemon.errors import NoDaemon, NotFound, RequestError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One daemon for all tests that leave it as they found it."""
    served = Served(tmp_path_factory.mktemp("shared"))
    yield served
    served.close()


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    yield served
    served.close()


# -- jobs ----------------------------------------------------------------------------------------


def test_jobs_that_only_the_journal_knows_are_found_everywhere(tmp_path):
    served = Served(tmp_path, kept_finished=1)
    try:
        ids = [served.ended(f"exit={code}") for code in range(4)]
        served.running()

        assert JobId(ids[0]) not in served.state.jobs
        shown = served.client.jobs(all_jobs=True)["jobs"]
        assert [0, 1, 2, 3, None] == [job["shell_code"] for job in shown]
        assert 0 == served.client.job(ids[0])["exit_code"]
        answer = served.client.wait(ids, timeout_s=0.0)
        assert answer["finished"]
        assert [0, 1, 2, 3] == [job["exit_code"] for job in answer["jobs"]]
        with pytest.raises(RequestError, match="has ended already"):
            served.client.cancel(ids[1])
    finally:
        served.close()


def test_one_job_has_its_processes_and_counters(served):
    job_id = served.running("write=900GiB")
    served.until(lambda: served.state.meter.counters(JobId(job_id)) is not None)
    job = served.client.job(job_id)

    assert [] == job["pids"]
    assert {"read_bytes", "written_bytes", "cpu_s"} <= set(job["counters"])
    assert job["written_bytes"] > 0


def test_the_submitter_is_who_the_kernel_says(shared):
    job = shared.client.job(shared.ended())

    assert os.geteuid() == job["uid"]


def test_many_clients_submit_at_the_same_time(served):
    found = []

    def submit():
        for _ in range(10):
            found.extend(served.client.submit([{"command": ["exit=0"]}] * 2, {}))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(range(1, 161)) == sorted(found)
    assert served.client.wait(found, timeout_s=20.0)["finished"]


# -- acting --------------------------------------------------------------------------------------


def test_a_suspend_of_a_job_that_ends_meanwhile_is_answered_at_once(served, monkeypatch):
    monkeypatch.setattr(action, "_SUSPEND_WAIT_S", 1e6)
    job_id = served.running()
    with served.raw() as connection:
        connection.sendall(
            f"POST /v1/jobs/{job_id}/suspend HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            + f"POST /v1/jobs/{job_id}/cancel HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        received = b""
        while received.count(b"HTTP/1.1 200") < 2:
            received += connection.recv(1 << 16)


# -- waiting -------------------------------------------------------------------------------------


def test_a_wait_ends_with_the_last_job(served):
    quick, slow = served.submit("compute=0.05s", "exit=3"), served.submit("compute=0.3s")
    answer = served.client.wait([slow, quick])

    assert {"jobs", "finished"} == set(answer)
    assert answer["finished"]
    assert [(slow, 0), (quick, 3)] == [(job["id"], job["shell_code"]) for job in answer["jobs"]]


def test_who_waits_for_a_held_job_is_told_at_once_and_then_of_its_end(served):
    job_id, told = served.submit("exit=3", hold=True), []

    def look(jobs):
        told.extend((job["state"], job["reason"]) for job in jobs)
        if len(told) == 1:
            served.client.resume(job_id)

    served.client.wait([job_id], on_told=look)

    cure = f"'iod resume {job_id}'"
    held = {"code": "Held", "text": "held at submission", "cure": cure}
    assert [("HELD", held), "FAILED"] == [told[0], told[-1][0]]


def test_a_wait_is_given_up_after_its_timeout(shared):
    job_id = shared.running()
    body = json.dumps({"ids": [job_id], "timeout_s": 0.05}).encode()
    answer = shared.ask("POST", "/v1/wait", body)
    shared.client.cancel(job_id)

    assert (200, False) == (answer.status, answer.json["finished"])


def test_many_clients_wait_for_the_same_job(served):
    job_id, answers = served.running(), []
    threads = [
        threading.Thread(target=lambda: answers.append(served.client.wait([job_id])))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    served.await_waiting(20)
    served.client.cancel(job_id)
    for thread in threads:
        thread.join()

    assert [True] * 20 == [answer["finished"] for answer in answers]


@pytest.mark.slow
def test_two_thousand_jobs_are_waited_for(tmp_path):
    served = Served(tmp_path, kept_finished=100)
    try:
        ids = served.client.submit([{"command": ["exit=0"]}] * 2000, {})
        answer = served.client.wait(ids, timeout_s=30.0)

        assert answer["finished"]
        assert ids == [job["id"] for job in answer["jobs"]]
        assert {"COMPLETED"} == {job["state"] for job in answer["jobs"]}
    finally:
        served.close()


# -- output --------------------------------------------------------------------------------------


def logs(served, job_id, **query):
    return b"".join(served.client.logs(job_id, **query))


def test_the_output_is_the_files_bytes(shared):
    job_id = shared.ended()
    shared.output(job_id, bytes(range(256)) * 4000)

    assert bytes(range(256)) * 4000 == logs(shared, job_id)
    assert bytes(range(256)) * 4000 == logs(shared, job_id, stream_name="stderr")
    assert bytes(range(256)) * 4000 == logs(shared, job_id, follow=True)


def test_the_output_of_a_running_job_is_sent_as_far_as_it_goes(served):
    job_id = served.running()
    served.output(job_id, b"so far\n")

    assert b"so far\n" == logs(served, job_id)


def test_output_is_followed_until_the_job_has_ended(served):
    job_id = served.running()
    path = served.output(job_id, b"one\n")
    pieces = served.client.logs(job_id, follow=True)

    assert b"one\n" == next(pieces)
    with path.open("ab") as file:
        file.write(b"two")
    assert b"two" == next(pieces)
    with path.open("ab") as file:
        file.write(b"three")
    served.client.cancel(job_id)
    assert b"three" == b"".join(pieces)


def test_a_job_that_has_not_started_can_be_followed(served):
    job_id = served.submit("compute=1000s", hold=True)
    received = []
    thread = threading.Thread(
        target=lambda: received.extend(served.client.logs(job_id, follow=True))
    )
    thread.start()
    assert wait_until(lambda: served.handlers() > 0)
    served.client.resume(job_id)
    served.until(lambda: served.state.jobs[JobId(job_id)].attempt == 1)
    served.output(job_id, b"at last")
    served.client.cancel(job_id)
    thread.join()

    assert [b"at last"] == received


def test_a_job_cancelled_before_its_start_has_no_output_to_follow(served):
    job_id = served.submit(hold=True)
    received = []
    thread = threading.Thread(
        target=lambda: received.extend(served.client.logs(job_id, follow=True))
    )
    thread.start()
    served.client.cancel(job_id)
    thread.join()

    assert [] == received


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "does not exist (any more)"),
        ({"stdout": "/nowhere/at/all"}, "does not exist (any more)"),
        ({"stdout": "/dev/null"}, "no regular file"),
        ({"stdout": "/proc"}, "no regular file"),
        ({"stdout": "/etc/passwd/x"}, "Not a directory"),
    ],
)
def test_output_that_cannot_be_read_is_refused_with_the_reason(shared, fields, expected):
    job_id = shared.ended(**fields)

    status, code, message = shared.ask("GET", f"/v1/jobs/{job_id}/logs").error

    assert (400, "refused") == (status, code)
    assert expected in message


def test_a_pipe_as_output_does_not_hold_the_daemon_up(served, tmp_path):
    """Reading it would wait for a writer, in one of the few threads that read files."""
    os.mkfifo(tmp_path / "pipe")
    job_id = served.ended(stdout=str(tmp_path / "pipe"))

    for _ in range(10):
        assert "no regular file" in served.ask("GET", f"/v1/jobs/{job_id}/logs").error[2]


@pytest.mark.parametrize("query", ["stream=x", "stream=", "tail=-1", "tail=x", "tail=", "tail=1.5"])
def test_wrong_words_about_output_are_refused(shared, query):
    job_id = shared.ended()
    shared.output(job_id, b"words")

    assert 400 == shared.ask("GET", f"/v1/jobs/{job_id}/logs?{query}").error[0]


# -- events --------------------------------------------------------------------------------------


def test_every_step_in_a_jobs_life_is_an_event(served):
    with closing(served.client.events()) as events:
        thread = threading.Thread(target=lambda: seen.extend(next(events) for _ in range(4)))
        seen = []
        thread.start()
        served.await_waiting(1)
        job_id = served.ended("exit=3")
        thread.join()

    assert [job_id] * 4 == [step["job_id"] for step in seen]
    assert [None, "PENDING", "STARTING", "RUNNING"] == [step["before"] for step in seen]
    assert ["PENDING", "STARTING", "RUNNING", "FAILED"] == [step["after"] for step in seen]
    assert "exit code 3" == seen[-1]["reason"]["text"]


def test_a_listener_that_went_away_leaves_nothing_behind(served):
    connection = served.raw()
    connection.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    served.await_waiting(1)
    connection.close()

    served.await_waiting(0)


def test_another_socket_in_the_place_of_the_daemons_stays(tmp_path):
    """As systemd's, which is made while a daemon runs that was started by hand."""
    with closing(Served(tmp_path)) as served, socket.socket(socket.AF_UNIX) as other:
        os.unlink(served.socket_path)
        removed = served.server.has_lost_socket
        other.bind(served.socket_path)
        replaced = served.server.has_lost_socket

    assert [True, False] == [removed, replaced]
    assert os.path.exists(served.socket_path)


def test_streams_end_when_the_daemon_stops(tmp_path):
    served = Served(tmp_path)
    job_id = served.running()
    served.output(job_id, b"words")
    served.journal.flush()
    events, words = [], []
    threads = [
        threading.Thread(target=lambda: events.extend(served.client.events())),
        threading.Thread(target=lambda: words.extend(served.client.logs(job_id, follow=True))),
    ]
    for thread in threads:
        thread.start()
    served.await_waiting(1)
    assert wait_until(lambda: words)
    served.close()
    for thread in threads:
        thread.join()

    assert ([], [b"words"]) == (events, words)


# -- reports -------------------------------------------------------------------------------------


# -- everything that can be wrong with a request --------------------------------------------------

ABSENT = [
    "999999",
    "99999999999999999999",
    "9" * 30,
    "0",
    "9223372036854775807",
    "9223372036854775808",
]
NO_IDS = [
    "-1",
    "x",
    "1.5",
    "%00",
    "1%00",
    "%2e%2e",
    "0x1",
    "1e3",
    "%D9%A1",
    "9" * 31,
    "9" * 5000,
    "%F0",
]
PATHS = ["/v1/jobs/{}", "/v1/jobs/{}/logs", "/v1/jobs/{}/cancel", "/v1/jobs/{}/suspend"]


@pytest.mark.parametrize("job_id", ABSENT, ids=lambda text: text[:22])
@pytest.mark.parametrize("path", PATHS)
def test_a_job_that_does_not_exist_is_not_found(shared, path, job_id):
    method = "GET" if path in PATHS[:2] else "POST"

    status, code, message = shared.ask(method, path.format(job_id)).error

    assert (404, "not_found") == (status, code)
    assert f"no job {int(job_id)}; 'iod queue -a' lists all" in message


@pytest.mark.parametrize("job_id", NO_IDS, ids=lambda text: text[:22])
@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_job_id_is_refused(shared, path, job_id):
    method = "GET" if path in PATHS[:2] else "POST"

    status, code, message = shared.ask(method, path.format(job_id)).error

    assert (400, "refused") == (status, code)
    assert "is no job id" in message


@pytest.mark.parametrize("job_id", [0, -1, 999999, 10**20, -(10**20), 10**40])
def test_waiting_for_a_job_that_does_not_exist_is_not_found(shared, job_id):
    body = json.dumps({"ids": [job_id], "timeout_s": 0}).encode()

    assert (404, "not_found") == shared.ask("POST", "/v1/wait", body).error[:2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/wait", b""),
        ("/v1/wait", b"{"),
        ("/v1/wait", b'{"ids": 1}'),
        ("/v1/wait", b'{"ids": ["1"]}'),
        ("/v1/wait", b'{"ids": [1.5]}'),
        ("/v1/wait", b'{"ids": [], "x": 1}'),
        ("/v1/wait", b'{"ids": [], "timeout_s": "soon"}'),
        ("/v1/wait", b'{"ids": [' + b"9" * 5000 + b"]}"),
        ("/v1/wait", b'{"\xff": 1}'),
        ("/v1/wait", b"[" * 100_000),
        ("/v1/jobs", b""),
        ("/v1/jobs", b'{"jobs":[{"command":["\xff"]}]}'),
        ("/v1/jobs", b'{"jobs":[{"command":["a"],"shell":true}]}'),
        ("/v1/jobs/{}/cancel", b'{"grace_s": "x"}'),
        ("/v1/jobs/{}/cancel", b'{"grace": 1}'),
        ("/v1/jobs/{}/cancel", b"\0"),
        ("/v1/jobs/{}/cancel", b"[]"),
    ],
)
def test_a_malformed_body_is_refused_and_changes_nothing(shared, path, body):
    job_id = shared.running()
    before = shared.call(lambda: shared.driver.state.next_id)
    error = shared.ask("POST", path.format(job_id), body).error
    state = shared.client.job(job_id)["state"]
    shared.client.cancel(job_id)

    assert (400, "refused") == error[:2]
    assert not re.search(r"[`$]|Expected", error[2])
    assert ("RUNNING", before) == (state, shared.call(lambda: shared.driver.state.next_id))


@pytest.mark.parametrize(
    "query",
    [
        "select=x",
        "select=%00",
        "select=-1",
        "state=RUNING",
        "state=",
        "limit=-1",
        "limit=x",
        "limit=" + "9" * 5000,
        "select=" + "1," * 2000 + "x",
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_query_is_refused(shared, query):
    assert (400, "refused") == shared.ask("GET", f"/v1/jobs?{query}").error[:2]


@pytest.mark.parametrize("grace", [b"1e300", b"1e308", b"600.5", b"-5", b"-1e-300", b"1e999"])
@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_a_grace_time_beyond_reason_is_refused_and_nothing_is_ended(shared, verb, grace):
    job_id = shared.running()
    error = shared.ask("POST", f"/v1/jobs/{job_id}/{verb}", b'{"grace_s": %s}' % grace).error
    state = shared.client.job(job_id)["state"]
    shared.client.cancel(job_id)

    assert (400, "refused") == error[:2]
    assert "RUNNING" == state


@pytest.mark.parametrize(
    "field",
    ["walltime_s", "max_suspend_s", "memory_bytes", "cpus", "umask"],
)
@pytest.mark.parametrize("value", [b"1e300", b"1e999", b"NaN", b"-1", b"1" + b"0" * 400])
def test_a_number_of_a_submission_beyond_reason_is_refused(shared, field, value):
    body = b'{"jobs": [{"command": ["compute=1s"], "%s": %s}]}' % (field.encode(), value)

    assert (400, "refused") == shared.ask("POST", "/v1/jobs", body).error[:2]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "x", ""])
@pytest.mark.parametrize("path", ["/v1/events?follow=0&since=", "/v1/samples?since="])
def test_a_time_that_is_none_is_refused(shared, path, value):
    assert (400, "refused") == shared.ask("GET", path + value).error[:2]


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/jobs/", 404, "not_found"),
        ("GET", "/v2/jobs", 404, "not_found"),
        ("GET", "/v1/jobs/1/x", 404, "not_found"),
        ("DELETE", "/v1/jobs/1", 405, "refused"),
        ("GET", "/v1/jobs/1/cancel", 405, "refused"),
        ("PUT", "/v1/jobs", 405, "refused"),
        ("POST", "/v1/events", 405, "refused"),
    ],
)
def test_a_path_that_does_not_exist_is_told_in_the_same_shape(shared, method, target, status, code):
    assert (status, code) == shared.ask(method, target).error[:2]


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"hello\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /v1/jobs HTTP/9.9\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_no_http_is_refused_and_the_daemon_goes_on(shared, data):
    with shared.raw() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece

    assert received == b"" or received.split()[1] == b"400"
    assert 200 == shared.ask("GET", "/v1/jobs").status


def test_a_body_that_is_not_what_it_says_is_refused(shared):
    answer = shared.ask("POST", "/v1/wait", b"no gzip at all", Content_Encoding="gzip")

    assert 400 == answer.status
    assert 200 == shared.ask("GET", "/v1/jobs").status


def test_a_compressed_body_is_read(shared):
    answer = shared.ask("POST", "/v1/wait", gzip.compress(b'{"ids":[]}'), Content_Encoding="gzip")

    assert {"jobs": [], "finished": True} == answer.json


def test_a_body_beyond_the_limit_is_refused_before_it_fills_the_memory(shared):
    size = 64 * 1024 * 1024 + 1
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    )
    sent = 0
    with shared.raw() as connection:
        connection.sendall(head.encode())
        try:
            while sent < size:
                sent += connection.send(b"x" * (1 << 20))
        except (BrokenPipeError, ConnectionResetError):
            pass
        received = connection.recv(1 << 16)

    assert b"413" == received.split()[1]
    assert b'{"error"' in received


def test_a_large_submission_is_accepted(shared):
    word = "x" * 1000
    ids = shared.client.submit([{"command": [word, "exit=0"], "hold": True}] * 2000, {"A": word})

    assert 2000 == len(ids)
    for _, outcome in shared.client.cancel_each(ids[:3]):
        assert outcome["gone"]


# -- clients that are slow, or gone ---------------------------------------------------------------


def test_a_slow_client_holds_nobody_up(shared):
    with shared.raw() as slow:
        for byte in b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n":
            slow.sendall(bytes([byte]))
        assert 200 == shared.ask("GET", "/v1/jobs").status
        slow.sendall(b"\r\n")

        assert b"200" == slow.recv(1 << 16).split()[1]


def test_a_client_that_does_not_read_its_output_holds_nobody_up(shared):
    job_id = shared.ended()
    shared.output(job_id, b"x" * 30_000_000)
    with shared.raw() as slow:
        slow.sendall(f"GET /v1/jobs/{job_id}/logs HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert slow.recv(1, socket.MSG_PEEK)

        assert shared.client.wait([shared.submit("exit=0")], timeout_s=20.0)["finished"]


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /v1/jobs/{0}/logs?follow=1",
        "GET /v1/events",
        "POST /v1/wait",
        "POST /v1/jobs/{1}/suspend",
    ],
)
def test_a_client_that_went_away_in_the_middle_leaves_nothing_behind(served, request_text):
    running, held = served.running(), served.submit(hold=True)
    served.output(running, b"words\n")
    body = json.dumps({"ids": [running]}) if "wait" in request_text else "{}"
    idle, files = served.handlers(), open_files()
    connection = served.raw()
    connection.sendall(
        f"{request_text.format(running, held)} HTTP/1.1\r\nHost: x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    await_read(connection)
    connection.close()

    assert wait_until(lambda: served.handlers() <= idle)
    assert wait_until(lambda: open_files() <= files)
    assert {} == served.call(lambda: served.driver.watch._conditions)
    assert 200 == served.ask("GET", "/v1/jobs").status


def test_a_cancel_whose_client_went_away_is_carried_out(served):
    job_id = served.running()
    connection = served.raw()
    connection.sendall(
        f"POST /v1/jobs/{job_id}/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
    )
    await_read(connection)
    connection.close()

    assert served.client.wait([job_id], timeout_s=10.0)["finished"]
    assert "CANCELLED" == served.client.job(job_id)["state"]


def test_many_idle_connections_hold_nobody_up(shared):
    idle = [shared.raw() for _ in range(300)]
    try:
        assert 200 == shared.ask("GET", "/v1/jobs").status
    finally:
        for connection in idle:
            connection.close()


# -- a full disk, seen by clients -----------------------------------------------------------------


def test_a_submission_the_disk_does_not_take_is_503_until_it_does(served):
    running = served.running()
    served.call(lambda: served.journal._writer.execute("PRAGMA query_only=ON"))
    body = b'{"jobs":[{"command":["exit=0"]}]}'

    for _ in range(2):
        status, code, message = served.ask("POST", "/v1/jobs", body).error
        assert (503, "unavailable") == (status, code)
        assert str(served.directory) in message
    assert [running] == [job["id"] for job in served.client.jobs(all_jobs=True)["jobs"]]
    assert served.client.cancel(running)["gone"]
    served.call(lambda: served.journal._writer.execute("PRAGMA query_only=OFF"))
    assert wait_until(
        lambda: served.ask("POST", "/v1/jobs", body).status == 201, JOURNAL_RETRY_S + 5.0
    )


# -- who asks -------------------------------------------------------------------------------------


def test_only_its_owner_may_open_the_socket(shared):
    status = os.stat(shared.socket_path)

    assert (0o600, os.geteuid()) == (stat.S_IMODE(status.st_mode), status.st_uid)


def as_nobody(socket_path, *words):
    """What ``iod`` says to uid 65534."""
    env = {"PATH": os.environ["PATH"], **TREE}
    return call_as(65534, 65534, socket_path, *words, env=env)


@pytest.fixture
def public(tmp_path):
    """A daemon whose folder everybody may enter, as pytest's own may not be."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="iod-") as folder:
        os.chmod(folder, 0o755)
        served = Served(Path(folder))
        yield served
        served.close()


def test_another_user_cannot_open_the_socket(public):
    told = as_nobody(public.socket_path, "queue")

    assert (4, "") == (told.returncode, told.stdout)
    assert told.stderr.startswith("iod: not permitted to open")
    assert 1 == told.stderr.count("\n")


@pytest.mark.parametrize(
    "words",
    [("queue",), ("submit", "--", "/bin/true"), ("cancel", "1"), ("logs", "1"), ("node",)],
    ids=lambda words: words[0],
)
def test_another_user_is_refused_even_where_the_socket_is_open_to_all(public, words):
    job_id = public.running()
    public.output(job_id, b"secret")
    os.chmod(public.socket_path, 0o666)

    told = as_nobody(public.socket_path, *words)

    assert (4, "") == (told.returncode, told.stdout)
    assert "uid 65534 may not see: this daemon serves uid 0 alone" in told.stderr
    assert 1 == told.stderr.count("\n")
    assert ["RUNNING"] == [job["state"] for job in public.client.jobs()["jobs"]]


# -- the client -----------------------------------------------------------------------------------


def test_the_client_tells_refusals_apart(shared):
    with pytest.raises(NotFound):
        shared.client.job(999999)
    with pytest.raises(RequestError, match="selects no jobs"):
        shared.client.jobs(select="x")
    with pytest.raises(NoDaemon):
        Client(str(shared.directory / "nothing.sock")).jobs()


def test_several_requests_of_one_kind_are_answered_in_order(served):
    ids = [served.running() for _ in range(3)]
    outcomes = list(served.client.cancel_each([*ids, 999999]))

    assert [*ids, 999999] == [job_id for job_id, _ in outcomes]
    assert [True] * 3 == [outcome["gone"] for _, outcome in outcomes[:3]]
    assert isinstance(outcomes[3][1], NotFound)
