"""A copy of the journal in one file, made while the daemon runs or not.

The journal's file itself is read: it holds the environments of all users' jobs, so that whoever
may read the file may copy it, and nobody else: its owner, and root.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import iodaemon
from iodaemon.daemon.journal import load, schema, store
from iodaemon.daemon.journal.record import encode
from iodaemon.daemon.journal.schema import disk_error, spoken
from iodaemon.daemon.place import noted_boot, sync_folder
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


class Copied(NamedTuple):
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
    with opened(path) as source, _told(target):
        if target.exists() and target.samefile(path):
            raise RequestError(f"{target} is the journal itself; name another file")
        if not target.parent.is_dir():
            raise NotFound(
                f"there is no folder {target.parent} to copy to; make it, or name another"
            )
        schema.check(source, path)
        with copied(source, target) as (part, copy):
            boot_id, version = noted_boot(state), iodaemon.__version__
            note = CopyNote(at_s=time.time(), boot_id=boot_id, version=version)
            store.store_meta(copy, {COPY: encode(note)})
            jobs, unfinished = load.count_jobs(copy)
            check_integrity(copy, target)
            copy.close()
            size_bytes = part.stat().st_size
            put_in_place(part, target, replace=replace)
    return Copied(jobs, unfinished, size_bytes)


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


# -- a new file beside another -------------------------------------------------------------------


@contextmanager
def copied(source: sqlite3.Connection, target: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """A copy of the source as it stands at one instant, which has a name of its own meanwhile.

    All pages are copied in one step, from one snapshot: writers are not held up, and none of them
    makes it begin anew (SQLite's backup API). The copy is one file without a log, for its owner
    alone; it is changed and checked by its connection, then closed, and put in the target's place
    or removed.

    Raises:
        OSError: it cannot be written.
        sqlite3.Error: it cannot, or the source cannot be read.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(part, isolation_level=None)) as copy:
            source.backup(copy, pages=-1)
            copy.execute("PRAGMA journal_mode=DELETE")
            yield part, copy
    except sqlite3.Error as error:
        if (behind := disk_error(target.parent, error)) is not None:
            raise behind from error
        raise
    finally:
        part.unlink(missing_ok=True)


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
