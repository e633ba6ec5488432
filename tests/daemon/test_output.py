"""A job's output: what is sent of it, and which of it is old or of a job that nobody knows."""

import contextlib
import errno
import math
import os
import socket
import subprocess
import threading
from contextlib import closing
from itertools import product

import pytest
from builders import job
from harness import until
from process import READY_S, daemon, wait_until
from served import Served
from stuck_exec import OPEN, silent_file_system

from iodaemon.core.job import DiskId, JobId, JobState, Share, TierName
from iodaemon.daemon.http import output
from iodaemon.daemon.outputs import find_old_outputs, find_running, find_strangers, highest_job
from iodaemon.errors import JournalError
from iodaemon.node.sampler.proc_files import find_state
from iodaemon.supervisor.ledger import EXEC, Key, Record, open_ledger


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with closing(Served(tmp_path_factory.mktemp("output"))) as served:
        yield served


def logs(served, job_id, **query):
    return b"".join(served.client.logs(job_id, **query))


def dechunked(body):
    """The bytes of a chunked body."""
    data = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        data, body = data + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return data


# -- what is sent ----------------------------------------------------------------------------------


def test_the_output_is_the_files_bytes(served):
    job_id = served.ended()
    served.output(job_id, bytes(range(256)) * 4000)

    for query in ({}, {"stream_name": "stderr"}, {"follow": True}):
        assert bytes(range(256)) * 4000 == logs(served, job_id, **query)


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


def test_output_is_followed_until_the_job_has_ended(served):
    job_id = served.running()
    path = served.output(job_id, b"one\n")
    assert b"one\n" == logs(served, job_id)
    pieces = served.client.logs(job_id, follow=True)

    assert b"one\n" == next(pieces)
    with path.open("ab") as file:
        file.write(b"two")
    assert b"two" == next(pieces)
    with path.open("ab") as file:
        file.write(b"three")
    served.client.cancel(job_id)
    assert b"three" == b"".join(pieces)


@pytest.mark.parametrize("starts", [True, False])
def test_a_job_that_waits_can_be_followed_to_its_end(served, starts):
    job_id = served.submit("compute=1000s", hold=True)
    received = []
    thread = threading.Thread(
        target=lambda: received.extend(served.client.logs(job_id, follow=True))
    )
    thread.start()
    assert wait_until(lambda: served.handlers() > 0)
    if starts:
        served.client.resume(job_id)
        served.until(lambda: served.state.jobs[JobId(job_id)].attempt == 1)
        served.output(job_id, b"at last")
    served.client.cancel(job_id)
    thread.join()

    assert [b"at last"] * starts == received


def test_what_follows_a_job_ends_where_its_output_begins_again(served):
    job_id = served.running()
    served.output(job_id, b"first run\n")
    pieces = served.client.logs(job_id, follow=True)
    first = next(pieces)

    served.client.requeue(job_id)
    rest = b"".join(pieces)

    assert b"first run\n" == first + rest
    served.until(lambda: served.state.jobs[JobId(job_id)].state == "RUNNING")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "does not exist (any more)"),
        ({"stdout": "/nowhere/at/all"}, "does not exist (any more)"),
        ({"stdout": "/dev/null"}, "no regular file"),
        ({"stdout": "/proc"}, "no regular file"),
        ({"stdout": "/etc/passwd/x"}, "Not a directory"),
        ({"stdout": "pipe"}, "no regular file"),
    ],
)
def test_output_that_cannot_be_read_is_refused_with_the_reason(served, tmp_path, fields, expected):
    """Reading a pipe would wait for a writer, in one of the few threads that read files."""
    os.mkfifo(tmp_path / "pipe")
    job_id = served.ended(**fields, cwd=str(tmp_path))

    for _ in range(10):
        status, code, message = served.ask("GET", f"/v1/jobs/{job_id}/logs").error
        assert (400, "refused") == (status, code)
        assert expected in message


def test_output_that_shrinks_or_grows_while_it_is_sent_does_no_harm(served):
    job_id = served.ended()
    path = served.output(job_id, b"x" * 3_000_000)
    pieces = served.client.logs(job_id)
    first = next(pieces)
    path.write_bytes(b"y")
    shrunk = first + b"".join(pieces)
    path.write_bytes(b"x" * 3_000_000)
    grown = 0
    for piece in served.client.logs(job_id):
        grown += len(piece)
        with path.open("ab") as file:
            file.write(b"y" * 2 * len(piece))

    assert first.startswith(b"x")
    assert len(shrunk) <= 3_000_000 == grown


# -- the last lines --------------------------------------------------------------------------------


@contextlib.contextmanager
def file_of(data):
    """Its descriptor."""
    fd = os.memfd_create("output")
    try:
        os.pwrite(fd, data, 0)
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 4, 7])
def test_the_last_lines_are_those_that_tail_prints_whatever_the_block(monkeypatch, piece_bytes):
    monkeypatch.setattr(output, "_PIECE_BYTES", piece_bytes)
    for letters in (each for size in range(8) for each in product(b"a\n", repeat=size)):
        data = bytes(letters)
        with file_of(data) as fd:
            for lines in (0, 1, 2, 3, 5, 10**30):
                expected = b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
                assert expected == data[output._search(fd, len(data), lines) :], (data, lines)


def test_terabytes_of_nothing_are_searched_no_longer_than_other_output(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 2**41)

    assert 2**41 - output.LONGEST_TAIL_BYTES == output._find_tail(path, 2**41, 10)


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
@pytest.mark.parametrize(
    ("answers", "query"),
    [*zip([*range(8), math.inf], 3 * [b"", b"?tail=1", b"?follow=1"], strict=True)],
)
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
def test_a_daemon_ends_while_a_disk_with_output_does_not_answer(tmp_path, silent):
    """Its last process does when the kernel lets it."""
    files, _ = silent
    with daemon(tmp_path / "state", tmp_path / "run") as (client, process):
        [job_id] = client.submit([{"command": ["exit=0"], "stdout": files.path}], {})
        client.wait([job_id])
        files.mute_after = 4  # it is found and opened, and then read
        with socket.socket(socket.AF_UNIX) as leaves:
            leaves.connect(client.socket_path)
            leaves.sendall(ASK % (job_id, b""))
            assert wait_until(lambda: files.is_waited_for)
        process.terminate()
        until(lambda: find_state(process.pid) == "Z", "the end of its first thread")
        files.let_go()

        assert 0 == process.wait(READY_S)


HERE, ABOVE = os.getpid(), os.getppid()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], 0),
        (["1.1", "12.3", "9.1"], 12),
        (["1.1", "13.1.report"], 13),
        (["lost+found", "x.1", "7.y", "7", ".12.1"], 0),
        (["3.1", f"{2**62}.1", f"{10**30}.1"], 3),
    ],
)
def test_the_highest_id_is_that_of_an_output_of_a_job(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).write_text("it\n")
    (tmp_path / "99.1").touch()  # that of a start which was prepared and never written down

    assert expected == highest_job(tmp_path, [])


@pytest.fixture
def ledger(tmp_path):
    ledger = open_ledger(str(tmp_path / "ledger"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for key, pid in ((Key(4, 1), HERE), (Key(5, 2), ABOVE), (Key(6, 1), ended.pid)):
        os.write(ledger.fd, Record(EXEC, key, pid, values=(1, 1)).pack())
    yield ledger
    os.close(ledger.fd)


def test_whoever_runs_and_no_job_stands_for_is_a_stranger(tmp_path, ledger):
    waits = job(5, state=JobState.PENDING, attempt=1)  # it takes up its next attempt
    runs = job(4, state=JobState.RUNNING, attempt=1)

    running = find_running(tmp_path)
    (tmp_path / "2.1").touch()
    assert 5 == highest_job(tmp_path, running)
    assert 0 == highest_job(tmp_path / "none", find_running(tmp_path / "none"))
    assert [(Key(4, 1), HERE), (Key(5, 2), ABOVE)] == find_strangers(running, [])
    assert [(Key(4, 1), HERE)] == find_strangers(running, [waits])
    assert [] == find_strangers(running, [waits, runs])


# -- output that may go ----------------------------------------------------------------------------

SHARE = Share(tier=TierName("fast"), disk=DiskId("/fast"), size_bytes=1)


def make(outputs, name, ended_s):
    outputs.mkdir(exist_ok=True)
    (outputs / name).write_text("words")
    os.utime(outputs / name, (ended_s, ended_s))


def found(outputs, records=()):
    by_id = {each.id: each for each in records}
    return find_old_outputs(outputs, 100.0, by_id.get)


def test_a_report_goes_with_the_output_it_is_of(tmp_path):
    for name, ended_s in (
        ("1.1", 99.0),
        ("1.1.report", 101.0),
        ("2.1.report", 99.0),
        ("3.1", 100.0),
    ):
        make(tmp_path, name, ended_s)

    assert [Key(2, 1)] == found(tmp_path)


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({"state": JobState.FAILED, "at_s": 99.0}, False),
        ({"state": JobState.FAILED, "at_s": 100.0}, True),
        ({"state": JobState.FAILED, "at_s": 99.0, "shares": (SHARE,)}, True),
        ({"state": JobState.RUNNING, "at_s": 9.0}, True),
    ],
)
def test_output_stays_as_long_as_the_record_of_its_job_whatever_time_it_has(
    tmp_path, fields, is_kept
):
    make(tmp_path, "1.1", 1.0)

    assert ([] if is_kept else [Key(1, 1)]) == found(tmp_path, [job(1, **fields)])


class Damaged:
    """An entry whose inode the disk cannot read."""

    name = "3.1"

    def stat(self, *, follow_symlinks):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_that_cannot_be_looked_at_keeps_no_other_one(tmp_path, monkeypatch):
    for name in ("1.1", "4.1"):
        make(tmp_path, name, 1.0)
    entries = [*os.scandir(tmp_path), Damaged()]
    monkeypatch.setattr(os, "scandir", lambda _: contextlib.nullcontext(entries[::-1]))

    assert [Key(1, 1), Key(4, 1)] == found(tmp_path)


def test_while_records_cannot_be_read_all_output_stays(tmp_path):
    make(tmp_path, "1.1", 1.0)

    def fail(_):
        raise JournalError("it is away")

    assert [] == find_old_outputs(tmp_path, 100.0, fail)


def test_what_is_no_output_of_a_job_is_left_alone(tmp_path):
    for name in ("keep", "1.x", "1.1.1", "1.1.report.report", ".1.1", "01.1", "-1.1"):
        make(tmp_path, name, 1.0)

    assert [] == found(tmp_path)
    assert [] == found(tmp_path / "none")
