"""Which keeper a daemon of this configuration has, and who begins it."""

import pytest

from iodaemon.backend.linux.keeper_command import keeper_command
from iodaemon.config import load_config
from iodaemon.daemon.keeping import keeper_spec

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


def test_a_users_keeper_is_begun_by_the_daemon_with_what_is_configured(file):
    keeper = keeper_spec(load_config(file, {}, 1000, {}))

    assert not keeper.is_service
    assert ["/some/state", "/some/run/keeper.sock", "7.0", "signals"] == keeper_command(keeper)[-4:]
    assert "/some/state/jobs" == keeper.jobs


def test_the_keeper_of_the_system_has_a_place_of_its_own_and_whom_it_obeys_comes_last(file):
    keeper = keeper_spec(load_config(file, {}, 0, {}, is_system=True))

    assert keeper.is_service
    assert str(keeper.state) not in ("/some/state", "")
    assert ["signals", "5", "6", "1000"] == keeper_command(keeper, 5, 6, 1000)[-4:]
