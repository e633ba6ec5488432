"""What is written into a job's cgroup and read of it: on directories that look like the kernel's.

No controller can be had on most machines that tests run on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iodaemon.supervisor import systemd
from iodaemon.supervisor.cgroup import Cgroups
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Limits

FILES = (
    "cpuset.cpus", "cpuset.mems", "memory.max", "memory.oom.group", "pids.max", "io.max"
)  # fmt: skip
JOB = Key(1, 1)


@pytest.fixture
def cgroups(tmp_path):
    """With all controllers, and a directory for one job."""
    cgroups = Cgroups(str(tmp_path))
    (tmp_path / "jobs/1.1").mkdir(parents=True)
    for name in FILES:
        (tmp_path / "jobs/1.1" / name).touch()
    hand_down_all(cgroups)
    yield cgroups
    os.close(cgroups.fd)


def hand_down_all(cgroups: Cgroups) -> None:
    cgroups.hand_down()
    cgroups.controls = ("cpuset", "io", "pids", "memory", "cap")


def written(cgroups: Cgroups, limits: Limits) -> tuple[dict[str, str], list[str]]:
    """What is in the job's files then, but for what is empty, and what could not be set."""
    fd, problems = cgroups.prepare(JOB, limits)
    os.close(fd)
    files = {name: Path(cgroups.base, "jobs/1.1", name) for name in FILES}
    texts = {name: file.read_text() for name, file in files.items() if file.exists()}
    return {name: text for name, text in texts.items() if text}, problems


@pytest.mark.parametrize(
    ("limits", "files"),
    [
        (
            Limits(1 << 30, 100, (2, 1), (0,)),
            {
                "cpuset.cpus": "1,2", "cpuset.mems": "0", "memory.oom.group": "1",
                "memory.max": "1073741824", "pids.max": "100",
            },
        ),
        # nothing could begin in less
        (Limits(memory_bytes=1), {"memory.max": f"{16 << 20}", "memory.oom.group": "1"}),
    ],
)  # fmt: skip
def test_limits_are_written_where_there_is_a_controller(limits, files, cgroups):
    assert (files, []) == written(cgroups, limits)


def test_nothing_is_set_where_there_is_none(cgroups):
    cgroups.controls = ("io",)

    assert ({}, []) == written(cgroups, Limits(1 << 30, 20, (1,), (0,)))


def test_what_cannot_be_set_is_named_and_the_rest_is(cgroups, tmp_path):
    (tmp_path / "jobs/1.1/cpuset.cpus").unlink()
    files, problems = written(cgroups, Limits(cpus=(4, 5), memory_nodes=(1,)))

    assert {"cpuset.mems": "1"} == files
    assert ["cpuset.cpus is not set to 4,5: No such file or directory"] == problems


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        (513445, 32768, "32768"),  # 64 GiB of memory
        (32768, 32768, "8192"),
        (1000, 20, "20"),
        (1, 32768, "1"),
        (None, 100, "100"),
        (32768, None, None),
    ],
)
def test_one_job_leaves_most_processes_of_the_machine_to_the_others(
    there, wanted, expected, cgroups, monkeypatch
):
    monkeypatch.setattr(systemd, "count_tasks", lambda: there)
    hand_down_all(cgroups)
    files, problems = written(cgroups, Limits(processes=wanted))

    assert ([], expected) == (problems, files.get("pids.max"))


@pytest.mark.parametrize(("there", "expected"), [(32768, "26214"), (None, "infinity")])
def test_all_jobs_together_may_have_more_than_one_and_less_than_all(there, expected, monkeypatch):
    monkeypatch.setattr(systemd, "count_tasks", lambda: there)

    assert f"TasksMax={expected}" == systemd._tasks_max()


@pytest.mark.parametrize("let_go", [Cgroups.thaw_all, lambda cgroups: cgroups.thaw(JOB)])
def test_caps_are_written_and_end_where_a_job_is_let_go(let_go, cgroups, tmp_path):
    file = tmp_path / "jobs/1.1/io.max"
    cgroups.cap(JOB, {"8:0": "rbps=1000 wbps=max"})

    assert "8:0 rbps=1000 wbps=max" == file.read_text()

    let_go(cgroups)

    assert "8:0 rbps=max wbps=max riops=max wiops=max" == file.read_text()


@pytest.mark.parametrize(
    ("oom", "killed", "limit", "nodes", "expected"),
    [
        (
            2, 3, "1073741824\n", "0-1\n",
            {"killed": 3, "at_limit": 2, "limit_bytes": 1 << 30, "nodes": "0-1"},
        ),
        (0, 1, "max\n", "\n", {"killed": 1, "at_limit": 0, "limit_bytes": None, "nodes": ""}),
        (1, 0, "max\n", "\n", None),
    ],
)  # fmt: skip
def test_what_the_kernel_killed_for_want_of_memory_is_told(
    oom, killed, limit, nodes, expected, cgroups, tmp_path
):
    """Text of Linux 6.1: a job that met its limit twice, and one whose child was killed."""
    events = f"low 0\nhigh 0\nmax 31\noom {oom}\noom_kill {killed}\noom_group_kill 0\n"
    for name, text in (("events", events), ("max", limit)):
        (tmp_path / f"jobs/1.1/memory.{name}").write_text(text)
    (tmp_path / "jobs/1.1/cpuset.mems").write_text(nodes)

    assert expected == cgroups.find_memory_end(JOB)
    assert cgroups.find_memory_end(Key(2, 1)) is None
