"""What errors of SQLite mean: a line that says what to do, and the disk that is behind one."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from iodaemon.errors import JournalError
from iodaemon.node.condition import find_disk_error, of_error

_ADVICE: Final = (
    ("SQLITE_READONLY", "it cannot be written; check the permissions of file and folder"),
    ("SQLITE_CANTOPEN", "it cannot be opened; check that the folder exists and is accessible"),
    ("SQLITE_BUSY", "another process holds it; end that process"),
    (
        "SQLITE_IOERR",
        (
            "free some space there; where there is some, the disk fails or became read-only: "
            "see 'dmesg', repair it and mount it writable"
        ),
    ),
    ("SQLITE_CORRUPT", "it is damaged; move it away or restore a copy"),
    ("SQLITE_NOTADB", "it is damaged or no journal; move it away or restore a copy"),
)
"""Beginnings of SQLite's error names (https://www.sqlite.org/rescode.html), what to do."""
_BY_THE_DISK: Final = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")
"""Those that a disk which is full or read-only may give as well."""


def error_name(error: BaseException | None) -> str:
    """SQLite's name of the error; empty: it is none of SQLite's."""
    return str(getattr(error, "sqlite_errorname", ""))


def disk_error(folder: Path, error: sqlite3.Error) -> OSError | None:
    """The error of the disk that is behind one of SQLite's; None: another one is.

    Args:
        folder: what was written is still there, so that what it takes of the disk is as it was.
        error: of writing there.
    """
    name = error_name(error)
    if name.startswith("SQLITE_FULL"):  # also where a few blocks are left
        found = find_disk_error(folder)
        return found or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return find_disk_error(folder) if name.startswith(_BY_THE_DISK) else None


def journal_error(path: Path, error: sqlite3.Error, folder: Path | None = None) -> JournalError:
    """The error in one line that says what to do; arguments as of ``spoken``."""
    place = folder or path.parent
    if (behind := disk_error(place, error)) is not None:
        return JournalError(f"journal {path}: {of_error(place, behind)}")
    advice = [text for start, text in _ADVICE if error_name(error).startswith(start)]
    return JournalError(f"journal {path}: {error}" + (f"; {advice[0]}" if advice else ""))


@contextmanager
def spoken(path: Path, folder: Path | None = None) -> Iterator[None]:
    """Turn what SQLite and the system raise into a JournalError.

    Args:
        path: of the journal that is named.
        folder: where is written. None: where the journal is.
    """
    try:
        yield
    except sqlite3.Error as e:
        raise journal_error(path, e, folder) from e
    except OSError as e:
        place = Path(e.filename).parent if e.filename else folder or path.parent
        raise JournalError(f"journal {path}: {of_error(place, e)}") from e
