"""Begins a keeper: its arguments, its lock, its means, its socket.

Arguments: STATE_DIR SOCKET GRACE_S auto|signals, and as a service DAEMON_UID DAEMON_GID MIN_UID.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from typing import Final

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.attempt_record import RecordError, read_keeper
from iodaemon.backend.linux.condition import find_wrong_owner, of_error
from iodaemon.backend.linux.connection import be_the_only_one, listen
from iodaemon.backend.linux.freezer import Freezer
from iodaemon.backend.linux.holder import find_holder
from iodaemon.backend.linux.keeper import Keeper
from iodaemon.backend.linux.means import choose_freezer, find_hierarchy
from iodaemon.backend.linux.scope import open_scope
from iodaemon.backend.linux.service import Service, say, say_failure
from iodaemon.backend.linux.title import set_title

_MOST_FILES: Final = 65536
"""So many does ``process`` close. A job has two of the keeper's, one that asked for space more."""


def main() -> int:
    """Keep until there is nothing left to keep; as a service, until a signal says so."""
    sys.excepthook = say_failure
    _raise_limit()
    state, path, grace_s, means, *identity = sys.argv[1:]
    set_title("iod-keeper", state)
    daemon_uid, daemon_gid, min_uid = map(int, identity) if identity else (None, None, None)
    places = (state, os.path.dirname(path)) if identity else ()
    for place in places:
        if problem := _find_problem(place):
            say(problem)
            return HOPELESS
    lock = os.path.join(state, protocol.LOCK_FILE)
    try:
        is_the_only_one = be_the_only_one(lock)
    except OSError as error:
        say(f"{of_error(lock, error)}, and try again")
        return 1
    if not is_the_only_one:
        say(f"a keeper runs already on {state} (pid {find_holder(lock)}); this one ends")
        return HOPELESS if identity else 0  # the daemon will reach that one
    hierarchy = find_hierarchy() if identity and means != "signals" else None
    freezer = _open_freezer(state, hierarchy, means)
    service = None
    if daemon_uid is not None and min_uid is not None:
        service = Service(daemon_uid, min_uid, lambda: hierarchy and open_scope(hierarchy))
    try:
        listener = listen(path, daemon_gid)
    except OSError as error:
        say(f"{path} cannot be made ({error.strerror}); stop who answers there, or mend it")
        return HOPELESS if identity else 1
    try:
        Keeper(state, listener, freezer, float(grace_s), service=service).serve()
    finally:
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return 0


HOPELESS: Final = 78
"""EX_CONFIG of sysexits.h: systemd does not try again (RestartPreventExitStatus=)."""


def _raise_limit() -> None:
    """As many open files as there may be; a job gets a soft limit of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _open_freezer(state: str, hierarchy: str | None, means: str) -> Freezer:
    """The scope's where there is one to be had, else the best that is."""
    if hierarchy is not None:
        try:
            return open_scope(hierarchy)
        except OSError as error:
            say(f"jobs get no scope of their own: {error}")
    try:
        before = read_keeper(state) or {}
    except RecordError as error:
        say(f"{error}; cgroups of jobs are looked for below this keeper's own")
        before = {}
    return choose_freezer(state, previous_base=before.get("base"), allow_cgroup=means != "signals")


def _find_problem(state: str) -> str | None:
    """Why root must not work in this directory; None: it may."""
    try:
        wrong = find_wrong_owner(state, os.geteuid(), may_be_link=False)
    except OSError as error:
        return f"{state} cannot be used ({error.strerror}); make it, owned by root, mode 0700"
    return None if wrong is None else f"{wrong}, and start the keeper again"
