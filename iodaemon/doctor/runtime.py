"""Whether the daemon's socket can be made in the runtime directory, and tells who connects."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.doctor.finding import Finding, broken, ok
from iodaemon.doctor.scratch import scratch_directory

_LONGEST_SOCKET_BYTES: Final = 107
"""sun_path holds 108 bytes with the closing NUL (unix(7))."""
_PEER: Final = struct.Struct("3i")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a socket made there.

    Attributes:
        path: the daemon's socket.
        path_bytes: length of its name.
        uid: of this process.
        peer_uid: who the kernel said had connected.
    """

    path: str
    path_bytes: int
    uid: int
    peer_uid: int


def probe_runtime(directory: Path, socket_name: str = "keeper.sock") -> Reading:
    """Make a socket in the directory, or above it while it does not exist, and connect to it.

    Args:
        directory: of the daemon's sockets.
        socket_name: the longest of them.

    Raises:
        OSError: it cannot be made.
    """
    with scratch_directory(str(directory)) as scratch:
        peer_uid = _connect(scratch)
    path = f"{directory}/{socket_name}"
    return Reading(
        path=path,
        path_bytes=len(os.fsencode(path)),
        uid=os.geteuid(),
        peer_uid=peer_uid,
    )


def _connect(directory: str) -> int:
    """Who the kernel says connects to a socket made in this directory, however long its name."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    short = f"/proc/self/fd/{fd}/s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        try:
            server.bind(short)
            server.listen()
            client.connect(short)
        finally:
            os.close(fd)
        peer, _ = server.accept()
        with peer:
            data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(data)[1]
    return uid


def judge_runtime(reading: Reading) -> Finding:
    """The length, who connected."""
    what = "runtime directory"
    shown = f"{reading.path} ({reading.path_bytes} of {_LONGEST_SOCKET_BYTES} bytes)"
    values = {"path_bytes": reading.path_bytes, "peer_uid": reading.peer_uid}
    if problem := _find_problem(reading):
        return broken(
            what,
            f"{shown}: {problem}",
            values,
            cost="the daemon refuses to start",
            remedy="set runtime_dir to another directory, or mend this one",
        )
    return ok(what, f"{shown}; a socket made there told who connected", values)


def _find_problem(reading: Reading) -> str:
    """What is wrong; empty: nothing."""
    if reading.path_bytes > _LONGEST_SOCKET_BYTES:
        return "the path is too long for a socket"
    if reading.peer_uid != reading.uid:
        return f"the kernel took uid {reading.uid} for {reading.peer_uid}"
    return ""
