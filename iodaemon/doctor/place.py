"""Whose the directories are, and who holds the locks in them. Nothing is made or locked here."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.doctor.finding import Finding, Values, broken, lacking, ok
from iodaemon.node.condition import (
    Condition,
    find_standstill,
    find_wrong_owner,
    of_error,
)
from iodaemon.socket_path import find_holder

_STOPPED: Final = MappingProxyType(
    {
        "daemon": "it does nothing, and suspended jobs run on after orphan_grace",
        "anchor": "a supervisor that ends now is not started again",
    }
)
AS_ROOT: Final = "run 'iod doctor' as root"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that has to be somebody's alone.

    Attributes:
        what: a stable name.
        path: of it.
        owner_uid: whose it has to be.
        files: in it, that have to be theirs as well, where they exist.
        may_be_link: a symbolic link may stand in its place.
    """

    what: str
    path: Path
    owner_uid: int
    files: Sequence[str] = ()
    may_be_link: bool = True


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a directory is.

    Attributes:
        unseen: why who examines may not look at it; empty: it was looked at.
        uid: its owner; None: it does not exist, or is not known.
        mode: its permissions.
        wrong: why it cannot be used, or is not that user's alone; None: it can, and is.
        blind: files in it could not be looked at.
    """

    unseen: str = ""
    uid: int | None = None
    mode: int = 0o700
    wrong: Condition | None = None
    blind: bool = False


def probe_place(place: Place) -> Reading:
    """Look at it; as who may not, and is not to use it either, say so."""
    path, uid = place.path, place.owner_uid
    blind = bool(place.files) and not os.access(path, os.X_OK, effective_ids=True)
    files = () if blind else place.files
    try:
        wrong = find_wrong_owner(path, uid, files, may_be_link=place.may_be_link)
        status = os.stat(path) if path.exists() else os.lstat(path)
    except FileNotFoundError:
        return Reading()
    except OSError as error:
        if is_hidden(error, is_anothers=uid != os.geteuid()):
            return Reading(unseen=error.strerror or str(error))
        return Reading(wrong=of_error(path, error))
    mode = stat.S_IMODE(status.st_mode)
    return Reading(uid=status.st_uid, mode=mode, wrong=wrong, blind=blind)


def is_hidden(error: Exception, *, is_anothers: bool) -> bool:
    """Whether the error says only that root would have to look.

    Args:
        error: of the look.
        is_anothers: what is looked at is not who examines' to use.
    """
    return is_anothers and isinstance(error, PermissionError) and os.geteuid() != 0


def judge_place(place: Place, reading: Reading) -> Finding:
    """The owner, who may write, and whose the files in it are."""
    path = place.path
    values: Values = {
        "owner_uid": reading.uid,
        "wanted_uid": place.owner_uid,
        "mode": reading.mode,
    }
    if reading.unseen:
        return _unseen(place.what, f"{path}: {reading.unseen}")
    if reading.wrong is not None:
        fact, cure = reading.wrong
        cost = "it refuses to start; jobs that run go on"
        return broken(place.what, fact, values, cost=cost, remedy=cure)
    if reading.uid is None:
        return ok(place.what, f"{path} does not exist yet", values)
    shown = f"{path}: uid {reading.uid}, mode {reading.mode:04o}"
    if reading.blind:
        shown += "; what is in it may not be looked at"
    return ok(place.what, shown, values)


def _unseen(what: str, shown: str) -> Finding:
    return lacking(what, f"not looked at: {shown}", cost="it may be wrong", remedy=AS_ROOT)


def judge_lock(who: str, path: Path, *, answers: bool) -> Finding:
    """Who holds the lock in this file; a holder that nobody hears is told.

    Args:
        who: ``daemon`` or ``anchor``.
        path: of the lock.
        answers: a daemon answers.
    """
    what = f"{who}'s lock"
    try:
        pid = find_holder(str(path))
    except (FileNotFoundError, NotADirectoryError):  # a wrong directory is a finding of its own
        return ok(what, f"{path} does not exist yet", {"pid": None})
    except OSError as error:
        if is_hidden(error, is_anothers=True):
            return _unseen(what, f"{path}: {error.strerror}")
        fact, cure = of_error(path, error)
        return broken(what, fact, cost="it is not known who holds it", remedy=cure)
    if pid is None:
        return ok(what, f"nobody holds {path}", {"pid": None})
    shown, values = f"pid {pid} ({_name_of(pid)}) holds {path}", {"pid": pid}
    if (stopped := find_standstill(who, pid)) is not None:
        cost = _STOPPED[who]
        return broken(what, stopped.fact, values, cost=cost, remedy=stopped.cure)
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


def judge_places(places: Sequence[Place]) -> Iterator[Finding]:
    """Each of them."""
    for place in places:
        yield judge_place(place, probe_place(place))
