"""Who asks for much, and perhaps does not read it: other users, and the memory, do not notice."""

import contextlib
import json
import select

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import SHARED, Served

from iodaemon.daemon.http import access, answer
from iodaemon.daemon.http.selector import Ids

JOBS = 300
"""Held jobs; told of in 1.5 MB, by far more than what a socket holds."""
END = b"0\r\n\r\n"


@pytest.fixture
def served(tmp_path):
    with contextlib.closing(Served(tmp_path, rights=SHARED)) as served:
        spec = {"command": ["x", "y" * 4096], "hold": True}
        served.client.submit([spec] * JOBS, {})
        yield served


def get(target):
    return f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize("target", ["/v1/jobs?select=1-999", "/v1/jobs"])
def test_large_answers_of_a_user_come_one_after_the_other(served, target):
    with served.raw() as first, served.raw() as second:
        first.sendall(get(target))
        served.await_turn("answer", True, 0)
        second.sendall(get("/v1/jobs?all=1"))
        served.await_turn("answer", True, 1)

        assert 200 == served.ask("GET", "/v1/jobs?limit=1").status
        assert 200 == served.ask("GET", "/v1/jobs/1").status
        received = [b"".join(iter(lambda c=c: c.recv(1 << 16), b"")) for c in (first, second)]

    assert all(each.endswith(END) for each in received)
    assert (False, 0) == served.turn("answer")


def test_what_is_not_read_is_not_made(served):
    lookup, made = served.context, []
    record = lookup.record
    lookup.record = lambda job: made.append(job) or record(job)
    with served.raw() as unread:
        unread.sendall(get("/v1/jobs?all=1"))
        served.await_turn("answer", True, 0)
        for _ in range(50):
            served.ask("GET", "/v1/mode")

        assert 0 < len(made) < JOBS // 2


def after_hangup(served, target):
    """What was on its way when the server hung up on a client that reads nothing."""
    received = b""
    with served.raw() as unread:
        unread.sendall(get(target))
        poll = select.poll()
        poll.register(unread, select.POLLRDHUP)
        assert poll.poll(60_000)
        with contextlib.suppress(ConnectionResetError):
            while piece := unread.recv(1 << 16):
                received += piece
    return received


def test_who_reads_nothing_is_hung_up_on(served, monkeypatch):
    monkeypatch.setattr(answer, "UNREAD_S", 0.2)
    received = after_hangup(served, "/v1/jobs?all=1")

    served.await_turn("answer", False, 0)
    assert received.startswith(b"HTTP/1.1 200")
    assert not received.endswith(END)


def test_a_large_answer_that_is_made_already_does_not_wait_for_its_reader_for_ever(
    served, monkeypatch
):
    monkeypatch.setattr(access, "UNREAD_S", 0.2)
    lookup = served.context
    record = lookup.record
    lookup.record = lambda job: {**record(job), "command": ["y" * 3_000_000]}

    assert 0 < len(after_hangup(served, "/v1/jobs/1")) < 3_000_000


# -- waiting for many --------------------------------------------------------------------------


def test_one_request_waits_for_so_many_jobs_and_no_more(served):
    def wait(ids):
        return served.ask("POST", "/v1/wait", json.dumps({"ids": ids, "timeout_s": 0}).encode())

    assert "ids has more than 10000 elements" in wait([1] * 10_001).error[2]
    assert [1, 2] == [job["id"] for job in wait([1, 2] * 5000).json["jobs"]]


# -- selectors of thousands of parts ------------------------------------------------------------


class Counted(int):
    """A job's number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other):
        Counted.compared += 1
        return int(self) < other

    def __gt__(self, other):
        Counted.compared += 1
        return int(self) > other

    def __le__(self, other):
        return self < other + 1

    __hash__ = int.__hash__


def test_a_job_is_looked_up_among_thousands_of_parts_in_a_few_steps():
    ids = Ids(",".join(str(3 * n) for n in range(4000)), 0)

    assert [False, True, False] == [Counted(n) in ids for n in (5999, 6000, 6001)]
    assert Counted.compared <= 3 * 14


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8))
def test_a_selector_means_what_each_of_its_parts_means(ranges):
    ids = Ids(",".join(f"{first}-{last}" for first, last in ranges), 0)

    for job_id in range(33):
        assert (job_id in ids) == any(first <= job_id <= last for first, last in ranges)
