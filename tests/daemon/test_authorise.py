"""Who may do what."""

import os
import socket
from typing import get_args

import pytest
from builders import job

from iodaemon.daemon.authorise import Actor, Verb, authorise, read_peer
from iodaemon.errors import NotPermitted

VERBS = get_args(Verb)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("made", [None, job(7)], ids=["no job", "a job"])
def test_the_daemons_user_may_do_everything(verb, made):
    authorise(Actor(pid=1, uid=1000), verb, made, owner_uid=1000)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("uid", [0, 999, 1001, 65534, 2**32 - 1])
@pytest.mark.parametrize("made", [None, job(7)], ids=["no job", "a job"])
def test_nobody_else_may_do_anything_for_now(verb, uid, made):
    with pytest.raises(NotPermitted) as caught:
        authorise(Actor(pid=1, uid=uid), verb, made, owner_uid=1000)

    message = str(caught.value)
    assert f"uid {uid} may not {verb}" in message
    assert ("job 7" in message) == (made is not None)
    assert "\n" not in message


def test_the_peer_is_what_the_kernel_says():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        actor = read_peer(ours)

    assert Actor(pid=os.getpid(), uid=os.geteuid()) == actor
