"""What is small when it is submitted and large when it is passed on, or the other way round."""

import json
import subprocess

import pytest
from builders import platform
from decoding import decode_submission
from served import Served

from iodaemon.core.job import TierName
from iodaemon.core.limits import Sharing
from iodaemon.core.storage import Tier
from iodaemon.daemon.http.room import LONGEST_WORD_BYTES
from iodaemon.daemon.http.submission import (
    LONGEST_PIECE_BYTES,
    decode_in_steps,
    environment_key,
)
from iodaemon.errors import RequestError

MACHINE = platform(2, 4)


def submit(environment=None, **fields):
    body = {"jobs": [{"command": ["x"], **fields}], "environment": environment or {}}
    return decode_submission(json.dumps(body).encode(), MACHINE)


def refusal(environment=None, **fields):
    with pytest.raises(RequestError) as caught:
        submit(environment, **fields)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- paths that grow -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stdout", "stderr", "cwd"])
@pytest.mark.parametrize("path", ["/" + "%j" * 216, "/" + "%j" * 1_000_000, "/" + "ä" * 2048])
def test_a_path_is_no_longer_than_the_kernel_takes_once_it_has_the_number(name, path):
    told = refusal(**{name: path})

    assert told.startswith(f"{name} is longer than the 4095 bytes of a path")


@pytest.mark.parametrize("name", ["stdout", "stderr", "cwd"])
def test_the_longest_path_is_taken(name):
    for path in ("/" + "%j" * 215, "/" + "a" * 4094):
        assert path == getattr(submit(**{name: path}).jobs[0], name)


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
    ],
    ids=["word", "umlauts", "variable", "words", "variables", "together"],
)
def test_what_linux_would_not_execute_is_refused(environment, command, told):
    assert told in refusal(environment, command=command)


def test_what_linux_executes_is_taken():
    submission = submit({"A": "a" * 131_069}, command=["a" * 131_071] * 14)

    assert 14 == len(submission.jobs[0].command)


def test_what_becomes_too_long_by_being_passed_on_is_refused():
    """Control characters are six bytes each on their way to the supervisor."""
    words = ["\x1f" * 100_000] * 6 + ["\x1f" * 95_000]
    head = {"environment": dict(enumerate(words))}
    with pytest.raises(RequestError, match="that can be passed on; put data into a file"):
        in_steps(json.dumps(head).encode() + b"\n" + json.dumps({"command": words}).encode())


def with_tier(command=("x",), environment=None, **paths):
    """Why a job that has its data copied is refused; None: it is not."""
    tier = Tier(name=TierName("slow"), storage=None, bandwidth_bytes_per_s=1e8)
    job = {"command": list(command), "scratch": {"size_bytes": 1, **paths}}
    head = {"environment": environment or {}}
    body = json.dumps(head).encode() + b"\n" + json.dumps(job).encode()
    try:
        list(decode_in_steps(body, MACHINE, [tier], in_lines=True))
    except RequestError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["input_path", "output_path"])
def test_where_data_is_copied_from_and_to_counts_in_bytes(name):
    for path in ("/" + "ä" * 2048, "/" + "a" * 4095):
        assert f"{name} is no path: it has a NUL or is too long" in with_tier(**{name: path})
    for path in ("/" + "ä" * 2047, "/" + "a" * 4094, "/" + "%j" * 2047):
        assert with_tier(**{name: path}) is None


@pytest.mark.parametrize("names", [["input_path"], ["input_path", "output_path"]])
def test_where_data_is_copied_from_and_to_is_in_the_environment_and_counts_there(names):
    paths = dict.fromkeys(names, "/" + "a" * 4000)
    words = ["a" * 131_071] * 15 + ["b" * (131_072 - 1000)]

    assert "command and environment are larger than" in with_tier(words, **paths)
    assert with_tier(words, **dict.fromkeys(names, "/a")) is None


def test_where_data_is_copied_from_and_to_is_passed_on_as_well():
    """Control characters are six bytes each then, and both are passed on twice."""
    words = ["\x1f" * 100_000] * 6 + ["\x1f" * 88_000]
    environment = {str(n): word for n, word in enumerate(words)}
    paths = dict.fromkeys(("input_path", "output_path"), "/" + "\x1f" * 4000)

    assert "that can be passed on" in with_tier(words, environment, **paths)
    assert with_tier(words, environment, input_path="/a") is None


def test_the_bounds_are_those_of_this_kernel():
    """Words at the bound are executed here, longer ones are not."""
    subprocess.run(["/bin/true", "a" * LONGEST_WORD_BYTES], check=True)
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true", "a" * (LONGEST_WORD_BYTES + 1)], check=False)


def test_the_key_of_an_environment_is_too_long_to_meet_another_ones():
    assert 4 * len(environment_key({"A": "1"})) >= 128


# -- what is decoded -------------------------------------------------------------------------------


@pytest.mark.parametrize("in_lines", [False, True])
def test_no_more_is_decoded_in_one_go_than_takes_a_moment(in_lines):
    body = b'{"jobs":[{"command":["' + b"a" * LONGEST_PIECE_BYTES + b'"]}]}'
    body = b"{}\n" + body if in_lines else body
    with pytest.raises(RequestError, match=f"{LONGEST_PIECE_BYTES} are the most"):
        list(decode_in_steps(body, MACHINE, in_lines=in_lines))


def in_steps(body, **options):
    """The submission, and in how many steps it was decoded."""
    steps, count = decode_in_steps(body, MACHINE, in_lines=True, **options), 1
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count


LINE = b'{"command":["/usr/bin/solve","--input","/scratch/data/mesh_000001.dat"],"cwd":"/home/me"}'


def test_a_large_submission_is_decoded_and_checked_in_many_steps():
    submission, steps = in_steps(b'{"environment":{"A":"1"}}\n' + b"\n".join([LINE] * 10_000))

    assert (10_000, {"A": "1"}) == (len(submission.jobs), submission.environment)
    assert steps >= 10_000 // 500 + 10_000 * len(LINE) // 2**18


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "0 jobs in one submission"),
        (b"{}", "0 jobs in one submission"),
        (b"{}\n" * 5, "job 1: 'command' is missing"),
        (b"[]\n" + LINE, "the first line must be an object"),
        (b'{"jobs":[]}\n' + LINE, "there is no 'jobs'"),
        (b"{}\n" + LINE + b"\n\n" + LINE, "job 2: the job is no JSON"),
        (b"{}" + b"\n{}" * 100_001, "100001 jobs in one submission; send 1 to 100000"),
    ],
    ids=range(7),
)
def test_lines_that_are_no_submission_are_refused(body, told):
    with pytest.raises(RequestError) as caught:
        in_steps(body)

    assert told in str(caught.value)


def test_a_limit_is_held_against_it_before_any_job_is_looked_at():
    def admit(cpus):
        raise RequestError(f"{len(cpus)} are too many")

    with pytest.raises(RequestError, match="3 are too many"):
        in_steps(b"{}\n" + b"\n".join([b'{"command":[""]}'] * 3), admit=admit)


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path, sharing=Sharing(max_queued=250))
    yield served
    served.close()


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
