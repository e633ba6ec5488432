"""Whether the daemon can have its socket, which tells who connects, and files enough."""

from __future__ import annotations

import os
import resource
import socket
import struct
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.doctor.finding import Finding, Verdict, judge
from iodaemon.doctor.scratch import scratch_directory
from iodaemon.node.condition import FEW_FILES

_PEER: Final = struct.Struct("3i")
_FILES_PER_JOB: Final = 8
"""Descriptors the daemon holds of a running job of one or two processes."""
LEAST_FILES: Final = 4096
"""Some 500 running jobs."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a socket made there.

    Attributes:
        path: the longer of the two sockets'.
        uid: of this process.
        peer_uid: who the kernel said had connected.
    """

    path: str
    uid: int
    peer_uid: int


def probe_runtime(directory: Path) -> Reading:
    """Make a socket in the directory, or above it while it does not exist, and connect to it.

    Args:
        directory: of the daemon's sockets.

    Raises:
        OSError: it cannot be made.
    """
    with scratch_directory(str(directory)) as scratch:
        peer_uid = _connect(scratch)
    return Reading(path=f"{directory}/supervisor.sock", uid=os.geteuid(), peer_uid=peer_uid)


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
    """Who connected. Whether the path is too long for a socket is the configuration's to say."""
    is_same = reading.peer_uid == reading.uid
    return judge(
        is_same,
        "runtime directory",
        f"{reading.path}; a socket made there told who connected"
        if is_same
        else f"{reading.path}: the kernel took uid {reading.uid} for {reading.peer_uid}",
        {"peer_uid": reading.peer_uid},
        cost="the daemon would take one user for another",
        remedy="set runtime_dir to another directory",
        verdict=Verdict.BROKEN,
    )


def probe_files() -> tuple[int, int]:
    """Soft and hard limit of open files; -1: none."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def judge_files(soft: int, hard: int) -> Finding:
    """By the hard limit, up to which the daemon raises its own."""
    is_endless = hard == resource.RLIM_INFINITY
    room = "any number of" if is_endless else f"about {hard // _FILES_PER_JOB}"
    limits = "none" if is_endless else f"{soft}, up to {hard}"
    shown = f"{limits}; room for {room} running jobs"
    return judge(
        is_endless or hard >= LEAST_FILES,
        "open files",
        shown,
        {"soft": soft, "hard": hard},
        cost="beyond that no job starts, and nothing is measured of those that have begun",
        remedy=FEW_FILES.cure,
    )
