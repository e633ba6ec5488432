"""Jobs as the API shows them; docs/api.md, the daemon and the client agree."""

import re
import shlex
import typing
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from builders import FirstFit, InOrder, Rig, Script, counters, job, platform, reason, sampled
from served import Served

from iodaemon.api import model
from iodaemon.core.job import LIVE, SUSPENDED, Exit, JobState, ScratchRequest
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.daemon.http.record import job_record, load_line, output_path, shell_code
from iodaemon.daemon.http.route import ROUTES, SELECTOR_KEYS
from iodaemon.daemon.http.routes import hints
from iodaemon.daemon.http.submission import SubmittedJob

OUTPUTS = Path("/state/output")


def record(made, now_s=100.0):
    state = State(platform(2, 2))
    state.add(made)
    return job_record(made, state, now_s, OUTPUTS)


@pytest.mark.parametrize("state", sorted(JobState))
def test_a_job_in_any_state_can_be_shown(state):
    shown = record(job(1, state=state, at_s=50.0))

    assert (str(state), state.code) == (shown["state"], shown["code"])
    assert (shown["shell_code"] is None) == (not state.is_final)
    assert (shown["predicted"] is None) == state.is_final
    assert (shown["slots"] != []) == (state in LIVE)


def test_a_job_that_only_the_journal_knows_is_shown_as_it_ended():
    ended = job(1, state=JobState.FAILED, exit=Exit(code=3), reason=reason(), attempt=2)

    shown = job_record(ended, None, 100.0, OUTPUTS)

    assert (3, 3, None) == (shown["exit_code"], shown["shell_code"], shown["signal"])
    assert "/state/output/1.2" == shown["stdout"]


@pytest.mark.parametrize("kind", ["io", "user"])
def test_the_present_suspension_counts_from_its_beginning(kind):
    made = job(
        1, state=JobState(f"SUSPENDED_{kind.upper()}"), at_s=40.0, **{f"suspended_{kind}_s": 5.0}
    )

    assert 65.0 == record(made)[f"suspended_{kind}_s"]


@pytest.mark.parametrize("stopped", sorted(SUSPENDED))
def test_what_stands_still_moves_nothing_whatever_the_last_slice_says(rig, stopped):
    rig.run(job(1))
    rig.regulate(1.0)
    rig.regulate(2.0)
    moved = job_record(rig.job(1), rig.state, 2.0, OUTPUTS)["bandwidth"]
    made = msgspec.structs.replace(rig.job(1), state=stopped)

    shown = job_record(made, rig.state, 2.0, OUTPUTS)["bandwidth"]

    assert (1e6, 0.0, 0.0) == (
        moved["read_bytes_per_s"],
        shown["read_bytes_per_s"],
        shown["written_bytes_per_s"],
    )


@pytest.mark.parametrize(
    ("state", "end", "expected"),
    [
        (JobState.COMPLETED, Exit(code=0), 0),
        (JobState.FAILED, Exit(code=7), 7),
        (JobState.FAILED, Exit(signal=9), 137),
        (JobState.TIMEOUT, Exit(signal=15), 124),
        (JobState.TIMEOUT, None, 124),
        (JobState.LOST, Exit(), 1),
        (JobState.CANCELLED, None, 1),
        (JobState.CANCELLED, Exit(signal=15), 143),
        (JobState.FAILED, None, 1),
        (JobState.FAILED, Exit(code=0), 1),  # it was asked to end, for what it took, and did
        (JobState.RUNNING, None, None),
    ],
)
def test_the_code_that_wait_returns(state, end, expected):
    assert expected == shell_code(job(1, state=state, exit=end))


def test_a_suspend_on_its_way_carries_dots():
    shown = record(job(1, state=JobState.RUNNING, io_hold=True, freeze_asked=True))

    assert ("RUNNING", "SUSPENDED_IO...") == (shown["state"], shown["state_shown"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"attempt": 0}, [None, None]),
        ({"attempt": 2}, ["/state/output/7.2", "/state/output/7.2"]),
        ({"cwd": "/w", "stdout": "o.%j"}, ["/w/o.7", "/w/o.7"]),
        ({"cwd": "/w", "stdout": "/a/%j", "stderr": "e"}, ["/a/7", "/w/e"]),
        ({"cwd": "/w", "stderr": "e"}, [None, "/w/e"]),
    ],
)
def test_where_the_output_is(fields, expected):
    found = [output_path(job(7, **fields), OUTPUTS, name) for name in ("stdout", "stderr")]

    assert expected == [None if path is None else str(path) for path in found]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/opt/bin/solve x", "solve"),
        ("bash -l ./runs/night_7.sh -c", "night_7.sh"),
        ("python3.11 -W ignore train_2.py", "train_2.py"),
        ("nice -n 5 python -u a.py", "a.py"),
        ("srun -n 4 ./solve", "solve"),
        ("sh -c 'cd a && ./solve | tee log'", "solve"),
        ("sh -c 'echo hello'", "sh"),
        ("python -m http.server", "python -m http.server"),
        ("python -c 'print(1)'", "python"),
        ("bash", "bash"),
        ("compute=5s read=1GiB", "compute=5s"),
        ("env -i", "env"),
    ],
)
def test_a_job_without_a_name_is_called_by_its_script(line, name):
    command = tuple(shlex.split(line))

    assert name == record(job(command=command))["name"]
    assert "given" == record(job(command=command, name="given"))["name"]


def test_the_load_line_counts_jobs_slots_and_bytes():
    """After some timeslices in which each job read 100 and wrote 10 bytes a second."""
    rig = Rig(State(platform(2, 2)))
    for number, state in enumerate((JobState.RUNNING, JobState.RUNNING, JobState.HELD), 1):
        rig.state.add(job(number, state=state))
    for second in range(4):
        moved = counters(second * 100, second * 10)
        rig.step(sampled(float(second), {made.id: moved for made in rig.state.live}))
    rules = Rules(name="mine", admission=InOrder(), placement=FirstFit(), regulation=Script())

    line = load_line(rig.state, rules)

    expected = {"policy": "mine", "timeslice_s": 1.0, "io_bound_bytes_per_s": None, "slots": 4}
    expected |= {"slots_free": 2, "read_bytes_per_s": 200.0, "written_bytes_per_s": 20.0}
    assert expected.items() <= line.items()
    assert [2, 1, 0] == [line["states"][state] for state in ("RUNNING", "HELD", "LOST")]


API = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
ROW = re.compile(r"^\| `(GET|POST) ([^`?]+)`((?:, `/[^`]+`)*) \| (.*?) \|", re.MULTILINE)

# -- requests --------------------------------------------------------------------------------------


def rows():
    """The table: by request, what its rows say of query and body."""
    found = {}
    for method, path, others, asked in ROW.findall(API):
        folder = path.rpartition("/")[0].removesuffix("/scratch")
        for each in [path, *(folder + other for other in re.findall(r"`(/[^`]+)`", others))]:
            request = f"{method} {each.replace('/ID', '/{id}')}"
            found[request] = f"{found.get(request, '')} {asked}"
    return found


def test_every_request_has_its_row_and_every_row_its_request(tmp_path):
    with closing(Served(tmp_path)) as served:
        declared = {f"{route.method} {route.path}" for route in served.server.routes}

    assert declared - {"GET /v1/openapi.json"} == set(rows())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_key_of_a_query_and_of_a_body_is_in_its_row(route):
    told = rows()[f"{route.method} {route.path}"]
    known = set(re.findall(r"`(?:\{\")?(\w+)", told)) | set(re.findall(r'"(\w+)":', told))
    known |= {*SELECTOR_KEYS} if "SELECTOR" in told else set()

    assert set() == {*route.query, *getattr(route.body, "__struct_fields__", ())} - known


@pytest.mark.parametrize(
    ("paragraph", "declared"),
    [("SPEC", SubmittedJob), ("SCRATCH, the space", ScratchRequest), ("RUN", hints.ImportedRun)],
)
def test_what_a_body_may_have_is_told_and_nothing_else(paragraph, declared):
    told = re.search(rf"(?:^|\. ){paragraph}[^:]*: (.*?)\n\n", API, re.DOTALL | re.MULTILINE)[1]
    choices = {"wait", "slow", "fail", "success", "always"}  # of fallback and output_on

    assert set(declared.__struct_fields__) == set(re.findall(r"`(\w+)`", told)) - choices


# -- answers ---------------------------------------------------------------------------------------


def words(name):
    """The keys of an object that is told as ``NAME: `key key{...} ...```."""
    text = re.search(rf"\b{name}: `([^`]*)`", API)[1]
    return re.sub(r"\{[^}]*\}", "", text).split()


def inner(name):
    """The keys in braces after a word of JOB."""
    return re.search(rf"\b{name}\{{([^}}]*)\}}", API)[1].split(",")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("JOB", model.Job),
        ("HINT", model.Hint),
        ("SUM", model.KeyedSum),
        ("EVIDENCE", model.Evidence),
        ("LESSON", model.Lesson),
        ("LIMIT", model.LimitState),
        ("TRIAL", model.TrialStep),
        ("CHANGE", model.Changed),
    ],
)
def test_an_object_of_an_answer_has_the_keys_that_are_told(name, shape):
    assert sorted(typing.get_type_hints(shape)) == sorted(words(name))


@pytest.mark.parametrize(
    "name", ["reason", "bandwidth", "predicted", "expected", "phase", "scratch"]
)
def test_what_is_told_in_braces_are_the_keys_of_that_part_of_a_job(name):
    """That the daemon makes all of them, and no others: tests/references/test_routes.py."""
    assert inner(name) == list(typing.get_type_hints(getattr(model, name.title())))
