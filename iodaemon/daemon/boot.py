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


def note_boot(state: Path) -> None:
    """Remember this boot, durably; writes nothing when it is noted already.

    Raises:
        OSError: the state directory cannot be written.
    """
    if (state / _FILE).exists() and is_same_boot(state):
        return
    temporary = state / f"{_FILE}.new"
    temporary.write_text(read_boot_id() + "\n")
    temporary.rename(state / _FILE)
    sync_directory(str(state))
