"""Who may do what. Identity is what the kernel says of the peer of a socket, and nothing else."""

from __future__ import annotations

import socket
import struct
from typing import Final, Literal, NamedTuple

from iodaemon.core.job import Job
from iodaemon.errors import NotPermitted

Verb = Literal[
    "see",
    "submit",
    "cancel",
    "requeue",
    "suspend",
    "resume",
    "phase",
    "read_output",
    "regulate",
    "drain",
    "reload",
    "hint",
    "hint_others",
]

_CREDENTIALS: Final = "3i"  # struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)
_SO_PEERGROUPS: Final = 59  # include/uapi/asm-generic/socket.h, Linux 4.13
_MOST_GROUPS: Final = 65536  # include/uapi/linux/limits.h, NGROUPS_MAX
_FOR_ALL: Final = frozenset({"see", "submit", "hint"})
_LETS_GO: Final = frozenset({"resume", "requeue"})
"""What ends a hold and has the job run: that of an administrator, administrators alone."""
OVERFLOW_UID: Final = 65534
"""Anybody of another user namespace, and so nobody (DEFAULT_OVERFLOWUID, linux/highuid.h)."""
_OF_SUBMITTERS: Final = frozenset({"submit", "hint"})


class Actor(NamedTuple):
    """Who is at the other end of a connection, at the time it was made."""

    pid: int
    uid: int
    gids: frozenset[int] = frozenset()


class Rights(NamedTuple):
    """Whom a daemon serves.

    Attributes:
        owner_uid: the user it runs as, who may do everything.
        is_shared: it serves all users of the machine, each for their own jobs.
        admin_gid: of a shared one, the group whose members may act on all jobs; so may root.
        min_uid: of a shared one, the least uid whose jobs are run.
    """

    owner_uid: int
    is_shared: bool = False
    admin_gid: int | None = None
    min_uid: int = 0

    def is_admin(self, actor: Actor) -> bool:
        """True for who may act on all jobs."""
        if actor.uid == self.owner_uid:
            return True
        return self.is_shared and (actor.uid == 0 or self.admin_gid in actor.gids)


def read_peer(connection: socket.socket) -> Actor:
    """The peer of a unix socket connection, from the kernel (SO_PEERCRED, SO_PEERGROUPS).

    The kernel's word on groups waits for no directory service, unlike getgrouplist(3).
    """
    size = struct.calcsize(_CREDENTIALS)
    pid, uid, gid = struct.unpack(
        _CREDENTIALS, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MOST_GROUPS)
    except OSError:  # an older kernel: the first group is known, and that is less, never more
        data = b""
    return Actor(pid, uid, frozenset((gid, *(one for (one,) in struct.iter_unpack("I", data)))))


def authorise(actor: Actor, verb: Verb, job: Job | None, rights: Rights) -> None:
    """Let the actor do this, or refuse.

    A user's own daemon serves that user alone, who runs no others' jobs and so, but for root, gives
    no hints on them. The system's: everybody sees the queue, submits, gives hints on their own
    jobs, and acts on these; root, the daemon's group and its user act on all.

    Args:
        actor: who asks.
        verb: what for.
        job: which job; None for what concerns no single job.
        rights: whom the daemon serves.

    Raises:
        NotPermitted: says who may.
    """
    what = verb if job is None else f"{verb} job {job.id}"
    if not rights.is_shared:
        if actor.uid != rights.owner_uid:
            raise NotPermitted(
                f"uid {actor.uid} may not {what}: this daemon serves uid {rights.owner_uid} "
                "alone; start your own with 'iod daemon'"
            )
        if verb == "hint_others" and actor.uid != 0:
            raise NotPermitted(f"uid {actor.uid} may not {what}: only its own jobs are run here")
        return
    if verb in _OF_SUBMITTERS and actor.uid == OVERFLOW_UID:
        raise NotPermitted(
            f"uid {actor.uid} may not {what}: users whom this machine does not know all have this "
            f"number; {verb} as yourself, outside of the user namespace"
        )
    if verb in _OF_SUBMITTERS and actor.uid < rights.min_uid:
        raise NotPermitted(
            f"uid {actor.uid} may not {what}: jobs are run for uids from {rights.min_uid} on; "
            f"{verb} as an ordinary user, or lower min_uid"
        )
    is_held = job is not None and job.held_by_uid is not None and verb in _LETS_GO
    if is_held and not rights.is_admin(actor):
        raise NotPermitted(
            f"uid {actor.uid} may not {what}: an administrator suspended it; ask root or a member "
            "of the daemon's group"
        )
    if verb in _FOR_ALL or rights.is_admin(actor) or (job is not None and job.uid == actor.uid):
        return
    owner = "" if job is None else f"uid {job.uid}, "
    raise NotPermitted(f"uid {actor.uid} may not {what}: {owner}root and the daemon's group may")
