"""Who could lead away what is written below a path."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

_ROOT: Final = 0


def find_meddler(directory: Path, user: int | None = None) -> str | None:
    """Who besides this user and root could put another directory in the place of this one.

    That is whoever owns a directory of the path, or may write to one that is not sticky: in such
    a one files can be renamed whoever owns them (rename(2)). Access lists need no look: the group's
    bits of a directory that has one say the most that it grants (acl(5)).

    Args:
        directory: exists; links in it are followed first.
        user: effective. None: this process's.

    Returns:
        In words, with the first such directory from above; None: nobody.
    """
    user = os.geteuid() if user is None else user
    whole = directory.resolve()
    for part in (*reversed(whole.parents), whole):
        words = _meddler_of(part.stat(), user)
        if words is not None:
            return f"{part} {words}"
    return None


def name_of(user: int) -> str:
    """The user's name; the number where it has none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"user {user}"


def _meddler_of(status: os.stat_result, user: int) -> str | None:
    if status.st_uid not in (_ROOT, user):
        return f"belongs to {name_of(status.st_uid)}"
    if status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written to by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_of_one(status.st_gid, user):
        return f"may be written to by group {_group(status.st_gid)}"
    return None


def _is_of_one(group: int, user: int) -> bool:
    """Root's group, or that of the user alone, which many systems give everybody."""
    if group == _ROOT:
        return True
    with contextlib.suppress(KeyError):
        found = grp.getgrgid(group)
        name = pwd.getpwuid(user).pw_name
        return found.gr_name == name and set(found.gr_mem) <= {name}
    return False


def _group(group: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(group).gr_name
    return str(group)
