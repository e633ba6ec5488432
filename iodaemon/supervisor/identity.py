"""Who may speak to the supervisor, and whose jobs it runs.

The daemon is one uid, by SO_PEERCRED. What it says of a job's user is a number; names and groups
are the system's, looked up in the job's own process before ``execve``: behind nsswitch.conf(5) is
a network, so that a lookup may take for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import Final, NamedTuple

_CREDENTIALS: Final = struct.Struct("3i")
_EXPIRY: Final = 7
"""Place in /etc/shadow of the day, since 1970, from which an account is not used (shadow(5))."""
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class AccountError(Exception):
    """Jobs of this user are not run. ``is_lasting`` is False where there may be one later."""

    def __init__(self, problem: str, *, is_lasting: bool) -> None:
        super().__init__(problem)
        self.is_lasting = is_lasting


class Account(NamedTuple):
    """A user of this machine as it is now."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str


def no_account(*uids: int | str) -> str:
    """That these numbers, one at least, are no user's."""
    have = "has" if len(uids) == 1 else "have"
    return f"uid {', '.join(map(str, uids))} {have} no account on this machine (any more)"


def peer_of(line: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end when it connected."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def find_account(uid: int | None, min_uid: int | None) -> Account | None:
    """Whom a job is to become; None: it stays the supervisor's own user. May take for ever.

    Args:
        uid: of the launch; None: the supervisor's own.
        min_uid: no job runs as a uid below; None: the supervisor is a user's own, and runs jobs
            as that user alone.

    Raises:
        AccountError: no job runs as this one.
    """
    if min_uid is None:
        if uid not in (None, os.geteuid()):
            raise AccountError(f"jobs of uid {uid} are not run here", is_lasting=True)
        return None
    if uid is None or uid < min_uid:
        problem = f"jobs of uid {uid} are not run here; min_uid is {min_uid}"
        raise AccountError(problem, is_lasting=True)
    import pwd  # only the job's own process needs it

    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError) as error:
        raise AccountError(no_account(uid), is_lasting=False) from error
    if _has_expired(entry.pw_name):
        problem = f"the account of {entry.pw_name} (uid {uid}) has expired"
        raise AccountError(problem, is_lasting=False)
    shell = entry.pw_shell or "/bin/sh"
    return Account(uid, entry.pw_gid, tuple(groups), entry.pw_name, entry.pw_dir, shell)


def _has_expired(name: str) -> bool:
    """By the expiry date alone: a locked password (``!``, ``*``) is no locked account."""
    with contextlib.suppress(OSError), open("/etc/shadow", "rb") as file:
        for line in file:
            fields = line.split(b":")
            if fields[0] == os.fsencode(name) and len(fields) > _EXPIRY:
                return fields[_EXPIRY].isdigit() and time.time() // 86400 >= int(fields[_EXPIRY])
    return False


def take_on(account: Account) -> None:
    """Be this user and nobody else, for good: groups first, only root may set them.

    Raises:
        OSError: the kernel refuses; nothing may be run then.
    """
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    is_taken = os.getresuid() == (account.uid,) * 3 and os.getresgid() == (account.gid,) * 3
    if not is_taken or set(os.getgroups()) != set(account.groups):
        raise PermissionError(f"uid {account.uid} was not taken on")


def complete_environment(environment: dict[str, str], account: Account) -> dict[str, str]:
    """The environment as submitted, and what every program expects where that has none of it."""
    return {
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        "PATH": _PATH,
        **environment,
    }
