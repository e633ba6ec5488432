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
    "hint",
]

_CREDENTIALS: Final = "3i"  # struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)


class Actor(NamedTuple):
    """Who is at the other end of a connection, at the time it was made."""

    pid: int
    uid: int


def read_peer(connection: socket.socket) -> Actor:
    """The peer of a unix socket connection, from the kernel (SO_PEERCRED)."""
    size = struct.calcsize(_CREDENTIALS)
    pid, uid, _ = struct.unpack(
        _CREDENTIALS, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return Actor(pid, uid)


def authorise(actor: Actor, verb: Verb, job: Job | None, *, owner_uid: int) -> None:
    """Let the actor do this, or refuse.

    For now a daemon serves the user it runs as, and nobody else.

    Args:
        actor: who asks.
        verb: what for.
        job: which job; None for what concerns no single job.
        owner_uid: the user the daemon runs as.

    Raises:
        NotPermitted: says who may.
    """
    if actor.uid != owner_uid:
        what = verb if job is None else f"{verb} job {job.id}"
        raise NotPermitted(
            f"uid {actor.uid} may not {what}: this daemon serves uid {owner_uid} alone; "
            "start your own with 'iod daemon'"
        )
