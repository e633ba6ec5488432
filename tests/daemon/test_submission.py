"""What a client may submit: all else is refused in one line, what comes again is made once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading

import pytest
from builders import job, platform
from decoding import decode_submission
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.api.client import Client
from iodaemon.core.job import JobId, JobState
from iodaemon.daemon import driver as driver_module
from iodaemon.daemon.http.refusal import Misstated
from iodaemon.daemon.http.submission import SubmittedJob, adjust, job_maker
from iodaemon.daemon.journal.record import RequestKey
from iodaemon.errors import NoDaemon, RequestError, Unanswered

MACHINE = platform(2, 4)


def body(*jobs, **others):
    return json.dumps({"jobs": list(jobs), **others}).encode()


def spec(**fields):
    return {"command": ["true"], **fields}


def made(submitted, uid=1000):
    [one] = decode_submission(body(submitted), MACHINE).jobs
    return job_maker(one, uid, "key")(JobId(3), 5.0)


def test_all_that_can_be_said_of_a_job_is_kept():
    said = {
        "command": ["a", "ß", ""],
        "cwd": "/w",
        "name": "n",
        "cpus": 4,
        "walltime_s": 1.5,
        "memory_bytes": 2**40,
        "io_rate_bytes_per_s": 40.0,
        "io_share": 0.25,
        "io_operations_per_s": 0.0,
        "no_suspend": True,
        "max_suspend_s": 3.0,
        "stdout": "o",
        "stderr": "e",
        "umask": 0o077,
    }
    job = made(said)

    kept = {name: getattr(job.spec, name) for name in said}

    assert {**said, "command": tuple(said["command"])} == kept
    assert "key" == job.spec.environment_id


def test_a_held_job_waits_for_its_resume():
    job = made(spec(hold=True))

    assert (JobState.HELD, True) == (job.state, job.user_hold)
    assert f"'iod resume {job.id}'" == job.reason.cure


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "the submission is no JSON: "),
        (b"[]", "the submission must be an object, not a list"),
        (b"\xff\xfe{}", "the submission is no JSON: "),
        (b'{"jobs":[{"command":["\xff"]}]}', "the job is no JSON: "),
        (b'{"jobs":[{"command":["\\udc80"]}]}', "the submission is no JSON: "),
        (b"[" * 1_000_000, "the submission must be an object, not a list"),
        (b'{"jobs":' + b"[" * 1_000_000, "the submission is no JSON: maximum recursion depth"),
        (body(spec()) + b"x", "the submission is no JSON: "),
        (b"{}", "'jobs' is missing; docs/api.md"),
        (body(), "0 jobs in one submission; send 1 to 100000"),
        (body(spec(), x=1), "there is no 'x'; docs/api.md"),
        (body(spec(x=1)), "there is no 'x'; docs/api.md"),
        (body({}), "'command' is missing"),
        (body(spec(command=[])), "command is empty"),
        (body(spec(command="true")), "command must be a list, not a text"),
        (body(spec(command=[1])), "command[0] must be a text, not a whole number"),
        (body(spec(command=[""])), "the command is empty; give one after --"),
        (body(spec(command=["a\0"])), "NUL characters"),
        (body(spec(stderr="a\0")), "NUL characters"),
        (body(spec(cwd="here")), "cwd must begin with /"),
        (body(spec(name="n" * 201)), "name has more than 200 characters; shorten it"),
        (body(spec(cpus=0)), "cpus must be at least 1"),
        (body(spec(cpus=1.5)), "cpus must be a whole number, not a number"),
        (body(spec(cpus=True)), "cpus must be a whole number, not true or false"),
        (body(spec(cpus=5)), "asks for 5 CPUs, the largest socket has 4; lower --cpus to 4"),
        (body(spec(), spec(cpus=10**30)), "job 2 of 2: asks for 1000000"),
        (body(spec(walltime_s=0)), "walltime_s "),
        (b'{"jobs":[{"command":["a"],"walltime_s":1e999}]}', "walltime_s "),
        (b'{"jobs":[{"command":["a"],"walltime_s":NaN}]}', "the submission is no JSON: "),
        (body(spec(memory_bytes=2**64)), "memory_bytes "),
        (body(spec(umask=0o1000)), "umask "),
        (body(spec(), environment={"A": 1}), "environment must be a text, not a whole number"),
        (body(spec(), environment={"": "x"}), "environment variable '' cannot be set"),
        (body(spec(), environment={"A": "\0"}), "environment variable 'A' cannot be set"),
        (body(*[spec()] * 100_001), "100001 jobs in one submission; send 1 to 100000"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line_with_the_place_in_it(data, expected):
    with pytest.raises(RequestError) as caught:
        decode_submission(data, MACHINE)

    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("data", "at", "problem"),
    [
        (body(spec(walltime_s=0)), ("jobs", 0, "walltime_s"), "must be above 0"),
        (body(spec(), spec(name=1)), ("jobs", 1, "name"), "must be a text, not a whole number"),
        (
            body(spec(), {}),
            ("jobs", 1, "command"),
            "is missing; docs/api.md lists what is required",
        ),
        (body(spec(command=["a", 1])), ("jobs", 0, "command", 1), "command[1] must be a text, not"),
        (body(spec(), spec(cpus=9)), ("jobs", 1), "asks for 9 CPUs, the largest socket has 4; "),
        (body(spec(cwd=f"/{'d' * 5000}")), ("jobs", 0, "cwd"), "is longer than the 4095 bytes"),
        (body(spec(x=1)), ("jobs", 0), "there is no 'x'; docs/api.md"),
        (body(spec(), environment=1), ("environment",), "must be an object, not a whole number"),
    ],
)
def test_a_refusal_says_where_and_what_without_the_keys_name(data, at, problem):
    with pytest.raises(Misstated) as caught:
        decode_submission(data, MACHINE)

    assert at == caught.value.at
    assert caught.value.problem.startswith(problem)


def test_a_client_hears_where_and_what(served):
    with pytest.raises(RequestError) as caught:
        served.client.submit([spec(), spec(walltime_s=0)], {})

    assert ("jobs", 1, "walltime_s") == caught.value.at
    assert "must be above 0" == caught.value.problem
    assert "job 2: walltime_s must be above 0" == str(caught.value)


# -- what is said of I/O ---------------------------------------------------------------------------

RATE, SHARE, OPERATIONS = "io_rate_bytes_per_s", "io_share", "io_operations_per_s"
IGNORED = "; the hint is ignored"


def heeded(*jobs):
    return adjust(decode_submission(body(*jobs), MACHINE).jobs, None, {})


@pytest.mark.parametrize(
    ("hint", "line"),
    [
        ({RATE: -1}, f"{RATE} -1 is no rate; give bytes/s, 0 or more"),
        ({RATE: 1e30}, f"{RATE} 1e+30 is no rate; give bytes/s, 0 or more"),
        (
            {RATE: 1, SHARE: 1.5},
            f"{SHARE} 1.5 is no part of the run time; give 0.2 or 20%, at most 1",
        ),
        ({RATE: 1, SHARE: 0}, f"{SHARE} 0 is no part of the run time; give 0.2 or 20%, at most 1"),
        (
            {RATE: 1, SHARE: -0.1},
            f"{SHARE} -0.1 is no part of the run time; give 0.2 or 20%, at most 1",
        ),
        ({SHARE: 0.5}, f"{SHARE} says nothing without {RATE}; give both"),
        ({RATE: 1, OPERATIONS: -2}, f"{OPERATIONS} -2 is no rate; give requests/s, 0 or more"),
        ({OPERATIONS: 5}, f"{OPERATIONS} says nothing without {RATE}; give both"),
    ],
    ids=str,
)
def test_a_hint_without_sense_is_told_and_the_job_is_taken_without_it(hint, line):
    [job], warnings = heeded(spec(**hint, cpus=2))

    assert [line + IGNORED] == warnings
    assert (2, None, None, None) == (
        job.cpus,
        *(getattr(job, name) for name in (RATE, SHARE, OPERATIONS)),
    )


def test_of_many_jobs_with_the_same_nonsense_the_first_is_named():
    jobs, warnings = heeded(
        spec(), *[spec(**{RATE: -1})] * 50, spec(**{RATE: -2}), spec(**{RATE: 3})
    )

    assert ["job 2", "job 52"] == [line.partition(":")[0] for line in warnings]
    assert [3.0] == [job.io_rate_bytes_per_s for job in jobs if job.io_rate_bytes_per_s is not None]


NUMBERS = st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(NUMBERS, NUMBERS, NUMBERS)
def test_whatever_numbers_are_given_the_job_is_taken_with_a_hint_that_can_be_or_none(
    rate, share, operations
):
    try:
        [job], warnings = heeded(spec(**{RATE: rate, SHARE: share, OPERATIONS: operations}))
    except RequestError as error:
        assert "out of range" in str(error)  # noqa: PT017 - beyond what JSON's numbers can be
        return

    kept = job_maker(job, 1000, "key")(JobId(1), 0.0).spec
    assert kept.io_share is None or 0.0 < kept.io_share <= 1.0
    assert kept.declared is None or kept.declared.rate_bytes_per_s >= 0.0
    assert len(warnings) <= 1
    assert not warnings or kept.declared is None


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_submission_or_refused(data):
    try:
        submission = decode_submission(data, MACHINE)
    except RequestError:
        return

    assert submission.jobs


def test_a_job_without_walltime_gets_the_default_one_and_its_submitter_is_told():
    jobs = decode_submission(body(spec(), spec(walltime_s=5.0)), MACHINE).jobs

    limited, told = adjust(jobs, 86400.0, {})

    assert [86400.0, 5.0] == [job.walltime_s for job in limited]
    assert 1 == len(told)
    assert "(default_walltime)" in told[0]
    assert (limited, []) == adjust(limited, 86400.0, {})
    assert (list(jobs), []) == adjust(jobs, None, {})


@pytest.mark.parametrize(("has_limit", "count"), [(True, 0), (False, 1)])
def test_a_memory_limit_that_nothing_keeps_is_told_to_its_submitter(serve, has_limit, count):
    jobs = [SubmittedJob(command=("x",), memory_bytes=size) for size in (None, 1 << 30, 1 << 31)]
    served = serve(controls={"memory": has_limit})
    limited = spec(command=["exit=0"], memory_bytes=1 << 30)

    assert count == len(adjust(jobs, None, {"memory": has_limit})[1])
    assert [] == adjust(jobs[:1], None, {"memory": has_limit})[1]
    assert [] == adjust(jobs, None, {})[1]
    assert count == len(served.client.submit_warned([limited], {}).get("warnings", []))


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

    with pytest.raises(Unanswered, match="not known whether that was done; 'iod queue -a'"):
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


def made_at_once(served, *requests):
    """The ids that the driver gives to these submissions, which are made_at_once at once."""

    async def submit_all():
        asked = [served.driver.submit([make], {}, "env", request) for request in requests]
        return await asyncio.gather(*asked)

    return asyncio.run_coroutine_threadsafe(submit_all(), served.loop).result(10.0)


def test_many_keys_of_one_user_leave_those_of_another_known(served, monkeypatch):
    """Also after a restart: the journal is asked for so many of each."""
    monkeypatch.setattr(driver_module, "MOST_REQUESTS", 2)
    monkeypatch.setattr("iodaemon.daemon.journal.load.MOST_REQUESTS", 2)
    asked = ((7, "a"), (8, "a"), (8, "b"), (8, "c"), (7, "a"), (8, "a"))

    ids = [made_at_once(served, RequestKey(uid, key, "of the body")) for uid, key in asked]

    assert [[[1]], [[2]], [[3]], [[4]], [[1]], [[5]]] == ids
    assert [("a", 7), ("c", 8), ("a", 8)] == [
        (each.key, each.uid) for each in served.journal.restore().requests
    ]


def test_two_that_were_both_found_new_are_one_when_they_are_made(served):
    """As two requests are whose bodies are decoded at the same time."""
    assert [[1], [1]] == made_at_once(served, *2 * [RequestKey(1000, "a", "of the body")])


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
