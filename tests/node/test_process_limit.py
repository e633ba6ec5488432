"""How many processes a job may have: planned on directories that look like the kernel's."""

import pytest

from iodaemon.backend.linux.fence import confine
from iodaemon.backend.linux.process_limit import limit_processes, most_of_all
from iodaemon.config import load_config
from iodaemon.errors import ConfigError


def machine(root, **numbers):
    directory = root / "proc/sys/kernel"
    directory.mkdir(parents=True)
    for name, text in numbers.items():
        (directory / name.replace("_max", "-max").replace("pid-", "pid_")).write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "expected"),
    [
        ("4194304\n", "513445\n", 32768),  # 64 GiB of memory, systemd
        ("32768\n", "513445\n", 8192),
        ("4194304\n", "1000\n", 250),
        ("1\n", "1\n", 1),
        ("", "word\n", 32768),
    ],
)
def test_one_job_leaves_most_of_the_machine_to_the_others(tmp_path, pid_max, threads_max, expected):
    root = machine(tmp_path, pid_max=pid_max, threads_max=threads_max)

    assert expected == limit_processes(32768, root)


def test_a_machine_that_does_not_say_has_what_is_wanted(tmp_path):
    assert 100 == limit_processes(100, str(tmp_path))


@pytest.mark.parametrize(
    ("controls", "launch", "expected"),
    [
        (("pids",), {"processes": 20}, "20"),
        (("pids",), {"processes": None}, ""),
        (("pids",), {}, ""),  # of a daemon that does not know it yet
        (("memory",), {"processes": 20}, ""),
    ],
)
def test_a_job_is_limited_where_its_cgroup_can_be(tmp_path, controls, launch, expected):
    (tmp_path / "pids.max").touch()

    assert [] == confine(str(tmp_path), controls, launch)
    assert expected == (tmp_path / "pids.max").read_text()


def test_all_jobs_together_may_have_more_than_one_and_less_than_all(tmp_path):
    root = machine(tmp_path, pid_max="32768", threads_max="513445")

    assert 26214 == most_of_all(root)
    assert limit_processes(1 << 40, root) < 26214 < 32768


def test_a_machine_that_does_not_say_limits_them_not_at_all(tmp_path):
    assert most_of_all(str(tmp_path)) is None


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
