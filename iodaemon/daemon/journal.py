"""The durable form of the state: SQLite in WAL mode, one writer thread, group commit.

Everything that is queued when the writer comes round is one transaction, and with
``synchronous=FULL`` a transaction that is answered survives a power failure
(https://www.sqlite.org/pragma.html#pragma_synchronous). The event loop never waits for the disk:
``write`` queues, and the answer comes from the writer's thread.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.core.decision import Transition
from iodaemon.core.job import Job, JobId, JobState
from iodaemon.core.sample import Sample
from iodaemon.core.state import KEPT_FINISHED
from iodaemon.daemon import database, hintbook, lesson_book, notebook
from iodaemon.daemon.batch import BandwidthMinute, Batch, Restored
from iodaemon.daemon.notebook import Note
from iodaemon.daemon.recall import decode_environment, decode_jobs, recall
from iodaemon.daemon.sqlite_error import journal_error, spoken
from iodaemon.errors import Gone, JournalError
from iodaemon.fault import reach

log = logging.getLogger(__name__)

LAZY_S: Final = 0.05
"""How long what nobody waits for may wait for company."""
PRUNE_JOBS: Final = 1000
"""Finished jobs removed in one transaction, so that no submit waits long behind a pruning."""

Event = tuple[int | None, Transition | Note]
"""Its id, and what happened; events that an earlier version wrote have no id."""
Done = Callable[[JournalError | None], object]
"""Called from the writer's thread; must not raise and must not wait."""

_decode_transition: Final = msgspec.json.Decoder(Transition).decode


class _Item:
    """Something to be done in a transaction, and who waits for it."""

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], object],
        done: Done,
        *,
        alone: bool = False,
        can_wait: bool = False,
    ) -> None:
        self.work = work
        self.done = done
        self.alone = alone
        self.queued_s = time.monotonic()
        self.due_s = self.queued_s + (LAZY_S if can_wait else 0.0)


class Journal:
    """An open journal. ``write`` and everything that reads may be called from any thread.

    Attributes:
        commits: how many transactions became durable.
        newest_event: the highest id of an event that is durable; 0: there is none.
    """

    def __init__(self, path: Path, writer: sqlite3.Connection, reader: sqlite3.Connection) -> None:
        self.path = path
        self._writer = writer
        self._reader = reader
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._queue: list[_Item] = []
        self._in_hand: list[_Item] = []
        self._last_queued = 0
        self._answered = 0
        self._closing = False
        self._highest_id = 0
        self._noted_id = 0
        self._files = _identities(path)
        self.commits = 0
        self.newest_event = database.newest_event(reader)
        self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, path: Path, *, seed: int | None = None, backend: str = "linux") -> Journal:
        """Open the journal, or begin a new one that only the present user can read.

        Args:
            path: its database; the folder must exist. One daemon at a time: the lock is not here.
            seed: for a new journal; None: a random one.
            backend: what carries out the daemon's decisions; a journal serves one for its life.

        Raises:
            JournalError: not a journal, damaged, of another version, or not accessible.
            HopelessError: it belongs to another backend.
        """
        new_seed = secrets.randbits(53) if seed is None else seed
        with spoken(path), ExitStack() as opened:
            writer = opened.enter_context(closing(database.connect(path)))
            database.prepare(writer, path, seed=new_seed, backend=backend)
            reader = opened.enter_context(closing(database.connect(path)))
            reader.execute("PRAGMA query_only=ON")
            opened.pop_all()
        return cls(path, writer, reader)

    # -- writing -------------------------------------------------------------------------------

    def write(self, batch: Batch, done: Done, *, can_wait: bool = False) -> None:
        """Queue the batch; ``done(None)`` when it is durable, ``done(error)`` when it is not.

        Batches become durable in the order in which they were queued. After an error nothing of
        the batch is in the journal, and later batches are tried all the same.

        Args:
            batch: what changed.
            done: called from the writer's thread.
            can_wait: nobody waits for it; it goes with the next batch, or after ``LAZY_S``.

        Raises:
            JournalError: the journal is closed.
        """
        jobs = list(map(database.job_row, batch.jobs))
        transitions = [(step.job_id, _json(step)) for step in batch.transitions]
        environments = [(key, _json(dict(env))) for key, env in batch.environments.items()]
        minutes = [msgspec.structs.astuple(minute) for minute in batch.minutes]
        notes = notebook.note_rows(batch.notes)
        samples = notebook.sample_rows(batch.samples)
        traces = hintbook.trace_rows(batch.traces)
        lessons = lesson_book.lesson_rows(batch.lessons)
        values = batch.meta

        def store(db: sqlite3.Connection) -> None:
            database.store_environments(db, environments)
            database.store_jobs(db, jobs)
            database.store_transitions(db, transitions)
            database.store_minutes(db, minutes)
            database.remove_jobs(db, batch.removed)
            notebook.store(db, notes, samples)
            hintbook.store(db, traces, batch.forgotten)
            lesson_book.store(db, lessons)
            database.store_meta(db, values)

        highest_id = max((job.id for job in batch.jobs), default=0)
        self._queue_up(_Item(store, done, can_wait=can_wait), highest_id)

    def prune(
        self, before_s: float, done: Done = lambda _: None, *, samples_before_s: float = -math.inf
    ) -> None:
        """Queue the removal of jobs that ended before this time, with their history.

        Raw samples go by a time of their own. Done in portions, so that no submit waits long behind
        it. Environments that nobody uses any more go when the journal is opened next.

        Raises:
            JournalError: the journal is closed.
        """
        pruned: list[int] = []

        def work(db: sqlite3.Connection) -> None:
            pruned.append(database.prune(db, before_s, limit=PRUNE_JOBS))
            notebook.prune(db, before_s, samples_before_s)
            hintbook.prune(db, before_s)

        def go_on(error: JournalError | None) -> None:
            if error is None and pruned[-1] == PRUNE_JOBS and not self._closing:
                self._queue_up(_Item(work, go_on, alone=True))
            else:
                done(error)

        self._queue_up(_Item(work, go_on, alone=True))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything queued so far is answered, or for so long; None: however long."""
        with self._changed:
            last = self._last_queued
            for item in self._queue:
                item.due_s = 0.0
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= last, timeout_s)

    def close(self) -> None:
        """Answer everything that is queued, then close; harmless when it is closed already."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._reading:
            self._reader.close()
            self._writer.close()

    @property
    def queued(self) -> int:
        """Batches that are not answered yet."""
        with self._changed:
            return self._last_queued - self._answered

    @property
    def lag_s(self) -> float:
        """How long the oldest batch that is not answered has waited, s; 0: there is none."""
        with self._changed:
            waiting = self._in_hand or self._queue
            return time.monotonic() - waiting[0].queued_s if waiting else 0.0

    # -- reading -------------------------------------------------------------------------------

    def restore(self, *, finished: int = KEPT_FINISHED) -> Restored:
        """What a daemon needs to go on, with so many of the newest finished jobs.

        Raises:
            JournalError: the journal is damaged.
        """
        with self._read() as db:
            return recall(db, finished=finished)

    def finished(self, job_id: JobId) -> Job | None:
        """The finished job with this id; None: there is none, or it is not finished."""
        with self._read() as db:
            rows = database.finished_jobs(db, limit=1, first_id=job_id, last_id=job_id)
            return next(iter(decode_jobs(rows)), None)

    def list_finished(
        self,
        limit: int,
        *,
        uid: int | None = None,
        states: Collection[JobState] = (),
        first_id: int | None = None,
        last_id: int | None = None,
        ended_from_s: float | None = None,
        ended_before_s: float | None = None,
        after: tuple[float, int] | None = None,
    ) -> tuple[Job, ...]:
        """Finished jobs, the one that ended last first; what is None or empty does not restrict.

        ``after`` goes on behind the job that ended then and has this id.
        """
        with self._read() as db:
            rows = database.finished_jobs(
                db,
                limit=limit,
                uid=uid,
                states=tuple(map(str, states)),
                first_id=first_id,
                last_id=last_id,
                ended_from_s=ended_from_s,
                ended_before_s=ended_before_s,
                after=after,
            )
            return tuple(decode_jobs(rows))

    def newest_job(self, uid: int) -> int:
        """The highest id among the jobs of this user; 0: there is none."""
        with self._read() as db:
            return database.newest_job(db, uid) or 0

    def transitions(self, job_id: JobId) -> tuple[Transition, ...]:
        """The steps in the job's life, in order."""
        return tuple(step for _, step in self.steps(job_id))

    def steps(self, job_id: JobId) -> list[tuple[int | None, Transition]]:
        """The steps in the job's life, in order, each with the id of its event."""
        with self._read() as db, database.named(f"a step of job {job_id}"):
            rows = database.transitions(db, job_id)
            return [(event, _decode_transition(record)) for event, record in rows]

    def minutes(self, job_id: JobId) -> tuple[BandwidthMinute, ...]:
        """What the job moved, one row a minute in which it was measured, in order."""
        with self._read() as db:
            rows = database.minutes(db, job_id)
        names = BandwidthMinute.__struct_fields__
        return tuple(BandwidthMinute(**dict(zip(names, row, strict=True))) for row in rows)

    def notes(
        self, *, since_s: float, limit: int, job_id: JobId | None = None, kind: str | None = None
    ) -> tuple[Note, ...]:
        """The newest notes since then, in order; of one job or of one kind only, if asked."""
        with self._read() as db:
            found = notebook.notes(db, since_s=since_s, limit=limit, job_id=job_id, kind=kind)
            return tuple(note for _, note in found)

    def samples(self, *, since_s: float, limit: int) -> tuple[Sample, ...]:
        """The first samples since then, in order."""
        with self._read() as db:
            return notebook.samples(db, since_s=since_s, limit=limit)

    def events_since(self, since_s: float, *, limit: int) -> tuple[list[Event], int]:
        """The newest steps and as many notes since then, and after which event to go on.

        Those without an id come first, by time; then the others, by id.
        """
        with self._read() as db:
            rows = database.recent_transitions(db, limit)
            steps = [(event, _decode_transition(record)) for event, record in rows]
            notes = notebook.notes(db, since_s=since_s, limit=limit, job_id=None, kind=None)
            newest = database.newest_event(db)
        found: list[Event] = [*(step for step in steps if step[1].at_s >= since_s), *notes]
        found.sort(key=lambda event: (0, event[1].at_s) if event[0] is None else (event[0], 0.0))
        return found, newest

    def events_after(self, event: int, *, limit: int) -> list[tuple[int, Transition | Note]]:
        """The first events after this one, in order.

        Raises:
            Gone: not all of them are in the journal.
        """
        with self._read() as db:
            gone, newest = database.events_gone(db), database.newest_event(db)
            if not gone <= event <= newest:
                raise Gone(
                    f"event {event} is not among those after which all are known ({gone} to "
                    f"{newest}): retention or a restore removed some; ask by time ('iod events "
                    "--since WHEN', since=SECONDS)"
                )
            rows = database.transitions_after(db, event, limit)
            found: dict[int, Transition | Note] = {}
            found.update((after, _decode_transition(record)) for after, record in rows)
            found.update(notebook.notes_after(db, event, limit))
        return sorted(found.items(), key=lambda event: event[0])[:limit]

    def environment(self, environment_id: str) -> dict[str, str] | None:
        """The stored environment; None: there is none with this id."""
        with self._read() as db:
            record = database.environment(db, environment_id)
            return None if record is None else decode_environment(record)

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """The reading connection, for one at a time, on one snapshot."""
        with self._reading, spoken(self.path):
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            except msgspec.DecodeError as e:
                raise JournalError(f"journal {self.path} has a damaged record: {e}") from e
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("COMMIT")

    # -- the writer's thread -----------------------------------------------------------------

    def _queue_up(self, item: _Item, highest_id: int = 0) -> None:
        with self._changed:
            if self._closing:
                raise JournalError(f"journal {self.path} is closed")
            self._highest_id = max(self._highest_id, highest_id)
            self._last_queued += 1
            self._queue.append(item)
            self._changed.notify_all()

    def _serve(self) -> None:
        try:
            while group := self._next_group():
                self._perform(group)
                reach("journal.answered")
        finally:
            self._abandon()

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

    def _next_group(self) -> list[_Item]:
        """All that is queued, up to what wants a transaction alone; empty: closed."""
        with self._changed:
            while (wait_s := self._wait_s()) is None or wait_s > 0.0:
                self._changed.wait(wait_s)
            count = next((i for i, item in enumerate(self._queue) if item.alone), len(self._queue))
            self._in_hand = self._queue[: max(1, count)]
            del self._queue[: len(self._in_hand)]
            return self._in_hand

    def _wait_s(self) -> float | None:
        """How long the writer may wait for more; None: until something is queued."""
        if self._closing:
            return 0.0
        dues_s = [item.due_s for item in self._queue]
        return min(dues_s) - time.monotonic() if dues_s else None

    def _commit(self, group: Sequence[_Item]) -> JournalError | None:
        """One transaction: all of the group, or nothing of it and why."""
        db = self._writer
        next_id = self._highest_id + 1
        try:
            reach("journal.queued")
            db.execute("BEGIN IMMEDIATE")
            for item in group:
                item.work(db)
            if next_id != self._noted_id:
                database.raise_next_id(db, next_id)
            newest_event = database.newest_event(db)
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
        self._noted_id = next_id
        self.newest_event = newest_event
        return None

    def _check_files(self) -> None:
        """Nothing is acknowledged that goes into a file without a name: the next start is without.

        Raises:
            JournalError: one of the files was removed or replaced.
        """
        found = _identities(self.path)
        for file, identity in self._files.items():
            if found.get(file) != identity:
                raise JournalError(
                    f"{file} was removed or replaced while the daemon runs, and what is written "
                    "would be lost; put it back, or stop the daemon and restore a copy "
                    "('iod restore FILE'); jobs run on"
                )

    def _answer(self, group: Sequence[_Item], error: JournalError | None) -> None:
        for item in group:
            with suppress(RuntimeError):  # the event loop that waited is closed
                item.done(error)
        with self._changed:
            self._in_hand = [item for item in self._in_hand if item not in group]
            self._answered += len(group)
            self._changed.notify_all()

    def _abandon(self) -> None:
        """The thread ends; after a bug nobody is left waiting for an answer."""
        with self._changed:
            self._closing = True
            left = [*self._in_hand, *self._queue]
            self._queue = []
        self._answer(left, JournalError(f"journal {self.path}: its writer has stopped"))


def _identities(path: Path) -> dict[Path, tuple[int, int]]:
    """Device and inode of the journal's files that are there."""
    found = {}
    for file in (path, path.with_name(f"{path.name}-wal")):
        with suppress(FileNotFoundError):
            status = os.stat(file)
            found[file] = (status.st_dev, status.st_ino)
    return found


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
