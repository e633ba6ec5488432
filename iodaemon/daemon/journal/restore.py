"""Puts a copy of the journal in the journal's place, with what must not be lost of the old one.

No job runs twice and none that runs is forgotten: what the replaced journal knows of jobs that run
now, and of jobs that had not ended when the copy was made, is taken over from it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.config import Config
from iodaemon.daemon.account import user_name
from iodaemon.daemon.boot import note_boot
from iodaemon.daemon.journal import load, schema, store
from iodaemon.daemon.journal.backup import COPY, CopyNote, opened
from iodaemon.daemon.journal.copy import (
    check_integrity,
    copy_database,
    put_in_place,
    sync_folder,
)
from iodaemon.daemon.journal.merge import Merged, merge
from iodaemon.daemon.journal.record import Note, decode_jobs, note_row
from iodaemon.daemon.journal.sqlite_error import error_name, spoken
from iodaemon.daemon.place import describe_holder
from iodaemon.daemon.stranger import find_strangers, highest_job
from iodaemon.errors import IodaemonError, JournalError, NotFound, NotPermitted, RequestError
from iodaemon.socket_path import STATE_LOCK
from iodaemon.supervisor.ledger import read_boot_id

_STOP: Final = {
    True: "systemctl stop iodaemon.socket iodaemon",
    False: "iod stop",
}

_DAMAGED: Final = (
    "SQLITE_CORRUPT",
    "SQLITE_NOTADB",
    "SQLITE_ERROR",
    "SQLITE_IOERR_READ",
    "SQLITE_IOERR_SHORT_READ",
    "SQLITE_IOERR_CORRUPTFS",
)
"""Beginnings of SQLite's names of errors that reading a journal again would give again."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        jobs: how many the journal has now.
        unfinished: how many of them have not ended.
        copied_s: when the copy was made. None: it does not say.
        replaced: where the journal is that was there before. None: there was none.
        unreadable: why nothing could be taken over from that; empty: it could, or there was none.
        merged: what was taken over.
        strangers: attempts that run and are in no journal any more, with their first pids.
        is_drained: the node is drained, as it was when the copy was made.
    """

    jobs: int
    unfinished: int
    copied_s: float | None
    replaced: Path | None
    unreadable: str
    merged: Merged
    strangers: tuple[tuple[str, int | None], ...]
    is_drained: bool


def restore(config: Config, source: Path) -> Restored:
    """Check the copy, put it in the journal's place, keep what was there.

    Raises:
        RequestError: a daemon runs on that state directory, or the copy is its journal.
        NotFound, NotPermitted: copy or state directory.
        JournalError: the copy is damaged, or of an unknown version.
        HopelessError: the copy belongs to another backend.
    """
    state = Path(config.state_dir)
    path = config.journal_path
    if path.exists() and source.exists() and source.samefile(path):
        raise RequestError(f"{source} is the journal itself; name a copy of it")
    with _alone(state, is_system=config.is_system):
        new = path.with_name(f"{path.name}.new")
        with _as_root_again(), opened(source) as copy:
            check_integrity(copy, source)
            schema.check(copy, source)
            schema.check_backend(copy, source, config.backend)
            copy.execute("BEGIN")  # it is open and read from here on, whoever may reach its path
            copy.execute("SELECT count(*) FROM sqlite_master").fetchone()
            with _as_owner_of(state), spoken(source, state):
                copy_database(copy, new, replace=True)
        try:
            return _put(config, source, new)
        finally:
            new.unlink(missing_ok=True)


def _put(config: Config, source: Path, new: Path) -> Restored:
    path, state = config.journal_path, Path(config.state_dir)
    runtime_dir = Path(config.runtime_dir)
    unreadable = _fold(path)
    before = None if unreadable or not path.exists() else path
    with (
        spoken(source, state),
        closing(sqlite3.connect(new, isolation_level=None)) as db,
    ):
        note = _copy_note(db)
        merged = merge(db, before)
        unfinished = decode_jobs(load.unfinished_jobs(db))
        with _as_root_again():  # the supervisor's files are root's
            running = find_strangers(runtime_dir, unfinished)
            strangers = tuple((str(key), pid) for key, pid in running)
            highest = highest_job(config.supervisor_state / "output", runtime_dir)
        store.raise_meta(db, next_id=highest + 1)
        _forget_the_copy(db, note, keeps_anchor=before is not None)
        next_event = schema.meta(db)["next_event"]
        next_event = store.store_events(db, [note_row(_told(source, note, merged))], next_event)
        store.raise_meta(db, next_event=next_event)
        jobs, _ = load.count_jobs(db)
        is_drained = "drain" in schema.meta(db)
        check_integrity(db, source)
    with spoken(path):
        if before is None and note is not None and note.boot_id:
            note_boot(state, note.boot_id)
        replaced = _exchange(path, new)
    return Restored(
        jobs=jobs,
        unfinished=len(unfinished),
        copied_s=None if note is None else note.at_s,
        replaced=replaced,
        unreadable=unreadable,
        merged=merged,
        strangers=strangers,
        is_drained=is_drained,
    )


@contextmanager
def _alone(state: Path, *, is_system: bool) -> Iterator[None]:
    """Keep every daemon out, as a daemon does; inside, its user works there and not root."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_as_owner_of(state))
            lock = os.open(state / STATE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError as error:
            raise NotFound(
                f"there is no {state}; install the service, or start the daemon once, and stop it"
            ) from error
        except PermissionError as error:
            raise NotPermitted(
                f"{state} may not be written: run this as its owner or root"
            ) from error
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(
                f"a daemon runs on {state} ({describe_holder(lock)}); stop it first "
                f"('{_STOP[is_system]}', jobs run on), then restore"
            ) from error
        os.ftruncate(lock, 0)
        with suppress(OSError):  # on a full disk; only who is kept out would read it
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield


def _fold(path: Path) -> str:
    """Make the journal that is there one file, and see that it can be read; why it cannot be.

    Raises:
        JournalError: it is not damaged, and cannot be read now: the disk is full, or another
            process holds it.
    """
    if not path.exists():
        return ""
    try:
        with spoken(path), closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA locking_mode=EXCLUSIVE")  # else it needs room for a -shm file
            schema.check(db, path)
            check_integrity(db, path)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode=DELETE")
    except IodaemonError as error:
        name = error_name(error.__cause__)
        if name and not name.startswith(_DAMAGED):
            raise
        return str(error)
    return ""


def _copy_note(db: sqlite3.Connection) -> CopyNote | None:
    text = schema.meta(db).get(COPY)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=CopyNote)
    except msgspec.DecodeError as error:
        raise JournalError(f"the copy has a damaged record: {error}; use another") from error


def _forget_the_copy(db: sqlite3.Connection, note: CopyNote | None, *, keeps_anchor: bool) -> None:
    """It is a journal from now on; a clock's anchor of another boot means nothing in this one.

    Its records are of more than one journal, so what is kept for a time is from now on.
    """
    values: dict[str, object] = {COPY: None, "passed": None}
    if not keeps_anchor and (note is None or note.boot_id != read_boot_id()):
        values["anchor_s"] = None
    store.store_meta(db, values)


def _told(source: Path, note: CopyNote | None, merged: Merged) -> Note:
    made = (
        "" if note is None else time.strftime(", of %Y-%m-%d %H:%M:%S", time.localtime(note.at_s))
    )
    text = f"from {source}{made}"
    for words, ids in merged.told:
        text += f"; {words}: {', '.join(map(str, ids))}"
    now_s = time.time()
    record = {"at_s": now_s, "by": user_name(os.getuid()), "text": text}
    return Note(at_s=now_s, kind="restored", record=record)


def _exchange(path: Path, new: Path) -> Path | None:
    """The new journal gets the old one's name at once; the old one keeps a dated one."""
    replaced = _aside(path)
    put_in_place(new, path, replace=True)
    return replaced


def _aside(path: Path) -> Path | None:
    """Give the journal that is there another name beside its own, with what belongs to it."""
    if not path.exists():
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    replaced = path.with_name(f"{path.name}.replaced-{stamp}")
    number = 1
    while replaced.exists():
        number += 1
        replaced = path.with_name(f"{path.name}.replaced-{stamp}.{number}")
    os.link(path, replaced)  # the disk may have no room for another name
    for suffix in ("-wal", "-shm"):  # only of a damaged one; a new journal must not meet it
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(f"{replaced}{suffix}")
    sync_folder(path.parent)
    return replaced


@contextmanager
def _as_owner_of(directory: Path) -> Iterator[None]:
    """Have the owner's rights inside, and make files of that user; where root works, none else.

    Of the whole process (credentials(7)): not beside other threads.

    Raises:
        OSError: there is no such directory.
    """
    owner = directory.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    try:
        os.setgroups([owner.st_gid])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


@contextmanager
def _as_root_again() -> Iterator[None]:
    """Have root's rights inside ``_as_owner_of``, where it took them."""
    uid = os.geteuid()
    if uid == 0 or os.getuid() != 0:
        yield
        return
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(uid)
