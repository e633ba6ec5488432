"""The journal of a running daemon: one writer thread, group commit.

Everything that is queued when the writer comes round is one transaction, and with
``synchronous=FULL`` a transaction that is answered survives a power failure
(https://www.sqlite.org/pragma.html#pragma_synchronous). The event loop never waits for the disk:
``write`` queues, and the answer comes from the writer's thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from iodaemon.daemon.journal import schema, store
from iodaemon.daemon.journal.load import JournalReader
from iodaemon.daemon.journal.record import Batch, join
from iodaemon.daemon.journal.schema import journal_error, spoken
from iodaemon.errors import JournalError
from iodaemon.supervisor.failpoint import reach

log = logging.getLogger(__name__)

LAZY_S: Final = 0.05
"""How long a batch that nobody waits for may wait for company."""
PRUNE_JOBS: Final = 250
"""Finished jobs removed in one transaction, so that no submission waits long behind it."""

Done = Callable[[JournalError | None], object]
"""Called from the writer's thread; must not raise and must not wait."""


class _Item(NamedTuple):
    """A batch, or work to be done in the transaction besides."""

    done: Done
    batch: Batch | None = None
    work: Callable[[sqlite3.Connection], object] | None = None
    can_wait: bool = False


class Journal(JournalReader):
    """An open journal. All methods may be called from any thread.

    ``commits`` is how many transactions became durable.
    """

    def __init__(self, path: Path, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        super().__init__(path, reader)
        self._writer = writer
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._asked_s: deque[float] = deque()
        self._putting = threading.Lock()
        self._is_closing = False
        meta = schema.meta(writer)
        self._next_id: int = meta["next_id"]
        self._durable = (self._next_id, int(meta["next_event"]))
        self._files = _identities(path)
        self.commits = 0
        self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, *, seed: int | None = None, backend: str = "linux") -> Journal:
        """Open the journal, or begin a new one that only the present user can read.

        The folder must exist, and the caller keeps other daemons out. A journal serves one backend
        for its life.

        Raises:
            JournalError: not a journal, damaged, of another version, or not accessible.
            HopelessError: it belongs to another backend.
        """
        new_seed = secrets.randbits(53) if seed is None else seed
        with spoken(path), ExitStack() as opened:
            writer = opened.enter_context(closing(schema.connect(path)))
            schema.prepare(writer, path, seed=new_seed, backend=backend)
            reader = opened.enter_context(closing(schema.connect(path)))
            reader.execute("PRAGMA query_only=ON")
            journal = cls(path, writer, reader)
            opened.pop_all()
        return journal

    def write(self, batch: Batch, done: Done, *, can_wait: bool = False) -> None:
        """Queue the batch; ``done(None)`` when it is durable, ``done(error)`` when it is not.

        Batches become durable in the order in which they were queued; of a job that several of one
        transaction change only the newest record is written. After an error nothing of the batch
        is in the journal, and later batches are tried all the same. One that ``can_wait`` goes with
        the next batch, or after ``LAZY_S``.

        Raises:
            JournalError: the journal is closed.
        """
        self._put(_Item(done, batch, can_wait=can_wait))

    async def commit(self, batch: Batch, on_durable: Callable[[], object] = lambda: None) -> None:
        """Write the batch and wait until it is durable.

        ``on_durable`` is called in the event loop then, also where the waiting was cancelled.

        Raises:
            JournalError: it is not, and nothing of it will be.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[JournalError | None] = loop.create_future()

        def written(error: JournalError | None) -> None:
            if error is None:
                on_durable()
            if not answer.done():
                answer.set_result(error)

        self.write(batch, lambda error: loop.call_soon_threadsafe(written, error))
        if (error := await answer) is not None:
            raise error

    def prune(
        self, before_s: float, done: Done = lambda _: None, *, samples_before_s: float = -math.inf
    ) -> None:
        """Queue the removal of jobs that ended before this time, with their history.

        Raw samples go by a time of their own. Done in portions; environments that no job uses any
        more go when the journal is opened next.
        """
        pruned: list[int] = []

        def work(db: sqlite3.Connection) -> None:
            pruned.append(store.prune(db, before_s, samples_before_s, limit=PRUNE_JOBS))

        def go_on(error: JournalError | None) -> None:
            if error is None and pruned[-1] == PRUNE_JOBS:
                with suppress(JournalError):  # closed: the next daemon goes on
                    self._put(_Item(go_on, work=work))
                    return
            done(error)

        self._put(_Item(go_on, work=work))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything queued so far is answered, or for so long; None: however long."""
        answered = threading.Event()
        with suppress(JournalError):  # closed: all is answered
            self._put(_Item(lambda _: answered.set()))
            answered.wait(timeout_s)

    def close(self) -> None:
        """Answer everything that is queued, then close; harmless when it is closed already."""
        with self._putting:
            self._is_closing = True
            self._queue.put(None)
        self._thread.join()
        self._writer.close()
        super().close()

    @property
    def newest_event(self) -> int:
        """The highest id of an event that is durable; 0: there is none."""
        return self._durable[1] - 1

    @property
    def queued(self) -> int:
        """Batches and other requests that are not answered yet."""
        return len(self._asked_s)

    @property
    def lag_s(self) -> float:
        """How long the oldest batch that is not answered has waited, s; 0: there is none."""
        try:
            return time.monotonic() - self._asked_s[0]
        except IndexError:
            return 0.0

    def _put(self, item: _Item) -> None:
        jobs = () if item.batch is None else item.batch.jobs
        highest_id = max((job.id for job in jobs), default=0)
        with self._putting:
            if self._is_closing:
                raise JournalError(f"journal {self.path} is closed")
            self._next_id = max(self._next_id, highest_id + 1)
            self._asked_s.append(time.monotonic())
            self._queue.put(item)

    # -- the writer's thread -----------------------------------------------------------------

    def _serve(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            self._perform(group)
            reach("journal.answered")

    def _next_group(self) -> tuple[list[_Item], bool]:
        """All that is queued; whether more may come."""
        group: list[_Item] = []
        try:
            item = self._queue.get()
            due_s = time.monotonic() + LAZY_S
            while item is not None:
                group.append(item)
                if all(each.can_wait for each in group):
                    item = self._queue.get(timeout=max(0.0, due_s - time.monotonic()))
                else:
                    item = self._queue.get_nowait()
        except Empty:
            return group, True
        return group, False

    def _perform(self, group: Sequence[_Item]) -> None:
        """Commit the group and answer; after a bug in one of its items, each by itself."""
        try:
            error = self._commit(group)
        except Exception as bug:  # the thread is to answer whatever a batch raises
            if len(group) > 1:
                for item in group:
                    self._perform([item])
                return
            log.exception("event=journal_bug")
            error = JournalError(
                f"journal {self.path}: a batch cannot be written ({bug!r}); this is a bug, please "
                "report it with the traceback in the log; 'iod stop' ends the daemon, jobs run on"
            )
        self._answer(group, error)

    def _commit(self, group: Sequence[_Item]) -> JournalError | None:
        """One transaction: all of the group, or nothing of it and why."""
        batches = [item.batch for item in group if item.batch is not None]
        works = [item.work for item in group if item.work is not None]
        if not batches and not works:
            return None
        db, next_id = self._writer, self._next_id
        try:
            reach("journal.queued")
            db.execute("BEGIN IMMEDIATE")
            stored_id, next_event = self._durable
            if batches:
                next_event = store.store(db, join(batches), stored_id, next_event)
            for work in works:
                work(db)
            if (next_id, next_event) != self._durable:
                store.store_meta(db, {"next_id": next_id, "next_event": next_event})
            reach("journal.stored")
            self._check_files()
            db.execute("COMMIT")
            reach("journal.committed")
        except Exception as error:
            with suppress(sqlite3.Error):  # most errors have rolled back already
                db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                return journal_error(self.path, error)
            if isinstance(error, JournalError):
                return error
            raise
        self.commits += 1
        self._durable = (next_id, next_event)
        return None

    def _check_files(self) -> None:
        """Nothing is acknowledged that goes into a file without a name: the next start is without.

        Raises:
            JournalError: one of the files was removed or replaced.
        """
        for file, identity in self._files.items():
            if _identity(file) != identity:
                raise JournalError(
                    f"{file} was removed or replaced while the daemon runs, and what is written "
                    "would be lost; put it back, or stop the daemon and restore a copy "
                    "('iod restore FILE'); jobs run on"
                )

    def _answer(self, group: Sequence[_Item], error: JournalError | None) -> None:
        for item in group:
            self._asked_s.popleft()
            try:
                item.done(error)
            except RuntimeError:  # the event loop that waited is closed
                pass
            except Exception:  # one that cannot be told keeps no other from being told
                log.exception("event=journal_bug")


def _identities(path: Path) -> dict[str, tuple[int, int]]:
    """Device and inode of the journal's files that are there."""
    found = ((file, _identity(file)) for file in (str(path), f"{path}-wal"))
    return {file: identity for file, identity in found if identity is not None}


def _identity(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
