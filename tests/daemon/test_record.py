"""Jobs as the API shows them."""

import shlex
from pathlib import Path

import msgspec
import pytest
from builders import FirstFit, InOrder, Rig, Script, counters, job, platform, reason, sampled

from iodaemon.core.job import LIVE, SUSPENDED, Exit, JobState
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.daemon.http.record import job_record, load_line, output_path, shell_code

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
