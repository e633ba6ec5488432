"""What all verbs share: the socket, the configuration, and the directories of the daemon."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iodaemon.errors import ConfigError, IodaemonError, NoDaemon
from iodaemon.socket_path import find_running, usual_runtime_dir, usual_state_dir

if TYPE_CHECKING:
    from iodaemon.api.client import Client
    from iodaemon.api.model import JsonObject
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
        self._clients: list[Client] = []

    def socket_path(self) -> str:
        """The socket to speak to: as given or configured, else the own daemon's or the system's."""
        if self.api:
            return self.api
        if self.config:
            config = self.load_config({})
            socket = str(config.socket_path)
            noted = None if os.path.exists(socket) else _noted_socket(config.state_dir)
            return noted or socket
        return find_socket(os.environ, os.geteuid())

    def client(self) -> Client:
        """A client of the daemon on ``socket_path``; it connects when it is asked something."""
        from iodaemon.api.client import Client

        client = Client(self.socket_path())
        self._clients.append(client)
        return client

    @property
    def change(self) -> tuple[str, str]:
        """What is known of the last change that was asked for, and what shows whether it is so."""
        asked = [each for each in self._clients if each.change]
        return (asked[-1].change, asked[-1].told_by) if asked else ("", "")

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

    The user's own is found by its state directory as well: it may run in another environment (cron,
    su). Where neither exists, that of the user's own simulated node, if there is one.

    Args:
        environ: for the XDG directories and HOME.
        uid: root has the system's daemon alone.
        system_config: the system's configuration file.
        system_dir: where the system's sockets are, unless that file says otherwise.
    """
    system = f"{_place_in(system_config, 'runtime_dir') or system_dir}/{SOCKET_NAME}"
    if uid == 0:
        return _or_simulated(system, system_dir, uid)
    config, usual = _own_config(environ), usual_runtime_dir(environ, uid)
    own = f"{_place_in(config, 'runtime_dir') or usual}/{SOCKET_NAME}"
    if _is_own_socket(own, uid):
        return own
    state_dir = _place_in(config, "state_dir") or usual_state_dir(environ)
    if state_dir and _is_owned(state_dir, uid) and (noted := _noted_socket(state_dir)):
        return noted
    return system if os.path.exists(system) else _or_simulated(own, usual, uid)


def _noted_socket(state_dir: str) -> str | None:
    """Where the daemon that runs on this state directory has its socket; None: none runs."""
    try:
        running = find_running(state_dir)
    except OSError:
        return None
    if running is None:
        return None
    if running.why_lost:
        raise NoDaemon(running.why_lost)
    return running.socket


def _or_simulated(socket: str, default_dir: str, uid: int) -> str:
    simulated = f"{default_dir}{SIMULATED}/{SOCKET_NAME}"
    is_alone = not os.path.exists(socket) and _is_own_socket(simulated, uid)
    return simulated if is_alone else socket


def _is_own_socket(path: str, uid: int) -> bool:
    return _is_owned(os.path.dirname(path), uid) and os.path.exists(path)


def _own_config(environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_CONFIG_HOME", "")
    if not home.startswith("/"):
        home = f"{environ.get('HOME', '')}/.config"
    return f"{home}/iodaemon/config.toml"


def _is_owned(folder: str, uid: int) -> bool:
    """True when nobody else can have put a socket there; /tmp is open to everybody."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022


def _place_in(file: str, key: str) -> str | None:
    """What a configuration file says of this directory; None where it says nothing."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if key not in text:
        return None
    import tomllib

    try:
        value = tomllib.loads(text).get(key)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: no valid TOML: {error}") from error
    return value if isinstance(value, str) else None


_PLACES: Final = ("state_dir", "runtime_dir", "supervisor_dir")
_NOT_SET: Final = "none"
"""In TOML, which has no word for it (``config.table``)."""
_ANSWER_WITHIN_S: Final = 1.0


def find_service_uid(session: Session) -> int | None:
    """Whose daemon the system's service is; None: it is not the one spoken of, or not set up."""
    from iodaemon.doctor.service import find_service_uid as look_up

    if os.path.dirname(session.socket_path()) != SYSTEM_RUNTIME_DIR:
        return None
    return look_up()


def load_config_of_daemon(session: Session) -> tuple[Config, int | None]:
    """What the daemon that is spoken of would read if it were started now.

    Returns:
        The settings, and the service's uid as from ``find_service_uid``.
    """
    service_uid = find_service_uid(session)
    return session.load_config({}, is_system=service_uid is not None), service_uid


def find_places(settings: JsonObject) -> dict[str, str]:
    """Its places in the answer of ``GET /v1/config``, which has TOML."""
    import tomllib

    found: dict[str, str] = {}
    rows = settings.get("settings")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("key") in _PLACES:
            found |= tomllib.loads(f"{row['key']} = {row['value']}")
    return {key: value for key, value in found.items() if value != _NOT_SET}


def find_state_dir(session: Session) -> Path:
    """The state directory of the daemon that runs, else the one that is configured."""
    from iodaemon.api.client import Client

    config, _ = load_config_of_daemon(session)
    try:
        answer = Client(session.socket_path(), _ANSWER_WITHIN_S).config()
    except IodaemonError:
        answer = {}
    return Path(find_places(answer).get("state_dir", config.state_dir))
