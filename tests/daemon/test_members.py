"""Administrators are who is in the group now, not who was when they logged in."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from served import Served
from test_attacks import ANOTHER, ROOT_ONLY, as_another

from iodaemon.daemon import account
from iodaemon.daemon.http import access
from iodaemon.daemon.http.access import Rights
from iodaemon.node.name_service import Lookups

ADMINS = 4711
SHARED = Rights(owner_uid=4321, is_shared=True, admin_gid=ADMINS)

pytestmark = ROOT_ONLY


@pytest.fixture
def groups(monkeypatch):
    """What the databases say of each user; asked anew for each request."""
    groups = {}
    lookups = Lookups(lambda uid: groups.get(uid, frozenset()), fresh_s=0)
    for module in (account, access):
        monkeypatch.setattr(module, "groups_of_users", lambda: lookups)
    return groups


@pytest.fixture
def served(groups):
    place = Path(tempfile.mkdtemp(prefix="iod-"))
    place.chmod(0o755)
    served = Served(place, rights=SHARED)
    os.chmod(served.socket_path, 0o666)
    yield served
    served.close()
    shutil.rmtree(place)


def may(served):
    status, text = as_another(served, "POST", "/v1/jobs/1/suspend", "{}")
    return status if status == 200 else json.loads(text)["error"]["code"]


def test_who_is_taken_out_of_the_group_acts_on_others_jobs_no_more(served, groups, caplog):
    caplog.set_level("INFO", "iodaemon")
    served.running()
    groups[ANOTHER] = frozenset({ANOTHER, ADMINS})
    before = may(served)

    groups[ANOTHER] = frozenset({ANOTHER})

    assert (200, "not_permitted") == (before, may(served))
    [line] = [each for each in caplog.messages if "groups_changed" in each]
    assert f"uid={ANOTHER} came=none went={ADMINS} " in line


def test_who_is_taken_into_the_group_need_not_log_in_again(served, groups):
    served.running()
    groups[ANOTHER] = frozenset({ANOTHER})
    before = may(served)

    groups[ANOTHER] = frozenset({ANOTHER, ADMINS})

    assert ("not_permitted", 200) == (before, may(served))


def test_who_has_no_account_any_more_is_no_administrator(served, groups):
    served.running()

    assert "not_permitted" == may(served)


def test_the_time_in_which_it_is_noticed_is_the_one_that_is_told():
    page = (Path(__file__).parents[2] / "docs" / "trouble.md").read_text()

    assert f"within {account.GROUPS_FRESH_S:g} s" in page
