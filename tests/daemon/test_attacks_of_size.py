"""What is small when it is submitted and large when it is passed on, or the other way round."""

import contextlib
import json
import subprocess

import pytest
from builders import platform
from decoding import decode_counted, decode_submission
from served import Served

from iodaemon.core.job import TierName
from iodaemon.core.limits import Sharing
from iodaemon.core.storage import Tier
from iodaemon.daemon.http.room import LONGEST_WORD_BYTES
from iodaemon.daemon.http.submission import LONGEST_PIECE_BYTES
from iodaemon.errors import RequestError

MACHINE = platform(2, 4)
TIER = Tier(name=TierName("slow"), storage=None, bandwidth_bytes_per_s=1e8)


def decoded(environment=None, **fields):
    """The only job of a submission in lines; the words of the refusal."""
    job = {"command": ["x"], **fields}
    body = json.dumps({"environment": environment or {}}) + "\n" + json.dumps(job)
    try:
        return decode_submission(body.encode(), MACHINE, [TIER], in_lines=True).jobs[0]
    except RequestError as error:
        return str(error)


# -- paths that grow -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stdout", "stderr", "cwd"])
def test_a_path_is_no_longer_than_the_kernel_takes_once_it_has_the_number(name):
    for path in ("/" + "%j" * 216, "/" + "%j" * 1_000_000, "/" + "ä" * 2048):
        told = decoded(**{name: path})
        assert told.startswith(f"{name} is longer than the 4095 bytes of a path")
    for path in ("/" + "%j" * 215, "/" + "a" * 4094):
        assert path == getattr(decoded(**{name: path}), name)


# -- what can be executed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "command", "told"),
    [
        ({}, ["x", "a" * 131_072], "a word of the command is longer than the 131071 bytes"),
        ({}, ["x", "ä" * 65_536], "a word of the command is longer than the 131071 bytes"),
        ({"A": "a" * 131_070}, ["x"], "environment variable 'A' is longer than the 131071 bytes"),
        ({}, ["a"] * 300_000, "command and environment are larger than 2097152 bytes"),
        ({str(n): "" for n in range(200_000)}, ["x"], "command and environment are larger than"),
        ({str(n): "a" * 100_000 for n in range(10)}, ["a" * 100_000] * 11, "are larger than"),
        (  # control characters are six bytes each on their way to the supervisor
            {str(n): "\x1f" * size for n, size in enumerate([100_000] * 6 + [95_000])},
            ["\x1f" * 100_000] * 6 + ["\x1f" * 95_000],
            "that can be passed on; put data into a file",
        ),
    ],
    ids=["word", "umlauts", "variable", "words", "variables", "together", "passed on"],
)
def test_what_linux_would_not_execute_or_the_supervisor_not_take_is_refused(
    environment, command, told
):
    refusal = decoded(environment, command=command)

    assert told in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("names", [["input_path"], ["output_path"], ["input_path", "output_path"]])
def test_where_data_is_copied_from_and_to_counts_in_bytes_and_is_in_the_environment(names):
    def given(path, command=("x",)):
        """The job, or why it is refused."""
        scratch = {"size_bytes": 1, **dict.fromkeys(names, path)}
        return decoded({"A": "a" * 131_069}, command=list(command), scratch=scratch)

    for path in ("/" + "ä" * 2048, "/" + "a" * 4095):
        assert f"{names[0]} is no path: it has a NUL or is too long" in given(path)
    for path in ("/" + "ä" * 2047, "/" + "a" * 4094, "/" + "%j" * 2047):
        assert path == getattr(given(path).scratch, names[0])
    words = ["a" * 131_071] * 14 + ["b" * (131_072 - 1000)]
    assert "command and environment are larger than" in given("/" + "a" * 4000, words)
    assert 15 == len(given("/a", words).command)


def test_the_bounds_are_those_of_this_kernel():
    """Words at the bound are executed here, longer ones are not."""
    subprocess.run(["/bin/true", "a" * LONGEST_WORD_BYTES], check=True)
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true", "a" * (LONGEST_WORD_BYTES + 1)], check=False)


# -- what is decoded -------------------------------------------------------------------------------


LINE = b'{"command":["/usr/bin/solve","--input","/scratch/data/mesh_000001.dat"],"cwd":"/home/me"}'


def test_a_large_submission_is_decoded_and_checked_in_many_steps():
    body = b'{"environment":{"A":"1"}}\n' + b"\n".join([LINE] * 10_000)
    submission, steps = decode_counted(body, MACHINE, in_lines=True)

    assert (10_000, {"A": "1"}) == (len(submission.jobs), submission.environment)
    assert steps >= 10_000 // 500 + 10_000 * len(LINE) // 2**18


LARGE = b'{"jobs":[{"command":["' + b"a" * LONGEST_PIECE_BYTES + b'"]}]}'


@pytest.mark.parametrize(
    ("body", "in_lines", "told"),
    [
        (LARGE, False, f"{LONGEST_PIECE_BYTES} are the most"),
        (b"{}\n" + LARGE, True, f"{LONGEST_PIECE_BYTES} are the most"),
        (b"", True, "0 jobs in one submission"),
        (b"{}", True, "0 jobs in one submission"),
        (b"{}\n" * 5, True, "job 1: 'command' is missing"),
        (b"[]\n" + LINE, True, "the first line must be an object"),
        (b'{"jobs":[]}\n' + LINE, True, "there is no 'jobs'"),
        (b"{}\n" + LINE + b"\n\n" + LINE, True, "job 2: the job is no JSON"),
        (b"{}" + b"\n{}" * 100_001, True, "100001 jobs in one submission; send 1 to 100000"),
    ],
    ids=range(9),
)
def test_what_is_too_large_a_piece_and_lines_that_are_no_submission_are_refused(
    body, in_lines, told
):
    with pytest.raises(RequestError) as caught:
        decode_submission(body, MACHINE, in_lines=in_lines)

    assert told in str(caught.value)


def test_a_limit_is_held_against_it_before_any_job_is_looked_at():
    def admit(cpus):
        raise RequestError(f"{len(cpus)} are too many")

    body = b"{}\n" + b"\n".join([b'{"command":[""]}'] * 3)
    with pytest.raises(RequestError, match="3 are too many"):
        decode_submission(body, MACHINE, in_lines=True, admit=admit)


@pytest.fixture
def served(tmp_path):
    with contextlib.closing(Served(tmp_path, sharing=Sharing(max_queued=250))) as served:
        yield served


def test_the_client_sends_many_jobs_one_a_line_all_of_them_or_none(served):
    held = {"command": ["x"], "hold": True}

    assert 200 == len(served.client.submit([held] * 200, {"A": "1"}))
    with pytest.raises(RequestError, match="max_queued"):
        served.client.submit([held] * 51, {})
    with pytest.raises(RequestError, match="job 2 of 2: the command is empty"):
        served.client.submit([held, {"command": [""]}], {})
    assert 200 == len(served.client.jobs()["jobs"])


def test_other_requests_are_answered_while_a_large_submission_is_decoded(served):
    """Not by the clock: an answer comes in the middle of it."""
    body = b"{}\n" + b"\n".join([LINE] * 99_999 + [b'{"command":[""]}'])
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += b"Content-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n" % len(body)
    with served.raw() as large:
        large.sendall(head + body)
        answered = 0
        large.setblocking(False)
        while True:
            try:
                told = large.recv(1 << 16)
                break
            except BlockingIOError:
                assert 200 == served.ask("GET", "/v1/mode").status
                answered += 1

    assert b"(max_queued)" in told
    assert answered >= 2


def test_a_request_that_is_no_submission_is_small(served):
    body = b'{"ids":[' + b"1," * 4_200_000 + b"1]}"

    assert "8388608 are the most" in served.ask("POST", "/v1/wait", body).error[2]
