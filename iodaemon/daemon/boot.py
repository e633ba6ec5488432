"""Which boot of the machine the journal was last written in."""

from __future__ import annotations

from pathlib import Path

from iodaemon.backend.linux.process import read_boot_id
from iodaemon.backend.linux.protocol import sync_directory

_FILE = "boot_id"


def is_same_boot(state: Path) -> bool:
    """False when the machine was restarted since ``note_boot``; True where that is not known."""
    try:
        noted = (state / _FILE).read_text().strip()
    except FileNotFoundError:
        return True
    return noted == read_boot_id()


def noted_boot(state: Path) -> str:
    """The boot that is noted; empty: none is."""
    try:
        return (state / _FILE).read_text().strip()
    except FileNotFoundError:
        return ""


def note_boot(state: Path, boot_id: str | None = None) -> None:
    """Remember this boot, durably; writes nothing when it is noted already.

    Args:
        state: the daemon's directory.
        boot_id: another boot, in which the journal was written. None: the present one.

    Raises:
        OSError: the state directory cannot be written.
    """
    boot_id = read_boot_id() if boot_id is None else boot_id
    if noted_boot(state) == boot_id:
        return
    temporary = state / f"{_FILE}.new"
    temporary.write_text(boot_id + "\n")
    temporary.rename(state / _FILE)
    sync_directory(str(state))
