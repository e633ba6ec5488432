"""Administrators are who is in the group now, not who was when they logged in."""

from pathlib import Path

import pytest
from served import ANOTHER, ROOT_ONLY, as_user

from iodaemon.daemon import account
from iodaemon.daemon.http import access
from iodaemon.daemon.http.access import Rights
from iodaemon.node.name_service import Lookups

ADMINS = 4711

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
def may(groups, for_all):
    """What another user is told who wants to suspend root's job."""
    served = for_all(Rights(owner_uid=4321, is_shared=True, admin_gid=ADMINS))
    served.running()

    def may():
        told = as_user(served, ANOTHER, "POST", "/v1/jobs/1/suspend", {})
        return told.status if told.status == 200 else told.error[1]

    return may


def test_who_leaves_the_group_is_no_administrator_and_who_comes_is_without_a_login(
    may, groups, caplog
):
    caplog.set_level("INFO", "iodaemon")
    told = []
    for own in ({ANOTHER, ADMINS}, {ANOTHER}, {ANOTHER, ADMINS}):
        groups[ANOTHER] = frozenset(own)
        told.append(may())

    assert [200, "not_permitted", 200] == told
    went, _ = (line for line in caplog.messages if "groups_changed" in line)
    assert f"uid={ANOTHER} came=none went={ADMINS} " in went


def test_who_has_no_account_any_more_is_no_administrator(may):
    assert "not_permitted" == may()


def test_the_time_in_which_it_is_noticed_is_the_one_that_is_told():
    page = (Path(__file__).parents[2] / "docs" / "trouble.md").read_text()

    assert f"within {account.GROUPS_FRESH_S:g} s" in page
