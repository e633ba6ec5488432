"""Conditions of the machine that keep iodaemon from its work: one finder and one sentence each, for
the daemon, the root side, ``iod doctor`` and ``iod calibrate``. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from iodaemon.node.sampler.proc_files import find_state

_DISK: Final = MappingProxyType(
    {
        errno.EROFS: ("the file system of {} is read-only", "mount it writable"),
        errno.ENOSPC: ("no space is left on the file system of {}", "free some space there"),
        errno.EDQUOT: ("the quota on the file system of {} is used up", "free some space there"),
    }
)
_NO_INODE: Final = ("no inode is left on the file system of {}", "remove files there")
STATE_FILES: Final = ("daemon.lock", "journal.db", "journal.db-wal", "journal.db-shm", "boot_id")
"""The daemon's files in its state directory, the lock first."""
_OTHERS_WRITE: Final = 0o022
LEAST_FREE_BYTES: Final = 256 << 20
"""Below this the journal and the jobs' output soon do not fit."""


class Condition(NamedTuple):
    """A sentence with the path or the process, without a semicolon, and what to do about it."""

    fact: str
    cure: str

    def __str__(self) -> str:
        return f"{self.fact}; {self.cure}"


NO_PROCESS_IO: Final = Condition(
    "this kernel does not count I/O by process", "take one with CONFIG_TASK_IO_ACCOUNTING"
)
FEW_FILES: Final = Condition(
    "the daemon has too few file descriptors for one more job",
    "raise its limit (LimitNOFILE= of the unit, else 'ulimit -n') and restart it, jobs run on",
)
NO_ANSWER: Final = Condition(
    "the account databases (nsswitch.conf) do not answer",
    "look at 'getent passwd', passwd and group in /etc/nsswitch.conf, and sssd, nslcd or LDAP",
)


def not_counted(disks: Sequence[str]) -> Condition:
    """The kernel was told not to count the I/O of these disks (at least one)."""
    files = (f"/sys/block/{disk.replace('/', '!')}/queue/iostats" for disk in disks)
    return Condition(
        f"the kernel does not count the I/O of {', '.join(disks)}",
        f"'echo 1 | tee {' '.join(files)}' as root",
    )


class FoundError(OSError):
    """The error that a write would get, with the condition that was found; names no file."""

    def __init__(self, number: int, condition: Condition) -> None:
        super().__init__(number, os.strerror(number))
        self.condition = condition


def of_error(path: str | os.PathLike[str], error: OSError) -> Condition:
    """Why this path, or a new file in it, cannot be used."""
    if isinstance(error, FoundError):
        return error.condition
    fact, cure = _DISK.get(error.errno or 0, ("{} cannot be used ({})", "see that it can"))
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            found = os.statvfs(path)
            if found.f_bavail > 0 and found.f_files > 0 and found.f_favail == 0:
                fact, cure = _NO_INODE
    return Condition(fact.format(os.fspath(path), error.strerror or str(error)), cure)


def find_full_or_read_only(path: str | os.PathLike[str]) -> Condition | None:
    """Why nothing can be written below this directory, or None."""
    error = find_disk_error(path)
    return None if error is None else error.condition


def find_disk_error(path: str | os.PathLike[str]) -> FoundError | None:
    """The same as the error that a write would get."""
    number = 0
    try:
        found = os.statvfs(path)
        if found.f_flag & os.ST_RDONLY:
            number = errno.EROFS
        elif found.f_bavail == 0 or (found.f_files > 0 and found.f_favail == 0):
            number = errno.ENOSPC
    except OSError as error:
        number = error.errno or errno.EIO
    if not number:
        return None
    return FoundError(number, of_error(path, OSError(number, os.strerror(number))))


def judge_free(path: str | os.PathLike[str], free_bytes: int) -> Condition | None:
    """Little space is left for the journal and the jobs' output, or None."""
    if free_bytes >= LEAST_FREE_BYTES:
        return None
    fact = f"{free_bytes >> 20} MiB are left on the file system of {os.fspath(path)}"
    return Condition(fact, "free some space there, or set state_dir to another file system")


def find_wrong_owner(
    path: str | os.PathLike[str], uid: int, files: Sequence[str] = (), *, may_be_link: bool = True
) -> Condition | None:
    """Why others than this user may change this directory, or None; OSError if it is unreadable.

    Args:
        files: files in it that have to be the user's, if they exist.
        may_be_link: whether it may be a symbolic link of the user's or root's.
    """
    name = os.fspath(path)
    chown = f"'chown -R {uid} {name}/' as root" if files else f"'chown {uid} {name}' as root"
    link = os.lstat(name)
    try:
        found = os.stat(name) if may_be_link else link
    except FileNotFoundError:
        return Condition(
            f"{name} is a link to what does not exist", "make that, or remove the link"
        )
    if not stat.S_ISDIR(found.st_mode):
        return Condition(f"{name} is no directory", "move it away")
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, uid):
        return _another(f"the link {name}", link.st_uid, uid, f"'chown -h {uid} {name}' as root")
    if found.st_uid != uid:
        return _another(name, found.st_uid, uid, chown)
    if found.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        return Condition(f"others may write to {name} (mode {mode:04o})", f"'chmod go-w {name}/'")
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            if (owner := os.lstat(f"{name}/{file}").st_uid) != uid:
                return _another(f"{name}/{file}", owner, uid, chown)
    return None


def _another(what: str, owner: int, uid: int, cure: str) -> Condition:
    return Condition(f"{what} belongs to uid {owner}, not to uid {uid}", cure)


def find_standstill(who: str, pid: int) -> Condition | None:
    """A process of iodaemon (daemon, supervisor or anchor) is stopped, or None."""
    if find_state(pid) not in ("T", "t"):
        return None
    return Condition(f"the {who} (pid {pid}) is stopped", f"'kill -CONT {pid}' lets it go on")


def why_silent(pid: int) -> Condition:
    """Why the supervisor with this pid does not answer."""
    return find_standstill("supervisor", pid) or Condition(
        f"the supervisor (pid {pid}) does not answer",
        f"after 'kill -9 {pid}' another takes its jobs over",
    )
