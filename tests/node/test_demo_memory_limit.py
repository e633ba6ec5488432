"""The memory limit of the demo where cgroup v2 has the controller, or has it not."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import memory_limit as limits

LIMIT = 64 << 20


@pytest.fixture
def control(tmp_path, monkeypatch):
    """``cgroup.subtree_control`` at the root of a hierarchy that has the memory controller."""
    monkeypatch.setattr(limits, "_ROOT", tmp_path)
    monkeypatch.setattr(limits, "_PATIENCE_S", 0.0)  # the files of no real cgroup can be removed
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu pids\n")
    return control


def test_a_controller_that_is_not_handed_down_is_enabled_until_the_end(control):
    with limits.memory_limit(LIMIT) as (words, why):
        limit = Path(words[-1]).with_name("memory.max").read_text()
        seen = [control.read_text(), limit, why]

    assert ["+memory", str(LIMIT), ""] == seen
    assert "-memory" == control.read_text()


def test_a_controller_that_is_handed_down_already_stays_so(control):
    control.write_text("cpu memory pids\n")
    with limits.memory_limit(LIMIT) as (words, why):
        assert (True, "") == (bool(words), why)

    assert "cpu memory pids\n" == control.read_text()


def test_a_hierarchy_without_the_controller_is_told(control, tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io pids\n")
    with limits.memory_limit(LIMIT) as limit:
        assert ((), f"{tmp_path}: no memory controller") == limit

    assert [] == [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_controller_that_cannot_be_enabled_is_told(control):
    control.unlink()
    control.mkdir()
    with limits.memory_limit(LIMIT) as limit:
        assert ((), f"{control}: Is a directory") == limit


@pytest.mark.parametrize(("shown", "has_limit"), [(LIMIT, True), ("max", False)])
def test_a_plain_user_has_a_scope_with_a_limit_where_it_limits_anything(
    control, monkeypatch, tmp_path, shown, has_limit
):
    program = tmp_path / "systemd-run"
    program.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/called\necho {shown}\n')
    program.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with limits.memory_limit(LIMIT) as (words, why):
        assert (has_limit, not has_limit) == (bool(words), bool(why))

    options = f"-p MemoryMax={LIMIT} -p MemorySwapMax=0 -p Delegate=yes -- "
    expected = f"--user --scope --quiet --collect {options}"
    assert (tmp_path / "called").read_text().startswith(expected)
    assert " ".join(words) in ("", f"systemd-run {expected.strip()}")


def test_a_plain_user_without_systemd_is_told(control, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    with limits.memory_limit(LIMIT) as limit:
        assert ((), "systemd-run: No such file or directory") == limit
