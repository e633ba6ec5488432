"""What all verbs share: where the daemon's socket is, and which configuration counts."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iodaemon.errors import ConfigError, IodaemonError

if TYPE_CHECKING:
    from iodaemon.api.client import Client
    from iodaemon.config import Config

SYSTEM_CONFIG: Final = "/etc/iodaemon/config.toml"
SYSTEM_RUNTIME_DIR: Final = "/run/iodaemon"
SOCKET_NAME: Final = "iod.sock"
SIMULATED: Final = "-simulated"
"""The places of ``iodaemon.config``, written out: importing it takes longer than asking."""


class Session:
    """The options that stand before the verb.

    Attributes:
        api: the daemon's socket. None: the usual places.
        config: the configuration file. None: the usual places.
        debug: show the traceback of an error.
    """

    def __init__(self) -> None:
        self.api: str | None = None
        self.config: str | None = None
        self.debug = False
        self._is_simulated: bool | None = None

    def socket_path(self) -> str:
        """The socket to speak to: as given or configured, else the own daemon's or the system's.

        Raises:
            ConfigError: the configuration file is wrong.
        """
        if self.api:
            return self.api
        if self.config:
            return str(self.load_config({}).socket_path)
        return find_socket(os.environ, os.geteuid())

    def client(self) -> Client:
        """A client of the daemon on ``socket_path``; it connects when it is asked something."""
        from iodaemon.api.client import Client

        return Client(self.socket_path())

    def is_simulated(self) -> bool:
        """True when the daemon only pretends to run commands; False without a daemon."""
        if self._is_simulated is None:
            try:
                self._is_simulated = self.client().node().get("backend") == "simulated"
            except IodaemonError:
                self._is_simulated = False
        return self._is_simulated

    def load_config(self, overrides: Mapping[str, Any], *, is_system: bool = False) -> Config:
        """The settings in force; options override the file.

        Args:
            overrides: what options say.
            is_system: those of the system's service.

        Raises:
            ConfigError: one line with file, table and key.
        """
        from iodaemon.config import load_config

        path = Path(self.config) if self.config else None
        return load_config(path, os.environ, os.geteuid(), overrides, is_system=is_system)


def find_socket(
    environ: Mapping[str, str],
    uid: int,
    system_config: str = SYSTEM_CONFIG,
    system_dir: str = SYSTEM_RUNTIME_DIR,
) -> str:
    """The socket of the user's own daemon where there is one, else the system's.

    Where neither exists, that of the user's own simulated node, if there is one.

    Args:
        environ: for the XDG directories and HOME.
        uid: root has the system's daemon alone.
        system_config: the system's configuration file.
        system_dir: where the system's sockets are, unless that file says otherwise.
    """
    system = f"{_runtime_dir_in(system_config) or system_dir}/{SOCKET_NAME}"
    if uid == 0:
        return _or_simulated(system, system_dir, uid)
    own = f"{_own_runtime_dir(environ, uid)}/{SOCKET_NAME}"
    if _is_own_socket(own, uid) or not os.path.exists(system):
        return _or_simulated(own, _default_runtime_dir(environ, uid), uid)
    return system


def _or_simulated(socket: str, default_dir: str, uid: int) -> str:
    simulated = f"{default_dir}{SIMULATED}/{SOCKET_NAME}"
    is_alone = not os.path.exists(socket) and _is_own_socket(simulated, uid)
    return simulated if is_alone else socket


def _is_own_socket(path: str, uid: int) -> bool:
    return _is_owned(os.path.dirname(path), uid) and os.path.exists(path)


def _own_runtime_dir(environ: Mapping[str, str], uid: int) -> str:
    home = environ.get("XDG_CONFIG_HOME", "")
    if not home.startswith("/"):
        home = f"{environ.get('HOME', '')}/.config"
    if configured := _runtime_dir_in(f"{home}/iodaemon/config.toml"):
        return configured
    return _default_runtime_dir(environ, uid)


def _default_runtime_dir(environ: Mapping[str, str], uid: int) -> str:
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return f"{runtime.rstrip('/')}/iodaemon"
    return f"/tmp/iodaemon-{uid}"  # noqa: S108 - used only if it is the user's own


def _is_owned(folder: str, uid: int) -> bool:
    """True when nobody else can have put a socket there; /tmp is open to everybody."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022


def _runtime_dir_in(file: str) -> str | None:
    """What a configuration file says of the sockets' place; None where it says nothing."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if "runtime_dir" not in text:
        return None
    import tomllib

    try:
        value = tomllib.loads(text).get("runtime_dir")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: no valid TOML: {error}") from error
    return value if isinstance(value, str) else None
