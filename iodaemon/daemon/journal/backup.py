"""A copy of the journal in one file, made while the daemon runs or not.

The journal's file itself is read: it holds the environments of all users' jobs, so that whoever
may read the file may copy it, and nobody else: its owner, and root.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

import iodaemon
from iodaemon.daemon.boot import noted_boot
from iodaemon.daemon.journal import load, schema, store
from iodaemon.daemon.journal.copy import copy_database
from iodaemon.daemon.journal.record import encode
from iodaemon.daemon.journal.sqlite_error import spoken
from iodaemon.errors import JournalError, NotFound, NotPermitted, RequestError
from iodaemon.node.condition import of_error

COPY: Final = "copy"
"""The key in ``meta`` of a copy that tells of it; a journal has none."""
_MAGIC: Final = b"SQLite format 3\0"
_HEAD_BYTES: Final = 64


class CopyNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy says of itself.

    Attributes:
        at_s: when it was made.
        boot_id: of the machine's boot in which the journal was written; empty: not known.
        version: of the iodaemon that made it.
    """

    at_s: float
    boot_id: str
    version: str


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy holds."""

    jobs: int
    unfinished: int
    size_bytes: int


def back_up(state: Path, target: Path, *, replace: bool) -> Copied:
    """Copy the journal of this state directory to a file, checked, and durable on return.

    Raises:
        NotFound: there is no journal, or no folder to copy it to.
        NotPermitted: it may not be read, or the file not be written.
        RequestError: the file is there already, or is the journal itself.
        JournalError: the journal is damaged, or of an unknown version, or the disk is full.
    """
    path = state / "journal.db"
    counts: list[tuple[int, int]] = []

    def finish(copy: sqlite3.Connection) -> None:
        note = CopyNote(at_s=time.time(), boot_id=noted_boot(state), version=iodaemon.__version__)
        store.store_meta(copy, {COPY: encode(note)})
        counts.append(load.count_jobs(copy))

    with opened(path) as source, _told(target):
        _check(path, target)
        schema.check(source, path)
        size_bytes = copy_database(source, target, replace=replace, finish=finish)
    [(jobs, unfinished)] = counts
    return Copied(jobs=jobs, unfinished=unfinished, size_bytes=size_bytes)


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A journal or a copy of one, to be looked at; what goes wrong is told in one line.

    Raises:
        NotFound: there is none.
        NotPermitted: it may not be read.
        JournalError: it cannot be read as a database.
    """
    try:
        with path.open("rb") as file:  # of another process's: our own connections have locks
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path}; name the right one, or --state-dir") from error
    except PermissionError as error:
        raise NotPermitted(
            f"{path} may not be read: run this as root, or as its owner; it holds the "
            "environments of all users' jobs"
        ) from error
    if not head.startswith(_MAGIC):
        what = "a text file" if head.isascii() and b"\0" not in head else "another kind of file"
        what = what if head else "empty"
        raise JournalError(f"{path} is {what}, no journal and no copy that 'iod backup' made")
    with (
        spoken(path),
        closing(sqlite3.connect(path, isolation_level=None, timeout=schema.BUSY_S)) as db,
    ):
        db.execute("PRAGMA query_only=ON")
        yield db


def _check(path: Path, target: Path) -> None:
    if target.exists() and target.samefile(path):
        raise RequestError(f"{target} is the journal itself; name another file")
    if not target.parent.is_dir():
        raise NotFound(f"there is no folder {target.parent} to copy to; make it, or name another")


@contextmanager
def _told(target: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise RequestError(f"{target} is there already: name another, or use --force") from error
    except PermissionError as error:
        raise NotPermitted(f"{target} may not be written: name a folder of your own") from error
    except OSError as error:
        raise RequestError(f"{target}: {of_error(target.parent, error)}") from error
