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
    """Jobs of this user are not run: ``code`` is "no_account" or "expired"."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


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


def why_not_run(uid: int | None, min_uid: int | None) -> str:
    """Why no job of this uid is run; empty: it is, if it has an account.

    Args:
        uid: of the launch; None: the supervisor's own.
        min_uid: no job runs as a uid below; None: the supervisor is a user's own, and runs jobs
            as that user alone.
    """
    if min_uid is None:
        return "" if uid in (None, os.geteuid()) else f"jobs of uid {uid} are not run here"
    if uid is None or uid < min_uid:
        return f"jobs of uid {uid} are not run here; min_uid is {min_uid}"
    return ""


def find_account(uid: int) -> Account:
    """Whom a job is to become. May take for ever.

    Raises:
        AccountError: no job runs as this one.
    """
    import pwd  # only the job's own process needs it

    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError) as error:
        raise AccountError("no_account") from error
    if _has_expired(entry.pw_name):
        raise AccountError("expired")
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
