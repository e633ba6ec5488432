"""Who may do what. Administrators are who is in the group now, not who was at their login."""

import os
import socket
from pathlib import Path
from typing import get_args

import pytest
from builders import job
from served import ANOTHER, ROOT_ONLY, as_user

from iodaemon.core.job import JobState
from iodaemon.daemon import account
from iodaemon.daemon.http import access
from iodaemon.daemon.http.access import Actor, Rights, Verb, authorise, read_peer
from iodaemon.errors import NotPermitted
from iodaemon.node.name_service import Lookups

VERBS = set(get_args(Verb))
OF_A_JOB = {"cancel", "requeue", "suspend", "resume", "phase", "read_output"}
OWN = Rights(owner_uid=1000)
SHARED = Rights(owner_uid=990, is_shared=True, admin_gid=980, min_uid=1000)

ANN, BOB = Actor(1, 1001, frozenset({1001})), Actor(2, 1002, frozenset({1002, 100}))
ROOT, MEMBER = Actor(3, 0, frozenset({0})), Actor(4, 1003, frozenset({1003, 980}))
DAEMON, NOBODY = Actor(5, 990, frozenset({980})), Actor(6, 65534, frozenset({65534}))
HELD_BY_ROOT = job(7, uid=1001, state=JobState.SUSPENDED_USER, held_by_uid=0)


def may(actor, rights, made=None, verbs=VERBS):
    """The verbs that the actor may; each other one is refused in a line that names both."""
    allowed = set()
    for verb in verbs:
        try:
            authorise(actor, verb, made, rights)
        except NotPermitted as error:
            refusal = str(error)
        else:
            allowed.add(verb)
            continue
        assert f"uid {actor.uid} may not {verb}" in refusal
        assert "\n" not in refusal
    return allowed


@pytest.mark.parametrize("made", [None, job(7)], ids=["no job", "a job"])
def test_an_own_daemon_is_for_its_user_alone_and_hints_on_others_are_roots(made):
    assert VERBS - {"hint_others"} == may(Actor(pid=1, uid=1000), OWN, made)
    assert VERBS == may(Actor(pid=1, uid=0), OWN._replace(owner_uid=0), made)
    for uid in (0, 999, 1001, 65534, 2**32 - 1):
        assert set() == may(Actor(pid=1, uid=uid, gids=frozenset({980})), OWN, made)


@pytest.mark.parametrize(
    ("actor", "with_anns_job", "without"),
    [
        (ANN, {"see", *OF_A_JOB}, {"see", "submit", "hint"}),
        (BOB, {"see"}, {"see", "submit", "hint"}),
        (NOBODY, {"see"}, {"see"}),
        (MEMBER, {"see", *OF_A_JOB}, VERBS),
        (ROOT, {"see", *OF_A_JOB}, VERBS - {"submit", "hint"}),
        (DAEMON, {"see", *OF_A_JOB}, VERBS - {"submit", "hint"}),
    ],
    ids=["owner", "other", "nobody", "member", "root", "daemon"],
)
def test_who_may_do_what_on_a_shared_daemon(actor, with_anns_job, without):
    assert with_anns_job == may(actor, SHARED, job(7, uid=1001), {"see", *OF_A_JOB})
    assert without == may(actor, SHARED)


def test_without_a_group_of_its_own_only_root_acts_on_all():
    rights = SHARED._replace(admin_gid=None)

    assert {"cancel"} == may(ROOT, rights, job(7, uid=1001), {"cancel"})
    assert set() == may(MEMBER, rights, job(7, uid=1001), {"cancel"})


@pytest.mark.parametrize(
    ("actor", "allowed"),
    [
        (ANN, OF_A_JOB - {"resume", "requeue"}),
        (BOB, set()),
        (ROOT, OF_A_JOB),
        (MEMBER, OF_A_JOB),
        (DAEMON, OF_A_JOB),
    ],
    ids=["owner", "other", "root", "member", "daemon"],
)
def test_what_an_administrator_suspended_an_administrator_lets_go(actor, allowed):
    assert allowed == may(actor, SHARED, HELD_BY_ROOT, OF_A_JOB)


def test_the_peer_is_what_the_kernel_says():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        actor = read_peer(ours)

    groups = frozenset((os.getegid(), *os.getgroups()))
    assert Actor(pid=os.getpid(), uid=os.geteuid(), gids=groups) == actor


ADMINS = 4711


@pytest.fixture
def groups(monkeypatch):
    """What the databases say of each user; asked anew for each request."""
    groups = {}
    lookups = Lookups(lambda uid: groups.get(uid, frozenset()), fresh_s=0)
    for module in (account, access):
        monkeypatch.setattr(module, "groups_of_users", lambda: lookups)
    return groups


@pytest.fixture
def may_suspend(groups, for_all):
    """What another user is told who wants to suspend root's job."""
    served = for_all(Rights(owner_uid=4321, is_shared=True, admin_gid=ADMINS))
    served.running()

    def may():
        told = as_user(served, ANOTHER, "POST", "/v1/jobs/1/suspend", {})
        return told.status if told.status == 200 else told.error[1]

    return may


@ROOT_ONLY
def test_who_leaves_the_group_is_no_administrator_and_who_comes_is_without_a_login(
    may_suspend, groups, caplog
):
    caplog.set_level("INFO", "iodaemon")
    told = []
    for own in ({ANOTHER, ADMINS}, {ANOTHER}, {ANOTHER, ADMINS}):
        groups[ANOTHER] = frozenset(own)
        told.append(may_suspend())

    assert [200, "not_permitted", 200] == told
    went, _ = (line for line in caplog.messages if "groups_changed" in line)
    assert f"uid={ANOTHER} came=none went={ADMINS} " in went


@ROOT_ONLY
def test_who_has_no_account_any_more_is_no_administrator(may_suspend):
    assert "not_permitted" == may_suspend()


def test_the_time_in_which_it_is_noticed_is_the_one_that_is_told():
    page = (Path(__file__).parents[2] / "docs" / "trouble.md").read_text()

    assert f"within {account.GROUPS_FRESH_S:g} s" in page
