"""What one user can have the daemon keep, in memory and in its journal."""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from builders import job, platform
from decoding import decode_submission
from hypothesis import given
from hypothesis import strategies as st
from process import command, environment, ready
from served import SHARED, Served

from iodaemon.core import state as core_state
from iodaemon.core.job import JobId, JobState, environment_bytes, job_bytes, text_bytes
from iodaemon.core.state import State
from iodaemon.daemon import environments as kept_environments
from iodaemon.daemon.environments import Environments
from iodaemon.daemon.http.answer import LINES
from iodaemon.daemon.http.submission import job_maker
from iodaemon.errors import RequestError

EMOJI = "\N{GRINNING FACE}"
HELD = {"command": ["job"], "hold": True}


@pytest.fixture
def served(tmp_path):
    with contextlib.closing(Served(tmp_path, rights=SHARED)) as served:
        yield served


# -- environments --------------------------------------------------------------------------------


def with_state(number, *, uid, key, state):
    return job(number, uid=uid, command=("x" * number,), environment_id=key, state=state)


STEPS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([JobState.PENDING, JobState.CANCELLED])),
    max_size=30,
)


@given(STEPS)
def test_an_environment_is_known_exactly_while_a_job_uses_it(steps):
    environments = Environments({}, ())
    present = {}
    for number, state in steps:
        uid, key = 1000 + number % 2, "ab"[number // 4]
        if state is JobState.PENDING:
            environments.bring(key, {"A": "12345"})
        environments.follow(with_state(number, uid=uid, key=key, state=state))
        present[number] = (uid, key)
        if state is not JobState.PENDING:
            del present[number]

        assert {key for _, key in present.values()} == {k for k in "ab" if environments.get(k)}
        for each in (1000, 1001):
            own = [(n, u, k) for n, (u, k) in present.items() if u == each]
            jobs = sum(job_bytes(with_state(n, uid=u, key=k, state=state).spec) for n, u, k in own)
            shared = len({k for _, _, k in own}) * environment_bytes({"A": "12345"})
            assert jobs + shared == environments.kept_bytes(each)


def test_one_user_has_so_much_kept_and_no_more(served, monkeypatch):
    def submit(letter):
        return served.client.submit([{**HELD, "command": ["x" * 4000]}], {"A": letter * 4000})[0]

    monkeypatch.setattr(kept_environments, "KEPT_IN_ALL_BYTES", 80_000)
    first = submit("y")
    with pytest.raises(RequestError, match="that one user may have now; submit them when some"):
        submit("z")
    served.client.cancel(first)
    again = submit("z")
    monkeypatch.setattr(kept_environments, "KEPT_IN_ALL_BYTES", 50_000)
    with pytest.raises(RequestError, match="that one user may have now"):
        served.client.requeue(first)
    served.client.cancel(again)
    served.client.requeue(first)


def test_what_a_user_takes_is_bounded_by_what_is_left_and_no_user_is_kept_out(monkeypatch):
    monkeypatch.setattr(kept_environments, "KEPT_IN_ALL_BYTES", 1200)
    kept = Environments({}, ())
    with kept.claim(2) as second:
        with kept.claim(1) as first:
            first(600)
            with pytest.raises(RequestError, match="jobs of uid 1 take 600 B"):
                first(1)
            second(300)
            with pytest.raises(RequestError):
                second(1)
        second(300)

    assert 0 == kept.kept_bytes(1) == kept.kept_bytes(2)


def test_a_job_counts_from_its_arrival_and_not_from_the_next_step(served):
    def begin_to_submit():
        driver = served.driver
        make = lambda job_id, _: job(job_id, uid=1234, command=("x" * 1000,))  # noqa: E731
        submitting = driver.submit([make], {}, "key")
        submitting.send(None)
        submitting.close()
        return driver.environments.kept_bytes(1234)

    assert served.call(begin_to_submit) > 1000


@given(st.text(max_size=200))
def test_a_text_takes_no_more_memory_than_is_counted(text):
    own = "".join(text)
    msgspec.json.encode(own)  # caches it in UTF-8

    assert sys.getsizeof(own) + 8 <= text_bytes(own)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"cwd": "/" + EMOJI + "x" * 4000, "stdout": EMOJI * 1000, "stderr": EMOJI + "z" * 4000},
        {"command": ["ab"] * 1000, "name": EMOJI * 200},
        {"command": ["python3", "train.py", "--seed", "7"], "cwd": "/home/user/project"},
    ],
    ids=["nothing", "paths", "words", "usual"],
)
def test_a_submission_takes_no_more_memory_than_is_counted(fields):
    line = json.dumps({"command": ["true"], **fields}, ensure_ascii=False)
    body = "\n".join(["{}", *[line] * 200]).encode()
    environments = Environments({}, ())
    tracemalloc.start()
    try:
        made = decode_submission(body, platform(2), in_lines=True)
        makers = [job_maker(each, 1000, "key") for each in made.jobs]
        del made
        state = State(platform(2))
        for number, make in enumerate(makers, 1):
            state.add(make(JobId(number), 1.0))
        del makers
        for each in state.jobs.values():
            environments.follow(each)
            msgspec.json.encode(each)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken_bytes < environments.kept_bytes(1000)


SMALL_DAEMON = (
    "import sys; import iodaemon.daemon.environments as kept; kept.KEPT_IN_ALL_BYTES = 2**27; "
    "from iodaemon.cli import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.node
def test_submissions_of_wide_texts_do_not_fill_the_memory_of_a_daemon(tmp_path):
    """Commands of one letter, with paths of 4 bytes a character beside them."""
    paths = {"cwd": "/" + EMOJI + "x" * 4000, "stdout": EMOJI + "y" * 4000, "stderr": EMOJI * 900}
    line = json.dumps({"command": ["a"], "hold": True, **paths}, ensure_ascii=False)
    body = "\n".join(["{}", *[line] * 600]).encode()
    place = tmp_path / "run" / "iod.sock"
    python, _, _, *words = command(tmp_path / "state", tmp_path / "run")
    daemon = subprocess.Popen(
        [python, "-c", SMALL_DAEMON, *words],
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready(daemon, place)
        before = resident_bytes(daemon.pid, "VmRSS")
        answers = [post(place, body) for _ in range(5)]
        grown = resident_bytes(daemon.pid, "VmHWM") - before
    finally:
        daemon.kill()
        daemon.wait()

    assert [201, 400, 400, 400, 400] == answers
    assert grown < 2**27


def resident_bytes(pid, field):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kib] = [line.split()[1] for line in lines if field in line]
    return 1024 * int(kib)


def post(path, body):
    """Send it as a submission in lines; the status of the answer."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    with contextlib.closing(connection):
        connection.request("POST", "/v1/jobs", body, {"Content-Type": LINES})
        return connection.getresponse().status


# -- jobs that have ended ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "kept_bytes", "first"),
    [(100, 100 * job_bytes(job(command=("x" * 100,)).spec), 101), (5000, 10_000, 193)],
    ids=["so many bytes", "the newest whatever their size"],
)
def test_of_ended_jobs_so_much_stays_in_memory(monkeypatch, size, kept_bytes, first):
    monkeypatch.setattr(core_state, "KEPT_FINISHED_BYTES", kept_bytes)
    state = State(platform(1))
    for number in range(1, 201):
        state.add(job(number, command=("x" * size,)))
        state.put(job(number, command=("x" * size,), state=JobState.CANCELLED))
    state.forget_finished()

    assert list(range(first, 201)) == sorted(state.jobs)
