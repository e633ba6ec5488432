"""Output from its end, in lines, without reading all of it."""

import contextlib
import math
import os
import socket
import threading

import pytest
from exploring import tries
from harness import until
from hypothesis import given, settings
from hypothesis import strategies as st
from process import READY_S, daemon, wait_until
from served import Served
from stuck_exec import OPEN, silent_file_system

from iodaemon.core.job import JobId
from iodaemon.daemon.http import output
from iodaemon.node.sampler.proc_files import find_state

PIECE = output._PIECE_BYTES


@contextlib.contextmanager
def file_of(data):
    """Its descriptor."""
    fd = os.memfd_create("output")
    try:
        os.pwrite(fd, data, 0)
        yield fd
    finally:
        os.close(fd)


def tail(data, lines):
    with file_of(data) as fd:
        return data[output._search(fd, len(data), lines) :]


def expected_tail(data, lines):
    """What tail(1) prints."""
    return b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""


@pytest.mark.parametrize(
    ("data", "lines", "expected"),
    [
        (b"", 0, b""),
        (b"", 1, b""),
        (b"", 10, b""),
        (b"one\ntwo\n", 0, b""),
        (b"one\ntwo\n", 1, b"two\n"),
        (b"one\ntwo\n", 2, b"one\ntwo\n"),
        (b"one\ntwo\n", 3, b"one\ntwo\n"),
        (b"one\ntwo\n", 10**30, b"one\ntwo\n"),
        (b"one\ntwo", 1, b"two"),
        (b"one\ntwo", 2, b"one\ntwo"),
        (b"one", 1, b"one"),
        (b"\n", 1, b"\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"one\n\ntwo\n", 2, b"\ntwo\n"),
    ],
)
def test_so_many_lines_from_the_end(data, lines, expected):
    assert expected == tail(data, lines)


LONG = b"x" * (PIECE + 7)


@pytest.mark.parametrize(
    "data",
    [
        LONG,
        LONG + b"\n",
        LONG + b"\n" + LONG,
        LONG + b"\n" + LONG + b"\n",
        b"one\n" + b"x" * (PIECE - 1) + b"\n",
        b"one\n" + b"x" * (PIECE - 2) + b"\n",
        b"one\n" + b"x" * PIECE,
        b"\n" * (PIECE + 3),
        b"line\n" * (PIECE // 2),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("lines", [0, 1, 2, 3, PIECE])
def test_lines_longer_than_a_block_are_found_as_well(data, lines):
    assert expected_tail(data, lines) == tail(data, lines)


@settings(deadline=None, max_examples=tries(300))
@given(st.lists(st.binary(max_size=5), max_size=12), st.integers(0, 15), st.integers(1, 9))
def test_the_blocks_make_no_difference(parts, lines, piece_bytes):
    data = b"\n".join(part.replace(b"\r", b"").replace(b"\n", b"") for part in parts)
    whole = tail(data, lines)
    usual, output._PIECE_BYTES = output._PIECE_BYTES, piece_bytes
    try:
        in_blocks = tail(data, lines)
    finally:
        output._PIECE_BYTES = usual

    assert whole == in_blocks
    assert whole.count(b"\n") <= lines


def dechunked(body):
    """The bytes of a chunked body."""
    data = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        data, body = data + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return data


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("output"))
    yield served
    served.close()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", b"a\nb\nc"),
        ("?tail=0", b""),
        ("?tail=1", b"c"),
        ("?tail=2", b"b\nc"),
        ("?tail=99", b"a\nb\nc"),
        ("?tail=2&follow=1", b"b\nc"),
        ("?tail=1&stream=stderr", b"c"),
        ("?begin=0", b"a\nb\nc"),
        ("?begin=3", b"\nc"),
        ("?begin=5&follow=1", b""),
        ("?begin=6", b"a\nb\nc"),
    ],
)
def test_a_part_of_a_jobs_output_and_where_it_begins(served, query, expected):
    job_id = served.ended()
    served.output(job_id, b"a\nb\nc")

    answer = served.ask("GET", f"/v1/jobs/{job_id}/logs{query}")

    assert 200 == answer.status
    assert expected == dechunked(answer.body)
    assert f"Output-Begin: {5 - len(expected)}\r\n" in answer.head + "\r\n"


def test_what_follows_a_job_ends_where_its_output_begins_again(served):
    job_id = served.running()
    served.output(job_id, b"first run\n")
    pieces = served.client.logs(job_id, follow=True)
    first = next(pieces)

    served.client.requeue(job_id)
    rest = b"".join(pieces)

    assert b"first run\n" == first + rest
    served.until(lambda: served.state.jobs[JobId(job_id)].state == "RUNNING")


def test_only_the_output_that_is_no_file_of_its_submitters_is_kept_for_a_time(served):
    own, given = served.ended(), served.ended(stdout="/tmp/out.%j")

    kept = [served.client.job(job_id)["output_kept_s"] for job_id in (own, given)]

    assert [7776000.0, None] == kept


def test_output_that_shrinks_or_grows_while_it_is_sent_does_no_harm(served):
    job_id = served.ended()
    path = served.output(job_id, b"x" * 3_000_000)
    pieces = served.client.logs(job_id)
    first = next(pieces)
    path.write_bytes(b"y")

    rest = b"".join(pieces)

    assert first.startswith(b"x")
    assert len(first) + len(rest) <= 3_000_000


def test_a_file_that_grows_faster_than_it_is_read_is_sent_as_far_as_it_went(served):
    job_id = served.running()
    path = served.output(job_id, b"x" * 3_000_000)
    received = 0
    for piece in served.client.logs(job_id):
        received += len(piece)
        with path.open("ab") as file:
            file.write(b"y" * 2 * len(piece))

    assert 3_000_000 == received


@pytest.mark.parametrize("lines", [1, 10, 10**30])
def test_what_has_no_lines_is_searched_so_far_and_no_further(monkeypatch, lines):
    monkeypatch.setattr(output, "LONGEST_TAIL_BYTES", 3 * PIECE + 5)
    read, asked = os.pread, []
    monkeypatch.setattr(os, "pread", lambda fd, *place: asked.append(place) or read(fd, *place))
    with file_of(b"first\n" + b"\0" * (10 * PIECE)) as fd:
        begin = output._search(fd, 10 * PIECE + 6, lines)

    assert 7 * PIECE + 6 - 5 == begin == min(at for _, at in asked)
    assert 3 * PIECE + 5 == sum(size for size, _ in asked)


def test_terabytes_of_nothing_are_searched_no_longer_than_other_output(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 2**41)
    begin = output._find_tail(path, 2**41, 10)

    assert 2**41 - output.LONGEST_TAIL_BYTES == begin


def test_a_search_holds_up_its_users_searches_and_nobody_elses_question(served, monkeypatch):
    job_id = served.ended()
    served.output(job_id, b"a\nb\n")
    searched = output._find_tail
    gate, running, most = threading.Event(), [], []

    def slow(path, *asked):
        running.append(path)
        most.append(len(running))
        assert gate.wait(20.0)
        running.remove(path)
        return searched(path, *asked)

    monkeypatch.setattr(output, "_find_tail", slow)
    asked = b"GET /v1/jobs/%d/logs?tail=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(served.raw()) for _ in range(40)]
        for connection in connections:
            connection.sendall(asked % job_id)
        try:
            served.until(lambda: most)
            others = [
                served.ask("GET", target).status
                for target in ("/v1/history", "/v1/jobs?all=1", f"/v1/jobs/{job_id}/logs")
            ]
        finally:
            gate.set()
        answers = [b"".join(iter(lambda c=c: c.recv(1 << 16), b"")) for c in connections]

    assert [200] * 3 == others
    assert all(dechunked(each.partition(b"\r\n\r\n")[2]) == b"b\n" for each in answers)
    assert {1} == set(most)


# -- a disk that does not answer -------------------------------------------------------------------

ASK = b"GET /v1/jobs/%d/logs%s HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def silent(tmp_path, served):
    """A file system that answers as often as a test lets it, and a job with its output there."""
    point = tmp_path / "silent"
    point.mkdir()
    files = silent_file_system(point, b"a\nb\n", valid_s=0)
    try:
        yield files, served.ended(stdout=files.path)
    finally:
        files.let_go()


@pytest.mark.node
@pytest.mark.parametrize("query", [b"", b"?tail=1", b"?follow=1"])
@pytest.mark.parametrize("answers", [*range(8), math.inf])
def test_whatever_a_disk_does_not_answer_holds_up_who_reads_there_alone(
    served, silent, answers, query
):
    """Each request in turn, by which the file is found, opened, read; its close always."""
    files, job_id = silent
    files.mute_after = answers
    with served.raw() as leaves:
        leaves.sendall(ASK % (job_id, query))
        assert wait_until(lambda: files.is_waited_for)
        meanwhile = served.ask("GET", "/v1/jobs").status
    until(lambda: served.handlers() == 0)
    after = served.ask("GET", "/v1/jobs").status
    files.speak()

    assert [200] * 2 == [meanwhile, after]
    files.wait_for(1)  # what was opened is closed


@pytest.mark.node
def test_what_has_not_begun_for_a_client_that_is_gone_never_begins(served, silent):
    files, job_id = silent
    files.is_mute = True
    with contextlib.ExitStack() as stack:
        for _ in range(5 * output._THREADS):
            connection = stack.enter_context(served.raw())
            connection.sendall(ASK % (job_id, b""))
        until(lambda: served.handlers() == 5 * output._THREADS)
    until(lambda: served.handlers() == 0)
    files.speak()
    files.wait_for(output._THREADS)

    assert output._THREADS == files.asked[OPEN]


@pytest.mark.node
@pytest.mark.parametrize("answers", [4, math.inf], ids=["reading", "closing"])
def test_a_daemon_ends_while_a_disk_with_output_does_not_answer(tmp_path, silent, answers):
    """Its last process does when the kernel lets it."""
    files, _ = silent
    with daemon(tmp_path / "state", tmp_path / "run") as (client, process):
        [job_id] = client.submit([{"command": ["exit=0"], "stdout": files.path}], {})
        client.wait([job_id])
        files.mute_after = answers
        with socket.socket(socket.AF_UNIX) as leaves:
            leaves.connect(client.socket_path)
            leaves.sendall(ASK % (job_id, b""))
            assert wait_until(lambda: files.is_waited_for)
        process.terminate()
        until(lambda: find_state(process.pid) == "Z", "the end of its first thread")
        files.let_go()

        assert 0 == process.wait(READY_S)
