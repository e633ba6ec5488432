"""The daemon's directories: made, its own alone, and locked for as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from iodaemon.backend.linux.condition import STATE_FILES, find_wrong_owner, of_error
from iodaemon.config import Config
from iodaemon.daemon.host import describe_process
from iodaemon.errors import ConfigError, HopelessError

_LOCKS: Final = {"state_dir": "daemon.lock", "runtime_dir": "socket.lock"}
"""Two names, because both directories may be one."""
_MAY_PASS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE}
)
"""What another start may not meet."""


@contextmanager
def prepare_places(config: Config) -> Iterator[None]:
    """Make the directories and keep every other daemon out of them.

    A service of the system has no runtime directory to itself: root made it and what is in it.

    Raises:
        HopelessError: a directory cannot be had, or a daemon runs already on one of them.
    """
    with ExitStack() as locks:
        for key, name in _LOCKS.items():
            if config.is_system and key == "runtime_dir":
                continue
            path = Path(getattr(config, key))
            with spoken_of(path, key):
                own_directory(path, key)
                lock = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                locks.callback(os.close, lock)
                _take(lock, path, key)
        yield


def _take(lock: int, path: Path, key: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
        who = describe_process(int(holder)) if holder.isdigit() else "unknown"
        raise HopelessError(
            f"a daemon runs already on {path} ({who}); use it, stop it, or set another {key}"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


@contextmanager
def spoken_of(path: Path, key: str) -> Iterator[None]:
    """Turn what the system says of this path into one line that says what to do.

    Args:
        path: what cannot be used.
        key: the setting to change.

    Raises:
        ConfigError: instead of any OSError.
        HopelessError: instead of one that does not pass by itself.
    """
    try:
        yield
    except OSError as error:
        kind = ConfigError if error.errno in _MAY_PASS else HopelessError
        raise kind(f"{key}: {of_error(path, error)}, or set another {key}") from error


def own_directory(path: Path, key: str) -> None:
    """Make the directory if need be, for this user alone.

    A symbolic link to it may stand in its place, if it is this user's or root's.

    Args:
        path: of the directory.
        key: the setting to change.

    Raises:
        OSError: it cannot be made.
        HopelessError: it, or a file of the daemon's in it, belongs to somebody else, or others
            may write to it.
    """
    if not os.path.lexists(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = STATE_FILES if key == "state_dir" else ()
    if (wrong := find_wrong_owner(path, os.geteuid(), files)) is not None:
        raise HopelessError(f"{key}: {wrong}, or set another {key}")
