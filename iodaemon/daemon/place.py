"""The daemon's directories: made, its own alone, and locked for as long as it lives.

The file ``boot_id`` of the state directory contains in which boot of the machine, and with which
records of the supervisor, the journal was last written, a line each.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from iodaemon.config import Config
from iodaemon.daemon.account import user_name
from iodaemon.errors import ConfigError, HopelessError
from iodaemon.node.condition import STATE_FILES, find_wrong_owner, of_error
from iodaemon.socket_path import STATE_LOCK, find_running
from iodaemon.supervisor.ledger import read_boot_id
from iodaemon.supervisor.reap import read_state

_LOCKS: Final = {"state_dir": STATE_LOCK, "runtime_dir": "socket.lock"}
"""Two names, because both directories may be one."""
_MAY_PASS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE}
)
"""What another start may not meet."""
_BOOT: Final = "boot_id"


class Places:
    """The directories of one daemon, locked against every other one until ``close``.

    A service of the system has no runtime directory to itself: root made it and what is in it.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._locks: dict[str, int] = {}

    def take(self, key: str) -> None:
        """Make this directory if it is missing, and lock it unless it is locked by this daemon.

        Raises:
            ConfigError: it cannot be had now.
            HopelessError: it cannot be had, or another daemon runs on it.
        """
        if self._config.is_system and key == "runtime_dir":
            return
        path = Path(getattr(self._config, key))
        with spoken_of(path, key), ExitStack() as undo:
            _own_directory(path, key)
            lock = os.open(path / _LOCKS[key], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            undo.callback(os.close, lock)
            before = self._locks.get(key)
            if before is not None and os.path.sameopenfile(before, lock):
                return
            self._lock(lock, path, key)
            undo.pop_all()
            if before is not None:  # somebody removed it
                os.close(before)
            self._locks[key] = lock

    def _lock(self, lock: int, path: Path, key: str) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            running = find_running(str(path)) if key == "state_dir" else None
            if running is not None and running.why_lost:
                raise HopelessError(running.why_lost) from error
            raise HopelessError(
                f"a daemon runs already on {path} ({describe_holder(lock)}); use it, stop it, or "
                f"set another {key}"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, os.fsencode(f"{os.getpid()}\n{self._config.socket_path}\n"), 0)

    def close(self) -> None:
        for lock in self._locks.values():
            os.close(lock)


def describe_holder(lock: int) -> str:
    """The process that holds this open lock file, by what it wrote there, for a message."""
    pid = os.pread(lock, 20, 0).decode(errors="replace").partition("\n")[0]
    return describe_process(int(pid)) if pid.isdigit() else "unknown"


def describe_process(pid: int) -> str:
    """Who a process is, for a message: number, command and user; the number alone when gone."""
    state = read_state(pid)
    return f"pid {pid}" if state is None else f"pid {pid}, {state.name} of {user_name(state.uid)}"


@contextmanager
def prepare_places(config: Config) -> Iterator[Places]:
    """Make the directories and keep every other daemon out of them.

    Raises:
        HopelessError: a directory cannot be had, or a daemon runs already on one of them.
    """
    with closing(Places(config)) as places:
        for key in _LOCKS:
            places.take(key)
        yield places


@contextmanager
def spoken_of(path: Path, key: str) -> Iterator[None]:
    """Turn what the system says of this path into one line that names the setting to change.

    Raises:
        ConfigError: instead of any OSError.
        HopelessError: instead of one that does not pass by itself.
    """
    try:
        yield
    except OSError as error:
        kind = ConfigError if error.errno in _MAY_PASS else HopelessError
        raise kind(f"{key}: {of_error(path, error)}, or set another {key}") from error


def _own_directory(path: Path, key: str) -> None:
    """Make the directory if need be; refuse one that is, or has a file of, somebody else's.

    A symbolic link to it may stand in its place, if it is this user's or root's.
    """
    if not os.path.lexists(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = STATE_FILES if key == "state_dir" else ()
    if (wrong := find_wrong_owner(path, os.geteuid(), files)) is not None:
        raise HopelessError(f"{key}: {wrong}, or set another {key}")


# -- which boot ----------------------------------------------------------------------------------


def is_same_boot(state: Path) -> bool:
    """False when the machine was restarted since ``note_boot``; True where that is not known."""
    return noted_boot(state) in ("", read_boot_id())


def noted_boot(state: Path) -> str:
    """Empty: none is noted."""
    return _read_note(state)[0]


def noted_ledger(state: Path) -> str:
    """Empty: none is noted."""
    return _read_note(state)[1]


def _read_note(state: Path) -> tuple[str, str]:
    try:
        lines = (state / _BOOT).read_text().split("\n")
    except FileNotFoundError:
        return "", ""
    return lines[0].strip(), lines[1].strip() if len(lines) > 1 else ""


def note_boot(state: Path, boot_id: str, ledger: str = "") -> None:
    """Note this boot and the supervisor's records, durably, unless they are noted already.

    Raises:
        OSError: the state directory cannot be written.
    """
    if _read_note(state) == (boot_id, ledger):
        return
    temporary = state / f"{_BOOT}.new"
    temporary.write_text(f"{boot_id}\n{ledger}\n")
    temporary.rename(state / _BOOT)
    sync_folder(state)


def sync_folder(path: Path) -> None:
    """Make the names in a directory durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
