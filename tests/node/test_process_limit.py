"""How many processes a job may have: planned on directories that look like the kernel's."""

import os

import pytest

from iodaemon.config import load_config
from iodaemon.errors import ConfigError
from iodaemon.supervisor import systemd
from iodaemon.supervisor.cgroup import Cgroups
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Limits


def written(tmp_path, limits, controls=("pids", "memory", "cpuset")):
    """What is in these files of a job's cgroup then, and what could not be set."""
    cgroups = Cgroups(str(tmp_path))
    job = tmp_path / "jobs" / "1.1"
    job.mkdir(parents=True)
    for name in ("pids.max", "memory.max", "memory.oom.group", "cpuset.mems"):
        (job / name).touch()
    try:
        cgroups.hand_down()
        cgroups.controls = controls
        fd, problems = cgroups.prepare(Key(1, 1), limits)
        os.close(fd)
    finally:
        os.close(cgroups.fd)
    return {path.name: path.read_text() for path in job.iterdir() if path.is_file()}, problems


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        (513445, 32768, "32768"),  # 64 GiB of memory
        (32768, 32768, "8192"),
        (1000, 20, "20"),
        (1, 32768, "1"),
        (None, 100, "100"),
        (32768, None, ""),
    ],
)
def test_one_job_leaves_most_of_the_machine_to_the_others(
    tmp_path, monkeypatch, there, wanted, expected
):
    monkeypatch.setattr(systemd, "count_tasks", lambda: there)
    files, problems = written(tmp_path, Limits(processes=wanted))

    assert ([], expected) == (problems, files["pids.max"])


def test_nothing_is_set_where_there_is_no_controller(tmp_path):
    files, _ = written(tmp_path, Limits(1 << 30, 20, (1,), (0,)), controls=("io",))

    assert {""} == set(files.values())


def test_a_memory_limit_in_which_nothing_could_begin_is_raised(tmp_path):
    files, _ = written(tmp_path, Limits(memory_bytes=1))

    assert (16 << 20, "1") == (int(files["memory.max"]), files["memory.oom.group"])


def test_what_cannot_be_set_is_named_and_the_rest_is(tmp_path):
    files, problems = written(tmp_path, Limits(cpus=(4, 5), memory_nodes=(1,)))

    assert "1" == files["cpuset.mems"]
    assert ["cpuset.cpus is not set to 4,5: No such file or directory"] == problems


def test_all_jobs_together_may_have_more_than_one_and_less_than_all(monkeypatch):
    monkeypatch.setattr(systemd, "count_tasks", lambda: 32768)
    assert "TasksMax=26214" == systemd._tasks_max()

    monkeypatch.setattr(systemd, "count_tasks", lambda: None)
    assert "TasksMax=infinity" == systemd._tasks_max()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 32768), ("max_processes = 64", 64), ('max_processes = "none"', None)],
)
def test_the_limit_is_configured(tmp_path, text, expected):
    file = tmp_path / "config.toml"
    file.write_text(text)

    assert expected == load_config(file, {"HOME": "/"}, 0, {}).max_processes


@pytest.mark.parametrize("value", ["0", "-1", '"many"'])
def test_a_limit_under_which_nothing_would_run_is_refused(tmp_path, value):
    file = tmp_path / "config.toml"
    file.write_text(f"max_processes = {value}")

    with pytest.raises(ConfigError, match="max_processes"):
        load_config(file, {"HOME": "/"}, 0, {})
