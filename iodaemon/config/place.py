"""Where files are that nobody names: configuration, state and sockets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from iodaemon.config.policy import config_home_of
from iodaemon.errors import ConfigError
from iodaemon.socket_path import usual_runtime_dir, usual_state_dir

SYSTEM_CONFIG: Final = Path("/etc/iodaemon/config.toml")
SYSTEM_SUPERVISOR_DIR: Final = "/var/lib/iodaemon-supervisor"
"""Beside the daemon's directory, not in it: the daemon could put another one in its place."""


def default_file(environ: Mapping[str, str], uid: int) -> Path | None:
    """Where the configuration is looked for; None where there is no home directory."""
    if uid == 0:
        return SYSTEM_CONFIG
    home = config_home_of(environ)
    return None if home is None else home / "iodaemon" / "config.toml"


SIMULATED: Final = "-simulated"
"""What the default places of a simulated node end with: its journal is not the server's, and its
socket is not where the server's users look."""


def default_place(
    key: str, environ: Mapping[str, str], uid: int, *, is_simulated: bool = False
) -> str:
    """The default of ``state_dir`` or ``runtime_dir`` (``iodaemon.socket_path``).

    Raises:
        ConfigError: it depends on HOME, which is not set.
    """
    return _place_of(key, environ, uid) + (SIMULATED if is_simulated else "")


def _place_of(key: str, environ: Mapping[str, str], uid: int) -> str:
    if uid == 0:
        return {"state_dir": "/var/lib/iodaemon", "runtime_dir": "/run/iodaemon"}[key]
    if key == "runtime_dir":
        return usual_runtime_dir(environ, uid)
    state_dir = usual_state_dir(environ)
    if state_dir is None:
        raise ConfigError("state_dir has no default while HOME is not set; set state_dir")
    return state_dir
