"""Who may do what."""

import os
import socket
from typing import get_args

import pytest
from builders import job

from iodaemon.core.job import JobState
from iodaemon.daemon.http.access import Actor, Rights, Verb, authorise, read_peer
from iodaemon.errors import NotPermitted

VERBS = get_args(Verb)
ON_OWN = tuple(verb for verb in VERBS if verb != "hint_others")
OWN = Rights(owner_uid=1000)
SHARED = Rights(owner_uid=990, is_shared=True, admin_gid=980, min_uid=1000)
OF_A_JOB = ("cancel", "requeue", "suspend", "resume", "phase", "read_output")

ANN, BOB = Actor(1, 1001, frozenset({1001})), Actor(2, 1002, frozenset({1002, 100}))
ROOT, MEMBER = Actor(3, 0, frozenset({0})), Actor(4, 1003, frozenset({1003, 980}))
DAEMON, NOBODY = Actor(5, 990, frozenset({980})), Actor(6, 65534, frozenset({65534}))


def may(actor, verb, made, rights):
    try:
        authorise(actor, verb, made, rights)
    except NotPermitted as error:
        told = str(error)
    else:
        return True
    assert f"uid {actor.uid} may not {verb}" in told
    assert "\n" not in told
    return False


@pytest.mark.parametrize("verb", ON_OWN)
@pytest.mark.parametrize("made", [None, job(7)], ids=["no job", "a job"])
def test_the_user_of_an_own_daemon_may_do_everything(verb, made):
    assert may(Actor(pid=1, uid=1000), verb, made, OWN)


def test_hints_on_others_are_given_to_an_own_daemon_by_root_alone():
    assert not may(Actor(pid=1, uid=1000), "hint_others", None, OWN)
    assert may(Actor(pid=1, uid=0), "hint_others", None, OWN._replace(owner_uid=0))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("uid", [0, 999, 1001, 65534, 2**32 - 1])
@pytest.mark.parametrize("made", [None, job(7)], ids=["no job", "a job"])
def test_nobody_else_may_do_anything_with_it(verb, uid, made):
    assert not may(Actor(pid=1, uid=uid, gids=frozenset({980})), verb, made, OWN)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("actor", "kinds"),
    [
        (ANN, {"see", "submit", "hint", *OF_A_JOB}),
        (BOB, {"see", "submit", "hint"}),
        (NOBODY, {"see"}),
        (MEMBER, set(VERBS)),
        (ROOT, set(VERBS) - {"submit", "hint"}),
        (DAEMON, set(VERBS) - {"submit", "hint"}),
    ],
    ids=["owner", "other", "nobody", "member", "root", "daemon"],
)
def test_who_may_do_what_with_a_job_of_anns_on_a_shared_daemon(actor, kinds, verb):
    made = job(7, uid=1001) if verb in ("see", *OF_A_JOB) else None

    assert may(actor, verb, made, SHARED) == (verb in kinds)


@pytest.mark.parametrize("verb", [*OF_A_JOB, "regulate", "hint_others", "drain", "reload"])
def test_what_concerns_all_jobs_is_for_admins(verb):
    allowed = [actor.uid for actor in (ANN, NOBODY, MEMBER, ROOT) if may(actor, verb, None, SHARED)]

    assert [MEMBER.uid, ROOT.uid] == allowed


def test_without_a_group_of_its_own_only_root_acts_on_all():
    rights = SHARED._replace(admin_gid=None)

    assert may(ROOT, "cancel", job(7, uid=1001), rights)
    assert not may(MEMBER, "cancel", job(7, uid=1001), rights)


def test_the_peer_is_what_the_kernel_says():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        actor = read_peer(ours)

    groups = frozenset((os.getegid(), *os.getgroups()))
    assert Actor(pid=os.getpid(), uid=os.geteuid(), gids=groups) == actor


@pytest.mark.parametrize(
    ("actor", "is_let"), [(ANN, False), (BOB, False), (ROOT, True), (MEMBER, True), (DAEMON, True)]
)
@pytest.mark.parametrize("verb", ["resume", "requeue"])
def test_what_an_administrator_suspended_an_administrator_lets_go(actor, is_let, verb):
    held = job(7, uid=1001, state=JobState.SUSPENDED_USER, held_by_uid=0)

    assert is_let is may(actor, verb, held, SHARED)


@pytest.mark.parametrize("verb", ["cancel", "suspend", "read_output", "phase"])
def test_a_user_may_do_all_else_with_a_job_that_an_administrator_suspended(verb):
    assert may(ANN, verb, job(7, uid=1001, state=JobState.SUSPENDED_USER, held_by_uid=0), SHARED)
