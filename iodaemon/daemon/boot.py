"""Which boot of the machine, and which records of the supervisor, the journal was last written in.

The file ``boot_id`` contains both, a line each.
"""

from __future__ import annotations

import os
from pathlib import Path

from iodaemon.supervisor.ledger import read_boot_id

_FILE = "boot_id"


def is_same_boot(state: Path) -> bool:
    """False when the machine was restarted since ``note_boot``; True where that is not known."""
    return noted_boot(state) in ("", read_boot_id())


def noted_boot(state: Path) -> str:
    """The boot that is noted; empty: none is."""
    return _read(state)[0]


def noted_ledger(state: Path) -> str:
    """The identity of the supervisor's records that is noted; empty: none is."""
    return _read(state)[1]


def _read(state: Path) -> tuple[str, str]:
    try:
        lines = (state / _FILE).read_text().split("\n")
    except FileNotFoundError:
        return "", ""
    return lines[0].strip(), lines[1].strip() if len(lines) > 1 else ""


def note_boot(state: Path, boot_id: str | None = None, ledger: str = "") -> None:
    """Remember this boot, durably; writes nothing when it is noted already.

    Args:
        state: the daemon's directory.
        boot_id: another boot, in which the journal was written. None: the present one.
        ledger: the identity of the supervisor's records.

    Raises:
        OSError: the state directory cannot be written.
    """
    boot_id = read_boot_id() if boot_id is None else boot_id
    if _read(state) == (boot_id, ledger):
        return
    temporary = state / f"{_FILE}.new"
    temporary.write_text(f"{boot_id}\n{ledger}\n")
    temporary.rename(state / _FILE)
    fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
