"""Which supervisor a daemon of this configuration has, and how it is begun and done without."""

import os

import pytest

from iodaemon.config import load_config
from iodaemon.errors import ConfigError
from iodaemon.node import root_side
from iodaemon.node.root_side import supervisor_config
from iodaemon.supervisor import anchor

WRITTEN = """
state_dir = "/some/state"
runtime_dir = "/some/run"
orphan_grace = "7 s"
suspend_by = "signals"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(WRITTEN)
    return path


def test_a_users_supervisor_obeys_the_caller_with_what_is_configured(file):
    found = supervisor_config(load_config(file, {}, 1000, {}))

    assert ("/some/run", "/some/state/output", 7.0) == (found.runtime, found.outputs, found.grace_s)
    assert (os.geteuid(), None, None) == (found.daemon_uid, found.daemon_gid, found.min_uid)
    assert ("none", False) == (found.cgroup, found.is_service)
    assert found == anchor.load_config(found.dump())


def test_the_supervisor_of_the_system_has_a_place_of_its_own(file):
    config = load_config(file, {}, 0, {"suspend_by": "auto"}, is_system=True)
    found = supervisor_config(config, daemon_uid=5, daemon_gid=6)

    assert "/var/lib/iodaemon-supervisor/output" == found.outputs
    assert (5, 6, 1000) == (found.daemon_uid, found.daemon_gid, found.min_uid)
    assert ("auto", True) == (found.cgroup, found.is_service)


def test_a_directory_that_cannot_be_made_is_told_with_the_cure(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError) as refused:
        root_side._prepare(tmp_path / "file" / "state")

    told = f"{tmp_path}/file/state cannot be used (Not a directory); see that it can"
    assert f"{told}, and start the supervisor again" == str(refused.value)


def test_whoever_may_not_let_jobs_run_on_is_told_to_be_root(file, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied", "/some/run/ledger")

    monkeypatch.setattr(anchor, "thaw_all", refuse, raising=False)

    with pytest.raises(ConfigError, match="/some/run/ledger may not be used; run this as root"):
        root_side.thaw_all(load_config(file, {}, 0, {}))
