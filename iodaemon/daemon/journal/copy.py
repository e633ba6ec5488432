"""A copy of an open database in one file: whole, checked, on the disk, and there all at once."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from iodaemon.daemon.journal.sqlite_error import disk_error
from iodaemon.errors import JournalError


def copy_database(
    source: sqlite3.Connection,
    target: Path,
    *,
    replace: bool,
    finish: Callable[[sqlite3.Connection], None] = lambda _: None,
) -> int:
    """Copy it as it stands at one instant, while others may write to it (SQLite's backup API).

    All pages are copied in one step, from one snapshot: writers are not held up, and none of them
    makes it begin anew. The copy is one file without a log, for its owner alone.

    Args:
        source: open.
        target: the file; it has its name when it is complete, and not before.
        replace: a file of that name is replaced; else it is an error.
        finish: changes the copy before it is checked.

    Returns:
        Its size in bytes.

    Raises:
        FileExistsError: it is there, and is not to be replaced.
        OSError: it cannot be written.
        sqlite3.Error: it cannot, or the source cannot be read.
        JournalError: what was copied is damaged.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(part, isolation_level=None)) as copy:
            source.backup(copy, pages=-1)
            copy.execute("PRAGMA journal_mode=DELETE")
            finish(copy)
            check_integrity(copy, target)
        size = part.stat().st_size
        put_in_place(part, target, replace=replace)
    except sqlite3.Error as error:
        if (behind := disk_error(target.parent, error)) is not None:
            raise behind from error
        raise
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return size


def check_integrity(db: sqlite3.Connection, path: Path) -> None:
    """Look at every page and index.

    Raises:
        JournalError: something does not fit.
    """
    problem = " ".join(str(db.execute("PRAGMA integrity_check(1)").fetchone()[0]).split())
    if problem != "ok":
        raise JournalError(f"{path} is damaged ({problem}); use another copy")


def put_in_place(part: Path, target: Path, *, replace: bool) -> None:
    """Give a complete file its name, durably; at no time is there half of it.

    Raises:
        FileExistsError: there is one, and it is not to be replaced.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    if replace:
        part.rename(target)
    else:
        try:
            os.link(part, target)
        except PermissionError:  # a file system without hard links
            if target.exists():
                raise FileExistsError(target) from None
            part.rename(target)
    sync_folder(target.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a directory durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
