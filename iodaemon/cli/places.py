"""Which directories are those of the daemon that is spoken of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iodaemon.cli.session import SYSTEM_RUNTIME_DIR, Session
from iodaemon.errors import IodaemonError

if TYPE_CHECKING:
    from iodaemon.api.model import JsonObject
    from iodaemon.config import Config

_PLACES: Final = ("state_dir", "runtime_dir", "supervisor_dir")
_NOT_SET: Final = "none"
"""In TOML, which has no word for it (``config.table``)."""
_ANSWER_WITHIN_S: Final = 1.0


def find_service_uid(session: Session) -> int | None:
    """Whose daemon the system's service is; None: it is not the one spoken of, or not set up."""
    from iodaemon.doctor.account import find_service_uid as look_up

    if os.path.dirname(session.socket_path()) != SYSTEM_RUNTIME_DIR:
        return None
    return look_up()


def load_config_of_daemon(session: Session) -> tuple[Config, int | None]:
    """What the daemon that is spoken of would read if it were started now.

    Returns:
        The settings, and the service's uid as from ``find_service_uid``.

    Raises:
        ConfigError: one line with file, table and key.
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
    """The state directory of the daemon that runs, else the one that is configured.

    Raises:
        ConfigError: the configuration is wrong.
    """
    from iodaemon.api.client import Client

    config, _ = load_config_of_daemon(session)
    try:
        answer = Client(session.socket_path(), _ANSWER_WITHIN_S).config()
    except IodaemonError:
        answer = {}
    return Path(find_places(answer).get("state_dir", config.state_dir))
