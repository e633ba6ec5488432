"""The keeper's side of jobs' directories on tier disks: who has some, and that they go in the end.

It touches no such disk itself. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import time
from collections.abc import Callable
from typing import Final

from iodaemon.backend.linux import salvage, scratch_work
from iodaemon.backend.linux.aside import Aside
from iodaemon.backend.linux.attempt_record import RecordError, read_scratch
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.manifest import is_unfinished
from iodaemon.backend.linux.protocol import (
    FREED_FILE,
    Message,
    sync_directory,
)
from iodaemon.backend.linux.scratch import find_need

_MOST: Final = 8
"""Removed at one time."""
_MOST_OF_A_DISK: Final = 2
_MOST_COPIES: Final = 4
"""Copied out at one time, of jobs that have ended, or swept of what a copying has left."""
_LOOK_S: Final = 0.1
"""Between looks at a job whose shim is gone, and whose processes are not."""
_FIRST_RETRY_S: Final = 5.0
_LAST_RETRY_S: Final = 600.0
"""Between attempts at what cannot be removed, twice as long each time."""

Answer = Callable[[Message], None]


class _Entry:
    """What one attempt has."""

    def __init__(self, *, is_live: bool) -> None:
        self.is_live = is_live
        self.report: Message = {"state": "held", "because": ""}
        self.work: Aside | None = None
        self.disks: list[str] = []
        self.due_s = 0.0
        self.turn_s = 0.0
        self.retry_s = _FIRST_RETRY_S
        self.wants_copy = self.is_swept = False
        self.is_removing = self.is_copying = False
        self.asked: list[tuple[object, object, Answer]] = []


class ScratchDesk:
    """Watches the directories of jobs that live, removes those of jobs that have ended."""

    def __init__(
        self,
        directories: JobDirectories,
        selector: selectors.BaseSelector,
        fork: Callable[[], int],
        is_alive: Callable[[str], bool],
        take_up: Callable[[str], bool],
    ) -> None:
        """Nothing is known yet.

        Args:
            directories: of the jobs.
            selector: the keeper's.
            fork: as ``os.fork``, where shims belong.
            is_alive: whether a process of this attempt, or its shim, is left.
            take_up: whether an earlier keeper's shim serves this attempt; then ``is_over`` comes.
        """
        self._directories = directories
        self._selector = selector
        self._fork = fork
        self._is_alive = is_alive
        self._take_up = take_up
        self._entries: dict[str, _Entry] = {}

    @property
    def is_busy(self) -> bool:
        """True while something is being removed, or is about to be."""
        return any(
            not entry.is_live and entry.report["state"] != "kept"
            for entry in self._entries.values()
        )

    def take_over(self, live: set[str]) -> None:
        """Learn of what an earlier keeper left.

        Args:
            live: attempts that have a shim.
        """
        for key in self._directories.with_scratch():
            self._entries[key] = _Entry(is_live=key in live)
            if key in live:
                self.has_begun(key)

    def expect(self, key: str, launch: Message) -> None:
        """An attempt is about to be started; remember it if it is to have directories."""
        if launch.get("scratch"):
            self._entries[key] = _Entry(is_live=True)

    def has_begun(self, key: str) -> None:
        """Its directories are there: watch them."""
        entry = self._entries.get(key)
        if entry is not None and entry.is_live and entry.work is None:
            work = functools.partial(scratch_work.watch, self._directories.of(key))
            entry.work = self._begin(key, work)

    def is_over(self, key: str) -> None:
        """Its shim has nothing more to do with it, or is gone."""
        entry = self._find(key)
        if entry is None or not entry.is_live:
            return
        entry.is_live = False
        if entry.work is not None:
            entry.work.close()
            entry.work = None
        entry.due_s = 0.0

    def ask(self, key: str, client: object, known: object, answer: Answer) -> None:
        """Answer with what there is, once its state is another than the one that is known."""
        entry = self._find(key)
        if entry is None:
            answer({"state": "removed", "because": ""})
        elif entry.report["state"] != known:
            answer(entry.report)
        else:
            entry.asked.append((client, known, answer))

    def _find(self, key: str) -> _Entry | None:
        """Also what an earlier keeper's shim had not yet written down at the take-over.

        It lives only where the end of a shim will be heard. Processes without a shim make no
        directories, and of their end nobody tells.
        """
        if key not in self._entries:
            is_live = self._take_up(key)
            if is_live or self._directories.has_scratch(key):
                self._entries[key] = _Entry(is_live=is_live)
                self.has_begun(key)
        return self._entries.get(key)

    def forget_client(self, client: object) -> None:
        """It is gone and wants no answers."""
        for entry in self._entries.values():
            entry.asked = [each for each in entry.asked if each[0] is not client]

    def free(self, key: str) -> None:
        """What was kept of an ended job is not needed any more.

        Raises:
            OSError: that cannot be written down.
        """
        if (entry := self._entries.get(key)) is not None:
            self._note_freed(key)
            entry.wants_copy = entry.is_swept = False
            self._hurry(entry)

    def copy(self, key: str) -> None:
        """What was kept of an ended job is to be copied out once more; then it goes."""
        entry = self._entries.get(key)
        if entry is not None and entry.report["state"] == "kept":
            entry.wants_copy = True
            self._hurry(entry)
            entry.report = {**entry.report, "state": "copying", "because": ""}

    def _hurry(self, entry: _Entry) -> None:
        entry.due_s, entry.retry_s = 0.0, _FIRST_RETRY_S
        if entry.work is not None and not entry.is_removing:
            entry.work.close()
            entry.work, entry.is_copying = None, False

    def _note_freed(self, key: str) -> None:
        directory = self._directories.of(key)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(os.path.join(directory, FREED_FILE), flags, 0o600))
        sync_directory(directory)

    def patience_s(self) -> float | None:
        """How long there is nothing to do; None: until somebody says something."""
        waiting = [e.due_s for e in self._entries.values() if not e.is_live and e.work is None]
        if not waiting:
            return None
        return max(_LOOK_S, min(waiting) - time.monotonic())

    def look(self) -> None:
        """Begin what is due, first who has had no turn for longest."""
        now_s = time.monotonic()
        ended = [each for each in self._entries.items() if not each[1].is_live]
        at_work = [entry.disks for _, entry in ended if entry.is_removing]
        due = [each for each in ended if each[1].work is None and each[1].due_s <= now_s]
        for key, entry in sorted(due, key=lambda each: each[1].turn_s):
            if _is_full(at_work, entry.disks):
                entry.due_s = now_s + _LOOK_S
            else:
                self._try(key, entry, at_work)

    def _try(self, key: str, entry: _Entry, at_work: list[list[str]]) -> None:
        try:
            self._look_at(key, entry, at_work)
        except OSError as error:  # nothing of one job may end all jobs' keeper
            self._keep(key, entry, f"its directory cannot be read ({error.strerror}); tried again")
        except RecordError as error:
            if os.path.exists(os.path.join(self._directories.of(key), FREED_FILE)):
                self._remove(key, entry, at_work)
            else:
                self._keep(key, entry, f"{error}; tried again")

    def _look_at(self, key: str, entry: _Entry, at_work: list[list[str]]) -> None:
        """Remove what an ended job had, if nobody is left in it, nor needs it."""
        directory = self._directories.of(key)
        record = read_scratch(directory)
        if record is None:
            self._set(key, entry, {"state": "removed", "because": ""})
            return
        entry.disks = [share["path"] for share in record["shares"]]
        if self._is_alive(key):
            entry.due_s = time.monotonic() + _LOOK_S
        elif entry.wants_copy and record["output"] is not None:
            self._copy(key, entry)
        elif need := find_need(directory):
            self._keep(key, entry, need, is_result=True)
        elif self._sweep(key, entry):
            entry.due_s = time.monotonic() + _LOOK_S
        else:
            entry.due_s = time.monotonic() + _LOOK_S
            if not _is_full(at_work, entry.disks):
                self._remove(key, entry, at_work)

    def _remove(self, key: str, entry: _Entry, at_work: list[list[str]]) -> None:
        work = functools.partial(scratch_work.remove, self._directories.of(key))
        entry.turn_s = time.monotonic()
        entry.work = self._begin(key, work)
        entry.is_removing = entry.work is not None
        if entry.is_removing:
            at_work.append(entry.disks)
        self._set(key, entry, {**entry.report, "state": "removing", "because": ""})

    def _copy(self, key: str, entry: _Entry) -> None:
        entry.due_s = time.monotonic() + _LOOK_S
        if self._has_room():
            work = functools.partial(salvage.copy, self._directories.of(key))
            entry.work = self._begin(key, work)
            entry.is_copying = entry.work is not None
            entry.is_swept = False

    def _sweep(self, key: str, entry: _Entry) -> bool:
        """Once of each: what was killed while it copied out left halves in the output.

        Returns:
            True where that is to be waited for.

        Raises:
            OSError: nobody can tell.
        """
        directory = self._directories.of(key)
        if entry.is_swept or entry.work is not None or not is_unfinished(directory, "out"):
            return False
        if self._has_room():
            entry.work = self._begin(key, functools.partial(salvage.sweep, directory))
            entry.is_swept = entry.work is not None
        return True

    def _has_room(self) -> bool:
        """Whether one more may copy or sweep."""
        others = (each for each in self._entries.values() if not each.is_live)
        busy = sum(each.work is not None and not each.is_removing for each in others)
        return busy < _MOST_COPIES

    def _begin(self, key: str, work: Callable[[int], None]) -> Aside | None:
        try:
            return Aside(self._selector, self._fork, work, functools.partial(self._hear, key))
        except OSError:
            return None

    def _hear(self, key: str, word: Message | None) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        if entry.is_live:
            if word is None:
                entry.work = None  # it goes on unwatched; that is told by figures that stand still
            elif "state" in word:
                self._set(key, entry, {"because": "", **word})
            return
        if word is None:
            entry.work = None  # it was killed, or has said what there is to say
            entry.is_removing = False
            if entry.is_copying:
                self._end_copy(key, entry, "what copied it out was killed")
        elif word.get("state") == "copied":
            self._end_copy(key, entry, "")
        elif entry.is_copying:
            self._end_copy(key, entry, str(word.get("because") or word.get("error")))
        elif word.get("state") == "removed":
            self._set(key, entry, {**word, "because": ""})
        elif word.get("state") == "kept":
            is_result = bool(word.get("is_result"))
            is_open = bool(word.get("is_open"))
            self._keep(key, entry, str(word["because"]), is_result=is_result, is_open=is_open)
        elif "error" in word:
            self._keep(key, entry, str(word["error"]))

    def _end_copy(self, key: str, entry: _Entry, because: str) -> None:
        entry.wants_copy = entry.is_copying = False
        try:
            if not because:
                self._note_freed(key)
        except OSError as error:
            because = f"it was copied, and that cannot be written down ({error.strerror})"
        if because:
            self._keep(key, entry, because)
        else:
            entry.due_s = 0.0

    def _keep(
        self,
        key: str,
        entry: _Entry,
        because: str,
        *,
        is_result: bool | None = None,
        is_open: bool = False,
    ) -> None:
        """``is_result``: it has what could not be copied out; None: as it was last known."""
        if is_result is not None:
            entry.report = {**entry.report, "is_result": is_result}
        entry.due_s = time.monotonic() + entry.retry_s
        entry.retry_s = min(2 * entry.retry_s, _LAST_RETRY_S)
        kept = {"state": "kept", "because": because, "is_open": is_open}
        self._set(key, entry, {**entry.report, **kept})
        with contextlib.suppress(OSError):  # the next look sees to it
            self._sweep(key, entry)

    def _set(self, key: str, entry: _Entry, report: Message) -> None:
        entry.report = report
        if report["state"] == "removed":
            if entry.work is not None:
                entry.work.close()
            del self._entries[key]
        asked, entry.asked = entry.asked, []
        for client, known, answer in asked:
            if known != report["state"]:
                answer(report)
            else:
                entry.asked.append((client, known, answer))


def _is_full(at_work: list[list[str]], disks: list[str]) -> bool:
    """Whether no more may begin now on these disks."""
    busy = [disk for each in at_work for disk in each]
    return len(at_work) >= _MOST or any(busy.count(disk) >= _MOST_OF_A_DISK for disk in disks)
