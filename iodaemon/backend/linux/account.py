"""Becoming the submitter of a job: who that is, and giving up everything else for good.

Only a process of root can, between fork and exec. Nothing of it is taken from the daemon but the
number; names and groups are the system's. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from typing import Final, NamedTuple

from iodaemon.backend.linux.condition import no_account

_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""For a job whose environment has none."""
_SHADOW: Final = "/etc/shadow"
_EXPIRY: Final = 7
"""Place of the day, since 1970, from which an account is not used (shadow(5)); empty: none."""


class AccountError(Exception):
    """The job cannot be run as this user; one line that says why."""


class NoAccountError(AccountError):
    """There is no such user now. There may be one again: a database may have been out of reach."""


class ExpiredError(NoAccountError):
    """The account has expired. An administrator may prolong it."""


class Account(NamedTuple):
    """A user of this machine, as it is now: groups may have changed since the job was submitted."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    shell: str


def find_account(uid: object, min_uid: int) -> Account:
    """The user with this number. May take for ever (nsswitch.conf), and cannot be interrupted.

    Raises:
        AccountError: jobs are not run as this one.
        NoAccountError: there is none, or it has expired.
    """
    if not isinstance(uid, int) or isinstance(uid, bool) or uid < min_uid:
        raise AccountError(f"jobs of uid {uid} are not run here; min_uid is {min_uid}")
    try:
        entry = pwd.getpwuid(uid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError) as error:
        raise NoAccountError(no_account(uid)) from error
    if has_expired(entry.pw_name, time.time()):
        raise ExpiredError(f"the account of {entry.pw_name} (uid {uid}) has expired")
    return Account(
        uid, entry.pw_gid, tuple(groups), entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh"
    )


def has_expired(name: str, now_s: float, shadow: str = _SHADOW) -> bool:
    """Whether the account may be used no more, by its expiry date (shadow(5), field 8).

    A locked password is no locked account (passwd(1), ``-l``): ``!`` and ``*`` are those of every
    account that is used with keys, or by a service. An account that is in no shadow file, as those
    of a directory service, has no date that could be read here.
    """
    try:
        with open(shadow, "rb") as file:
            entries = [line.split(b":") for line in file]
    except OSError:
        return False
    for fields in entries:
        if fields[0] == os.fsencode(name) and len(fields) > _EXPIRY and fields[_EXPIRY].isdigit():
            return now_s // 86400 >= int(fields[_EXPIRY])
    return False


def take_on(account: Account) -> None:
    """Be this user and nobody else: groups first, for only root may set them.

    setresuid(2) from 0 clears all capabilities, and none can be had back.

    Raises:
        OSError: the kernel refuses, for example because of a limit; nothing may be run then.
    """
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    is_taken = os.getresuid() == (account.uid,) * 3 and os.getresgid() == (account.gid,) * 3
    if not is_taken or set(os.getgroups()) != set(account.groups):
        raise PermissionError(f"uid {account.uid} was not taken on")


def forget_protection() -> None:
    """The keeper may be spared by the kernel when memory runs out; its jobs are not."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")


def completed(environment: dict[str, str], account: Account) -> dict[str, str]:
    """The environment as submitted, and what every program expects where that lacks it."""
    return {
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        "PATH": _PATH,
        **environment,
    }


def create_output(path: str, account: Account) -> int:
    """The job's own output file, made by root in a directory of root's, and given to the user.

    Raises:
        OSError: it cannot be made; also when something lies there, for nobody else could have
            put it there.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    os.fchown(fd, account.uid, account.gid)
    return fd
