"""What controllers add to a job's cgroup, on directories that look like the kernel's."""

import pytest

from iodaemon.backend.linux.control import CONTROLS, flags_of, words_of
from iodaemon.backend.linux.fence import (
    LEAST_MEMORY_BYTES,
    PRESSURE,
    confine,
    find_memory_end,
    hand_down,
    parse_memory_events,
)
from iodaemon.backend.linux.outcome import ended, orphaned
from iodaemon.core.job import Exit, IoTotals, JobId
from iodaemon.core.platform import Partition, PartitionId, Slot, SlotId
from iodaemon.daemon.launching import fence_of

ALL = ("cpuset", "io", "pids", "memory")
EVENTS = "low 0\nhigh 0\nmax 28\noom 1\noom_kill 3\noom_group_kill 1\n"
"""Of Linux 6.1, after a job of three processes took more than memory.max."""
LAUNCH = {"fence": {"cpus": [4, 5, 7], "memory_nodes": [1]}, "memory_bytes": 512 << 20}
PRESSED = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
)
STATUS = {
    "exit": {"code": None, "signal": 9},
    "io": {"read_bytes": 1, "written_bytes": 2},
    "started_s": 1.0,
    "ended_s": 2.0,
}


def cgroup(directory, **files):
    """A cgroup with these files; underscores stand for the first dots."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("_", ".", 1)).write_text(text)
    return directory


def test_what_the_jobs_got_is_what_they_have(tmp_path):
    cgroup(tmp_path)
    cgroup(tmp_path / "jobs")
    (tmp_path / "jobs/cgroup.subtree_control").write_text("cpuset cpu io memory pids\n")

    assert ALL == hand_down(str(tmp_path))


def test_each_controller_is_asked_for_at_the_top_and_among_the_jobs(tmp_path):
    for directory in (tmp_path, tmp_path / "jobs"):
        cgroup(directory)
        (directory / "cgroup.subtree_control").write_text("")

    hand_down(str(tmp_path))

    for directory in (tmp_path, tmp_path / "jobs"):  # a plain file keeps what was written last
        assert (directory / "cgroup.subtree_control").read_text() == "+memory"


def test_a_tree_without_controllers_has_pressure_at_most(tmp_path):
    jobs = cgroup(tmp_path / "jobs")
    assert () == hand_down(str(tmp_path))

    cgroup(jobs, io_pressure=PRESSED, memory_pressure=PRESSED)

    assert (PRESSURE,) == hand_down(str(tmp_path))


def test_a_job_is_fenced_and_limited_in_its_own_cgroup(tmp_path):
    names = ("cpuset.cpus", "cpuset.mems", "memory.max", "memory.swap.max", "memory.oom.group")
    for name in names:
        (tmp_path / name).touch()

    problems = confine(str(tmp_path), ALL, LAUNCH)

    written = {name: (tmp_path / name).read_text() for name in names}
    assert [] == problems
    assert {
        "cpuset.cpus": "4,5,7",
        "cpuset.mems": "1",
        "memory.max": str(512 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    } == written


@pytest.mark.parametrize(
    ("controls", "launch", "expected"),
    [
        (ALL, {}, set()),
        (ALL, {"fence": None, "memory_bytes": None}, set()),
        (
            ALL,
            {**LAUNCH, "fence": {"cpus": [1], "memory_nodes": []}},
            {"cpuset.cpus", "memory.max"},
        ),
        (("io",), LAUNCH, set()),
        (("memory",), LAUNCH, {"memory.max"}),
        (("cpuset", PRESSURE), LAUNCH, {"cpuset.cpus", "cpuset.mems"}),
    ],
)
def test_nothing_is_set_that_is_not_there_or_was_not_asked_for(
    tmp_path, controls, launch, expected
):
    names = ("cpuset.cpus", "cpuset.mems", "memory.max")
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "memory.oom.group").touch()

    assert [] == confine(str(tmp_path), controls, launch)
    assert expected == {name for name in names if (tmp_path / name).read_text()}


def test_a_limit_in_which_nothing_could_begin_is_raised(tmp_path):
    for name in ("memory.max", "memory.oom.group"):
        (tmp_path / name).touch()

    confine(str(tmp_path), ALL, {"memory_bytes": 1})

    assert str(LEAST_MEMORY_BYTES) == (tmp_path / "memory.max").read_text()


def test_what_cannot_be_set_is_named_and_the_rest_is(tmp_path):
    (tmp_path / "cpuset.mems").touch()

    problems = confine(str(tmp_path), ["cpuset"], LAUNCH)

    assert ["cpuset.cpus is not set to 4,5,7: No such file or directory"] == problems
    assert "1" == (tmp_path / "cpuset.mems").read_text()


@pytest.mark.parametrize("numbers", [["0; rm"], [None], [1.5], "x"])
def test_numbers_that_are_none_are_not_written(tmp_path, numbers):
    (tmp_path / "cpuset.cpus").touch()

    with pytest.raises((ValueError, TypeError)):
        confine(str(tmp_path), ["cpuset"], {"fence": {"cpus": numbers}})

    assert "" == (tmp_path / "cpuset.cpus").read_text()


# -- how it ended ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "killed"),
    [
        (EVENTS, 3),
        ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 2\n", 2),  # Linux 4.14, without the group
        ("low 0\nhigh 0\nmax 0\noom 1\n", None),  # before that
        (EVENTS[: EVENTS.index("3")], None),
        ("oom_kill x\n", None),
        ("", None),
    ],
)
def test_memory_events_count_the_killed(text, killed):
    assert killed == parse_memory_events(text).get("oom_kill")


def test_an_end_for_want_of_memory_is_told_with_limit_and_nodes(tmp_path):
    cgroup(tmp_path, memory_events=EVENTS, memory_max="536870912\n", cpuset_mems="1\n")

    expected = {"killed": 3, "at_limit": 1, "limit_bytes": 512 << 20, "nodes": "1"}
    assert expected == find_memory_end(str(tmp_path))


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"memory_events": EVENTS.replace("oom_kill 3", "oom_kill 0")},
        {"memory_events": ""},
    ],
)
def test_without_a_kill_there_is_nothing_to_tell(tmp_path, files):
    cgroup(tmp_path, memory_max="max\n", **files)

    assert find_memory_end(str(tmp_path)) is None
    assert find_memory_end(None) is None
    assert find_memory_end(str(tmp_path / "gone")) is None


LIMIT = {"killed": 1, "at_limit": 1, "limit_bytes": 96 << 20, "nodes": "1"}
SOCKET = {**LIMIT, "at_limit": 0, "killed": 3}
MACHINE = {**SOCKET, "nodes": "", "limit_bytes": None}


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (LIMIT, "1 process was killed: its limit of 96 MiB (--mem) was reached"),
        (
            SOCKET,
            "3 processes were killed: no memory was left on NUMA node 1, which is its socket's",
        ),
        (MACHINE, "3 processes were killed: the machine had no memory left"),
    ],
)
def test_whose_memory_ran_out_is_told_apart(memory, text):
    event = ended(JobId(1), 1, {**STATUS, "memory_end": memory}, 5.0)[-1]
    alone = orphaned(JobId(1), 1, Exit(), IoTotals(), 5.0, memory=memory)

    assert (text, True) == (event.note, event.exit.out_of_memory)
    assert (f"its shim was killed; {text}", True) == (alone.note, alone.exit.out_of_memory)


def test_a_job_that_went_on_without_the_killed_is_completed_with_a_note():
    status = {**STATUS, "exit": {"code": 0, "signal": None}, "memory_end": MACHINE}
    event = ended(JobId(1), 1, status, 5.0)[-1]

    assert not event.exit.out_of_memory
    assert "3 processes were killed" in event.note


@pytest.mark.parametrize("fields", [{}, {"memory_end": None}])
def test_any_other_kill_is_no_want_of_memory(fields):
    event = ended(JobId(1), 1, {**STATUS, **fields}, 5.0)[-1]

    assert ("", False) == (event.note, event.exit.out_of_memory)


# -- in words --------------------------------------------------------------------------------------


def test_every_control_is_told_with_and_without():
    with_all = words_of([control.name for control in CONTROLS])
    without = words_of([])

    assert with_all.keys() == without.keys()
    assert not set(with_all.values()) & set(without.values())
    rest = dict.fromkeys(("io", "memory", "pids", "pressure", "cap"), False)
    assert {"cpuset": True, **rest} == flags_of(["cpuset"])


def test_the_fence_is_the_whole_socket_or_what_was_configured():
    slots = tuple(Slot(id=SlotId(cpu), cpus=(cpu, cpu + 8)) for cpu in (4, 5))
    partition = Partition(id=PartitionId(1), slots=slots, memory_nodes=(2, 3))

    cpus = [4, 5, 12, 13]
    assert {"cpus": cpus, "memory_nodes": [2, 3]} == fence_of(partition, "socket")
    assert {"cpus": cpus, "memory_nodes": []} == fence_of(partition, "cpus")
    assert fence_of(partition, "none") is None
