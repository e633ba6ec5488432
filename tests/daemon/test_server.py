"""The API over a real socket: what it answers, and everything a client can do wrong."""

import contextlib
import gzip
import json
import os
import re
import socket
import stat
import threading
from contextlib import closing

import pytest
from process import await_read, wait_until
from served import NOBODY, ROOT_ONLY, Served, as_user, open_files

from iodaemon.core.job import JobId
from iodaemon.daemon.driver import JOURNAL_RETRY_S
from iodaemon.daemon.http.access import Rights
from iodaemon.daemon.http.routes import act as action
from iodaemon.errors import RequestError


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One daemon for all tests that leave it as they found it."""
    with closing(Served(tmp_path_factory.mktemp("shared"))) as served:
        yield served


# -- jobs ----------------------------------------------------------------------------------------


def test_jobs_that_only_the_journal_knows_are_found_everywhere(serve):
    served = serve(kept_finished=1)
    ids = [served.ended(f"exit={code}") for code in range(4)]
    served.running()

    assert JobId(ids[0]) not in served.state.jobs
    shown = served.client.jobs(all_jobs=True)["jobs"]
    assert [0, 1, 2, 3, None] == [job["shell_code"] for job in shown]
    assert 0 == served.client.job(ids[0])["exit_code"]
    answer = served.client.wait(ids, timeout_s=0.0)
    assert answer["finished"]
    assert [0, 1, 2, 3] == [job["exit_code"] for job in answer["jobs"]]
    assert "failed: exit code 1" == served.client.why(ids[1])["is_so"]
    with pytest.raises(RequestError, match="has ended already"):
        served.client.cancel(ids[1])


def test_a_suspend_of_a_job_that_ends_meanwhile_is_answered_at_once(served, monkeypatch):
    monkeypatch.setattr(action, "_SUSPEND_WAIT_S", 1e6)
    job_id = served.running()
    with served.raw() as connection:
        for verb in ("suspend", "cancel"):
            head = f"POST /v1/jobs/{job_id}/{verb} HTTP/1.1\r\nHost: x\r\n\r\n"
            connection.sendall(head.encode())
        received = b""
        while received.count(b"HTTP/1.1 200") < 2:
            received += connection.recv(1 << 16)


# -- waiting -------------------------------------------------------------------------------------


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


# -- everything that can be wrong with a request --------------------------------------------------

ABSENT = ["999999", "9" * 20, "9" * 30, "0", str(2**63 - 1), str(2**63)]
NO_IDS = ["-1", "x", "1.5", "%00", "1%00", "%2e%2e", "0x1", "1e3", "%D9%A1", "9" * 31, "9" * 5000]
NO_IDS += ["%F0"]
PATHS = ["GET /v1/jobs/{}", "POST /v1/jobs/{}/cancel"]
BODIES = [b"", b"{", b'{"ids": 1}', b'{"ids": ["1"]}', b'{"ids": [1.5]}', b'{"ids": [], "x": 1}']
BODIES += [b'{"ids": [], "timeout_s": "soon"}', b'{"ids": [' + b"9" * 5000 + b"]}", b'{"\xff": 1}']
BODIES += [b"[" * 100_000]
JOBS = [b"", b'{"jobs":[{"command":["\xff"]}]}', b'{"jobs":[{"command":["a"],"shell":true}]}']
NUMBERS = [b"1e300", b"1e999", b"NaN", b"-1", b"1" + b"0" * 400]
NUMBERED = ["walltime_s", "max_suspend_s", "memory_bytes", "cpus", "umask"]
QUERIES = ["select=x", "select=%00", "select=-1", "state=RUNING", "state=", "limit=-1", "limit=x"]
QUERIES += ["limit=" + "9" * 5000, "select=" + "1," * 2000 + "x"]
TIMES = ["nan", "inf", "-inf", "1e999", "x", "", "1e"]
WRONG = [
    *(
        (path.format(i), None, 404, f"no job {int(i)}; 'iod queue -a'")
        for path in PATHS
        for i in ABSENT
    ),
    *((path.format(i), None, 400, "is no job id") for path in PATHS for i in NO_IDS),
    *(
        ("POST /v1/wait", b'{"ids": [%d], "timeout_s": 0}' % i, 404, "no job")
        for i in (0, -1, 999999, 10**20, -(10**20), 10**40)
    ),
    *(("POST /v1/wait", body, 400, "") for body in BODIES),
    *(("POST /v1/jobs", body, 400, "") for body in JOBS),
    *(
        (
            "POST /v1/jobs",
            b'{"jobs": [{"command": ["x"], "%s": %s}]}' % (name.encode(), value),
            400,
            "",
        )
        for name in NUMBERED
        for value in NUMBERS
    ),
    *(
        ("POST /v1/jobs/1/cancel", body, 400, "")
        for body in (b'{"grace_s": "x"}', b'{"grace": 1}', b"\0", b"[]")
    ),
    *(
        (f"POST /v1/jobs/1/{verb}", b'{"grace_s": %s}' % grace, 400, "")
        for verb in ("cancel", "requeue")
        for grace in (b"1e300", b"1e308", b"600.5", b"-5", b"-1e-300", b"1e999")
    ),
    ("POST /v1/mode", b'{"mode": "bogus"}', 400, "mode"),
    ("POST /v1/drain", b'{"drain": true, "reason": "%s"}' % (b"x" * 201), 400, "say it in 200"),
    *((f"GET /v1/jobs?{query}", None, 400, "") for query in QUERIES),
    *((f"GET /v1/events?follow=0&since={time}", None, 400, "seconds since 1970") for time in TIMES),
    *((f"GET /v1/samples?since={time}", None, 400, "seconds since 1970") for time in TIMES),
    *((f"GET /v1/events?{query}", None, 400, "") for query in ("after=x", "after=", "after=-1")),
    ("GET /v1/events?after=1&since=0", None, 400, "exclude each other"),
    ("GET /v1/events?after=999999999999999999999", None, 410, ""),
    *(
        (f"GET /v1/jobs/1/logs?{query}", None, 400, "")
        for query in ("stream=x", "stream=", "tail=-1", "tail=x", "tail=", "tail=1.5")
    ),
    ("GET /v1/jobs?stat=FAILED", None, 400, "'stat'"),
    ("GET /v1/history?since=1", None, 400, "'since'"),
    ("GET /v1/events?follow=0&form=1", None, 400, "'form'"),
    ("GET /v1/node?x=1", None, 400, "'x'"),
    ("GET /v1/mode?mode=off", None, 400, "'mode'"),
    ("GET /v1/drain?waits=1", None, 400, "'waits'"),
    ("GET /v1/wait/all?all=1", None, 400, "'all'"),
    ("GET /v1/jobs?limit=1&limit=2", None, 400, "limit is given more than once; write it once"),
    ("GET /v1/history?limit=x", None, 400, ""),
    ("GET /v1/history?by=day", None, 400, ""),
    ("GET /v1/history?user=nosuch", None, 404, "no user 'nosuch'"),
    ("GET /v1/hints?user=nobody-of-this-name", None, 404, ""),
    ("GET /v1/hints?limit=x", None, 400, ""),
    ("GET /v1/hints?limit=-1", None, 400, ""),
    *(
        (f"GET {path}", None, 404, "")
        for path in ("/", "/v1", "/v1/jobs/", "/v2/jobs", "/v1/jobs/1/x")
    ),
    ("DELETE /v1/jobs/1", None, 405, ""),
    ("GET /v1/jobs/1/cancel", None, 405, ""),
    ("PUT /v1/jobs", None, 405, ""),
    ("POST /v1/events", None, 405, ""),
    ("GET /v1/nothing?x=1", None, 404, ""),
]
CODES = {400: "refused", 404: "not_found", 405: "refused", 410: "gone"}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A daemon with job 1, which runs."""
    with closing(Served(tmp_path_factory.mktemp("attacked"))) as served:
        served.output(served.running(), b"words")
        yield served


@pytest.mark.parametrize(
    ("line", "body", "status", "told"),
    WRONG,
    ids=[f"{line[:50]} {body!r:.40}" for line, body, *_ in WRONG],
)
def test_a_wrong_request_is_refused_in_one_line_and_changes_nothing(
    attacked, line, body, status, told
):
    method, target = line.split(" ", 1)
    found, code, message = attacked.ask(method, target, body).error

    assert (status, CODES[status]) == (found, code)
    assert told in message
    assert not re.search(r"[`$]|Expected", message)
    assert ("RUNNING", 2) == attacked.call(
        lambda: (attacked.state.jobs[JobId(1)].state, attacked.state.next_id)
    )
    assert "on" == attacked.driver.controller.regulator.mode


@pytest.fixture(scope="module")
def of_all(tmp_path_factory):
    """A daemon that counts connections by user."""
    rights = Rights(owner_uid=os.geteuid(), is_shared=True)
    with closing(Served(tmp_path_factory.mktemp("all"), rights=rights)) as served:
        yield served


GET = b"GET /v1/jobs HTTP/1.1\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"hello\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 100 + b"\r\n\r\n",
        b"GET /v1/jobs HTTP/9.9\r\n\r\n",
        GET + b"Host x\r\n\r\n",
        GET + b"Content-Length: -1\r\n\r\n",
        GET + b"Content-Length: x\r\n\r\n",
        GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        GET + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
        GET + b"X: y\r\n" * 10_000 + b"\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        POST + b"Content-Length: 99999999999\r\n\r\n",
        POST + b"Connection: close\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000,
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_no_http_is_refused_or_hung_up_on_and_the_daemon_goes_on(of_all, data):
    received = b""
    with of_all.raw() as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(1 << 16):
            received += piece

    assert received == b"" or received.split()[1] in (b"400", b"413")
    assert 200 == of_all.ask("GET", "/v1/jobs").status


def test_a_compressed_body_is_read_and_one_that_is_not_what_it_says_is_refused(shared):
    def ask(body):
        return shared.ask("POST", "/v1/wait", body, Content_Encoding="gzip")

    assert {"jobs": [], "finished": True} == ask(gzip.compress(b'{"ids":[]}')).json
    assert 400 == ask(b"no gzip at all").status


def test_a_body_beyond_the_limit_is_refused_before_it_fills_the_memory(shared):
    size = 64 * 1024 * 1024 + 1
    sent = 0
    with shared.raw() as connection:
        connection.sendall(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while sent < size:
                sent += connection.send(b"x" * (1 << 20))
        received = connection.recv(1 << 16)

    assert b"413" == received.split()[1]
    assert b'{"error"' in received


# -- clients that are slow, or gone ---------------------------------------------------------------


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
    head = f"POST /v1/jobs/{job_id}/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    connection.sendall(head.encode())
    await_read(connection)
    connection.close()

    assert served.client.wait([job_id], timeout_s=10.0)["finished"]
    assert "CANCELLED" == served.client.job(job_id)["state"]


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


# -- the socket, and who asks ---------------------------------------------------------------------


def test_only_its_owner_may_open_the_socket(shared):
    status = os.stat(shared.socket_path)

    assert (0o600, os.geteuid()) == (stat.S_IMODE(status.st_mode), status.st_uid)


@ROOT_ONLY
def test_another_user_is_refused_even_where_the_socket_is_open_to_all(for_all):
    public = for_all(Rights(owner_uid=0))
    job_id = public.running()
    public.output(job_id, b"secret")
    for method, target, body in (
        ("GET", "/v1/jobs", None),
        ("POST", "/v1/jobs", {"jobs": [{"command": ["/bin/true"]}]}),
        ("GET", f"/v1/jobs/{job_id}/logs", None),
    ):
        status, code, message = as_user(public, NOBODY, method, target, body).error
        assert (403, "not_permitted") == (status, code)
        assert f"uid {NOBODY} may not" in message
        assert "this daemon serves uid 0 alone" in message

    assert ["RUNNING"] == [job["state"] for job in public.client.jobs()["jobs"]]


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
