"""The owners of the daemon's directories, the holders of the locks in them, and its users.

Nothing is made or locked here but one socket.
"""

from __future__ import annotations

import grp
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from iodaemon.doctor.report import Finding, Verdict, broken, judge, lacking, ok, unseen
from iodaemon.doctor.scratch import scratch_directory
from iodaemon.install.program import find_flaw
from iodaemon.node import staging
from iodaemon.node.condition import (
    NO_ANSWER,
    Condition,
    find_standstill,
    find_wrong_owner,
    of_error,
)
from iodaemon.node.name_service import Answer, Lookups, find_groups, find_uid
from iodaemon.node.root_side import SERVICE_USER
from iodaemon.socket_path import find_holder
from iodaemon.supervisor.launch import no_account
from iodaemon.supervisor.reap import read_status

_PEER: Final = struct.Struct("3i")
_STOPPED: Final = MappingProxyType(
    {
        "daemon": "it does nothing, and suspended jobs run on after orphan_grace",
        "anchor": "a supervisor that ends now is not started again",
    }
)
WITHIN_S: Final = 3.0
"""For one answer of the account databases."""
_SLOW_S: Final = 0.5
"""A start of a job takes 5 ms without."""
_MOST_SHOWN: Final = 8


# -- places ----------------------------------------------------------------------------------------


def check_place(
    what: str, path: Path, uid: int, files: Sequence[str] = (), *, may_be_link: bool = True
) -> Finding:
    """Whether a directory is this user's alone.

    Args:
        files: in it, that have to be theirs as well, where they exist.
        may_be_link: a symbolic link may stand in its place.
    """
    wrong: Condition | None = None
    owner_uid, mode = None, 0o700
    try:
        is_blind = bool(files) and not os.access(path, os.X_OK, effective_ids=True)
        seen = () if is_blind else files
        wrong = find_wrong_owner(path, uid, seen, may_be_link=may_be_link)
        status = os.stat(path) if path.exists() else os.lstat(path)
        owner_uid, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    except FileNotFoundError:
        pass
    except OSError as error:
        if is_hidden(error, is_anothers=uid != os.geteuid()):
            return unseen(what, f"{path}: {error.strerror or error}")
        wrong = of_error(path, error)
    values = {"owner_uid": owner_uid, "wanted_uid": uid, "mode": mode}
    if wrong is not None:
        cost = "it refuses to start; jobs that run go on"
        return broken(what, wrong.fact, values, cost=cost, remedy=wrong.cure)
    if owner_uid is None:
        return ok(what, f"{path} does not exist yet", values)
    blind = "; what is in it may not be looked at" if is_blind else ""
    return ok(what, f"{path}: uid {owner_uid}, mode {mode:04o}{blind}", values)


def is_hidden(error: Exception, *, is_anothers: bool) -> bool:
    """Whether only root could look at what is not who examines' to use."""
    return is_anothers and isinstance(error, PermissionError) and os.geteuid() != 0


def check_lock(who: str, path: Path, *, answers: bool) -> Finding:
    """Who (``daemon`` or ``anchor``) holds this lock, and whether it is heard."""
    what = f"{who}'s lock"
    try:
        pid = find_holder(str(path))
    except (FileNotFoundError, NotADirectoryError):  # a wrong directory is a finding of its own
        return ok(what, f"{path} does not exist yet", {"pid": None})
    except OSError as error:
        if is_hidden(error, is_anothers=True):
            return unseen(what, f"{path}: {error.strerror}")
        fact, cure = of_error(path, error)
        return broken(what, fact, cost="it is not known who holds it", remedy=cure)
    if pid is None:
        return ok(what, f"nobody holds {path}", {"pid": None})
    shown, values = f"pid {pid} ({_name_of(pid)}) holds {path}", {"pid": pid}
    if (stopped := find_standstill(who, pid)) is not None:
        return broken(what, stopped.fact, values, cost=_STOPPED[who], remedy=stopped.cure)
    if answers or who == "anchor":
        return ok(what, shown, values)
    return lacking(
        what,
        f"{shown}, and no daemon answers",
        values,
        cost="no other daemon starts on this directory",
        remedy=f"wait for it while it starts, else see its log, or 'kill {pid}'; jobs go on",
    )


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone, or hidden"


def check_runtime(directory: Path) -> Finding:
    """Make a socket in the directory, or above it while it does not exist, and connect to it.

    Whether the path is too long for a socket is the configuration's to say.
    """
    with (
        scratch_directory(str(directory)) as scratch,  # by a short path, whatever the directory's
        socket.socket(socket.AF_UNIX) as server,
        socket.socket(socket.AF_UNIX) as client,
    ):
        server.bind(f"{scratch}/s")
        server.listen()
        client.connect(f"{scratch}/s")
        peer, _ = server.accept()
        with peer:
            data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return judge_runtime(f"{directory}/supervisor.sock", os.geteuid(), _PEER.unpack(data)[1])


def judge_runtime(path: str, uid: int, peer_uid: int) -> Finding:
    """Whether the kernel names the user who connects."""
    is_same = peer_uid == uid
    return judge(
        is_same,
        "runtime directory",
        f"{path}; a socket made there told who connected"
        if is_same
        else f"{path}: the kernel took uid {uid} for {peer_uid}",
        {"peer_uid": peer_uid},
        cost="the daemon would take one user for another",
        remedy="set runtime_dir to another directory",
        verdict=Verdict.BROKEN,
    )


# -- users -----------------------------------------------------------------------------------------


def find_service_uid() -> int | None:
    """Whose daemon the system's service is; None: it is not set up, or nobody answers."""
    answer = Lookups(find_uid, fresh_s=0).get(SERVICE_USER, WITHIN_S)
    return None if answer is None else answer.value


def check_lookup(
    uid: int, look_up: Callable[[int], object] = find_groups, within_s: float = WITHIN_S
) -> Finding:
    """How long the databases take to say which groups the user is in."""
    began_s = time.monotonic()
    answer = Lookups(look_up, fresh_s=0).get(uid, within_s)
    if answer is not None:
        return judge_lookup(uid, time.monotonic() - began_s)
    return broken(
        "account lookup",
        f"{NO_ANSWER.fact} for uid {uid} within {within_s:g} s",
        {"took_s": None},
        cost="no job of others starts, users are numbers; jobs that run go on",
        remedy=NO_ANSWER.cure,
    )


def judge_lookup(uid: int, took_s: float) -> Finding:
    """Before each start of a job as a user, that user is looked up."""
    return judge(
        took_s < _SLOW_S,
        "account lookup",
        f"uid {uid} and its groups in {took_s * 1000:.1f} ms",
        {"took_s": took_s},
        cost="each start of a job as another user waits so long",
        remedy=NO_ANSWER.cure,
    )


def check_members(group: str) -> Finding:
    """Who may act on all jobs."""
    return judge_members(group, Lookups(_find_members, fresh_s=0).get(group, WITHIN_S))


def _find_members(group: str) -> tuple[str, ...] | None:
    """Who is in the group beside those that have it as their first; None: there is none."""
    try:
        return tuple(grp.getgrnam(group).gr_mem)
    except KeyError:
        return None


def judge_members(group: str, answer: Answer[tuple[str, ...] | None] | None) -> Finding:
    """Whether there is such a group, and who is in it; None: nobody answered."""
    what = "group of admins"
    if answer is None:
        return broken(
            what,
            f"{NO_ANSWER.fact} who is in group {group} within {WITHIN_S:g} s",
            cost="who was not looked up before has the rights of their login",
            remedy=NO_ANSWER.cure,
        )
    if answer.value is None:
        return lacking(
            what,
            f"there is no group {group}",
            cost="root alone acts on other users' jobs",
            remedy=f"'groupadd --system {group}', then restart the daemon",
        )
    shown = ", ".join(answer.value) or "nobody"
    return ok(what, f"{group}: {shown}, and root", {"members": len(answer.value)})


def judge_users(users: Collection[str]) -> Finding:
    """Whether all jobs' users have accounts: a number stands for who has no name."""
    everybody = set(users)
    gone = sorted(filter(str.isdigit, everybody), key=int)
    return judge(
        not gone,
        "users of jobs",
        no_account(*gone) if gone else f"{len(everybody)}, all with an account",
        {"users": len(everybody), "without_account": len(gone)},
        cost="what runs goes on; what waits is held",
        remedy="make the account again and 'iod resume' the jobs, or 'iod cancel' them",
    )


class Running(NamedTuple):
    """A job that has processes, by one of them."""

    job_id: int
    uid: int
    pid: int


def check_groups(jobs: Sequence[Running]) -> Finding:
    """Whether the jobs that run have the groups that their users have now."""
    lookups = Lookups(find_groups, fresh_s=WITHIN_S)
    stale = []
    for job in jobs:
        answer, had = lookups.get(job.uid, WITHIN_S), groups_of_process(job.pid)
        if answer is not None and answer.value and had is not None and had != answer.value:
            stale.append(job.job_id)
    named = ", ".join(map(str, stale[:_MOST_SHOWN])) + (" ..." if len(stale) > _MOST_SHOWN else "")
    return judge(
        not stale,
        "groups of jobs",
        f"other groups than their users have now: job {named}"
        if stale
        else f"{len(jobs)} looked at, all with their users' groups of today",
        {"jobs": len(jobs), "with_other_groups": len(stale)},
        cost="they run on with the groups of their start",
        remedy="let them end, or 'iod requeue' them to have today's",
    )


def groups_of_process(pid: int) -> frozenset[int] | None:
    """Its effective and supplementary groups; None: it is gone, or hidden."""
    if not (status := read_status(pid)):
        return None
    return frozenset(map(int, status[b"Gid"].split()[1:2] + status[b"Groups"].split()))


# -- the Python that their jobs begin with ---------------------------------------------------------


def find_flaw_of_python() -> Condition | None:
    """Why not all users can run what jobs begin with that have space of a tier (``staging``)."""
    package = Path(staging.__file__).parents[1]
    return find_flaw((sys.executable, os.__file__, str(package)))


def judge_python(flaw: Condition | None, *, has_tiers: bool) -> Finding:
    """Whether users can run it and nobody else can change it; jobs need it where tiers are."""
    return judge(
        flaw is None,
        "Python for users",
        f"all users may run {sys.executable}" if flaw is None else flaw.fact,
        {"path": sys.executable},
        cost="jobs with --scratch or --fast fail: they begin with this program, as their users",
        remedy="" if flaw is None else flaw.cure,
        verdict=Verdict.BROKEN if has_tiers else Verdict.LACKING,
    )
