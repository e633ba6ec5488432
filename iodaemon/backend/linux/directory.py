"""The jobs' directories: what they say of an attempt, and of whom it was.

Standard library only: the keeper and the signal freezer import this.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.attempt_record import (
    NO_PID,
    RecordError,
    lost_status,
    read_keeper,
    read_shim,
    read_status,
    read_stopped,
)
from iodaemon.backend.linux.holder import find_locker
from iodaemon.backend.linux.process import (
    Identity,
    SilentError,
    find_start_ticks,
    find_state,
    identify,
    is_alive,
    leads_session,
    read_boot_id,
)
from iodaemon.backend.linux.protocol import Message, parse_job_key
from iodaemon.fault import reach


class JobDirectories:
    """All ``<job>.<attempt>`` below one directory; remembers nothing.

    What a record that cannot be read would have said is asked of the kernel: which process holds
    the shim's lock, and which are in the attempt's cgroup. Nothing is left where there are none.

    Args:
        path: of that directory.
        has_shim: whether this is a living shim that the caller watches, so that it need not be
            identified; None: the caller watches none.
    """

    def __init__(self, path: str, *, has_shim: Callable[[Identity], bool] | None = None) -> None:
        self.path = path
        self._has_shim = has_shim

    def of(self, key: str) -> str:
        """The directory of an attempt."""
        return os.path.join(self.path, key)

    def make(self, key: str) -> bool:
        """Make it for this caller alone; False when there is one.

        The directory of all jobs is made again where somebody removed it.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        try:
            os.mkdir(self.of(key), 0o700)
        except FileExistsError:
            return False
        reach("keeper.directory_made")
        return True

    def unfinished(self) -> list[str]:
        """Attempts that have not ended, in the order of their names."""
        return sorted(key for key in self._keys() if not self._seems_ended(key))

    def _seems_ended(self, key: str) -> bool:
        """As ``has_status``; of the many that have long ended no file is opened."""
        if not os.path.lexists(os.path.join(self.of(key), protocol.STATUS_FILE)):
            return False
        return self._find_server(key) is None or self.has_status(key)

    def _keys(self) -> Iterator[str]:
        return (name for name in os.listdir(self.path) if parse_job_key(name) is not None)

    def has_status(self, key: str) -> bool:
        """Whether it has ended."""
        return self.status(key) is not None

    def status(self, key: str) -> Message | None:
        """How it ended; None: it has not, as far as is known.

        A status that cannot be read is one of an attempt that is lost, unless somebody is left of
        it.
        """
        try:
            return read_status(self.of(key))
        except RecordError as error:
            return None if self._is_left(key) else self._lost(key, error)

    def _lost(self, key: str, error: RecordError) -> Message:
        try:
            at_s = os.lstat(os.path.join(self.of(key), protocol.STATUS_FILE)).st_mtime
        except OSError:
            at_s = time.time()
        return lost_status(f"{error}; how it ended is not known", max(0.0, at_s))

    def _is_left(self, key: str) -> bool:
        return self._find_server(key) is not None or bool(self._members(self._find_cgroup(key)))

    def _find_server(self, key: str) -> int | None:
        """The process that serves the attempt now, by its lock."""
        return find_locker(os.path.join(self.of(key), protocol.SHIM_LOCK_FILE))

    def _find_cgroup(self, key: str) -> str | None:
        """The attempt's cgroup, as its shim or its keeper has written it down; None: unknown."""
        with contextlib.suppress(RecordError):
            record = read_shim(self.of(key))
            return None if record is None else record.get("cgroup")
        with contextlib.suppress(RecordError):
            keeper = read_keeper(os.path.dirname(self.path))
            if keeper is not None and keeper.get("base") is not None:
                cgroup = os.path.join(keeper["base"], "jobs", key)
                return cgroup if os.path.isdir(cgroup) else None
        return None

    def _members(self, cgroup: str | None) -> list[int]:
        if cgroup is None:
            return []
        try:
            with open(os.path.join(cgroup, "cgroup.procs"), "rb") as file:
                return [int(word) for word in file.read().split()]
        except OSError:
            return []

    def has_scratch(self, key: str) -> bool:
        """True while directories on tier disks were made for it, or may have been."""
        return os.path.lexists(os.path.join(self.of(key), protocol.SCRATCH_FILE))

    def shim_record(self, key: str) -> Message | None:
        """What the shim wrote of itself; None: no shim ever took the attempt up.

        Where that cannot be read it is what the kernel knows, and ``unreadable`` says why; without
        a shim that is alive its ``pid`` is ``NO_PID``.
        """
        try:
            record = read_shim(self.of(key))
        except RecordError as error:
            return self._rebuild(key, error)
        return None if record is None or record.get("given_up") else record

    def _rebuild(self, key: str, error: RecordError) -> Message:
        pid = self._find_server(key)
        shim = None if pid is None else identify(pid)
        cgroup = self._find_cgroup(key)
        lock = os.path.join(self.of(key), protocol.SHIM_LOCK_FILE)
        return {
            **(shim or Identity(NO_PID, 0, read_boot_id()))._asdict(),
            "main_pid": None,
            "main_start_ticks": None,
            "freezer": "signals" if cgroup is None else "cgroup",
            "cgroup": cgroup,
            "started_s": _modified_s(lock) or _modified_s(self.of(key)) or time.time(),
            "baseline": [0, 0, 0],
            "unreadable": str(error),
        }

    def find_shim(self, key: str) -> Identity | None:
        """Its shim, if it is alive and the job is not over: a shim goes on to other jobs."""
        shim = self.last_shim(key)
        if shim is None:
            return None
        is_watched = self._has_shim is not None and self._has_shim(shim)
        return shim if is_watched or is_alive(shim) else None

    def last_shim(self, key: str) -> Identity | None:
        """The shim of an attempt that is not over, alive or not."""
        record = None if self.has_status(key) else self.shim_record(key)
        if record is None or record["pid"] == NO_PID:
            return None
        return Identity(record["pid"], record["start_ticks"], record["boot_id"])

    def find_main(self, key: str) -> Identity | None:
        """The job's first process, alive or not; None where it was not written down."""
        record = self.shim_record(key)
        if record is None or record["main_pid"] is None or record["main_start_ticks"] is None:
            return None
        return Identity(record["main_pid"], record["main_start_ticks"], record["boot_id"])

    def has_main(self, key: str) -> bool:
        """True while the job's first process lives."""
        main = self.find_main(key)
        return main is not None and is_alive(main, may_execute=True)

    def find_session(self, key: str) -> int | None:
        """The session of the job's first process; None: nobody can be in it any more.

        A process under that number that does not answer is taken for the first one where it leads
        a session and is the submitter's.
        """
        main = self.find_main(key)
        if main is None or main.boot_id != read_boot_id():
            return None
        if find_state(main.pid) is None:
            return main.pid
        try:
            return main.pid if find_start_ticks(main.pid) in (None, main.start_ticks) else None
        except SilentError:
            record = self.shim_record(key) or {}
            return main.pid if leads_session(main.pid, record.get("uid")) else None

    def describe(self, key: str, claimant: Identity) -> Message:
        """What the directory says; an attempt nobody took up is given up for good.

        Args:
            key: the attempt; not one that is just being started.
            claimant: who gives it up.

        Returns:
            ``absent``: no such attempt; ``status``: it ended so; ``never_ran``: its keeper died
            before it had a shim, and now it never will; ``lost``: why nobody knows whether it ran,
            where nothing of it is alive; else ``shim`` with ``alive``.
        """
        if not os.path.isdir(self.of(key)):
            return {"absent": True}
        status = self.status(key)
        if status is not None:
            return {"status": status}
        self._give_up_if_unclaimed(key, claimant)
        shim = self.shim_record(key)
        if shim is None:
            return {"never_ran": True}
        if self.find_shim(key) is not None:
            return {"shim": shim, "alive": True}
        # It may have written its status and ended since that was looked for.
        status = self.status(key)
        if status is None and "unreadable" in shim and not self._members(shim["cgroup"]):
            return {"lost": f"{shim['unreadable']}; it may or may not have run"}
        return {"shim": shim, "alive": False} if status is None else {"status": status}

    def note_told(self, key: str) -> None:
        """Note that the keeper is about to tell the job to end; not on a disk that takes nothing.

        Without the note an end by a signal that comes while its shim is told to end as well counts
        as a stop from outside. That the job is told matters more.
        """
        with contextlib.suppress(OSError):
            path = os.path.join(self.of(key), protocol.TOLD_FILE)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            os.close(os.open(path, flags, 0o600))

    def note_stopped(self, key: str, stopped: Iterable[Identity]) -> None:
        """Note which processes outside of the job's session signals hold; none: remove the note.

        A disk that takes nothing is no reason to hold nobody: the note is left out then.
        """
        path = os.path.join(self.of(key), protocol.STOPPED_FILE)
        processes = [list(identity) for identity in stopped]
        with contextlib.suppress(OSError):
            if processes:
                protocol.write_json(path, {"processes": processes}, durable=False)
            else:
                os.unlink(path)

    def stopped(self, key: str) -> list[Identity]:
        """What was noted so, alive or not."""
        try:
            record = read_stopped(self.of(key))
        except RecordError:  # who was stopped is not known
            return []
        return [] if record is None else [Identity(*each) for each in record["processes"]]

    def retire(self, before_s: float, most: int) -> int:
        """Remove up to so many directories of attempts that ended before; how many it were.

        What has no status is not known to have ended, and what has directories on tier disks is
        all that is known of them. Nobody but the keeper makes files here.
        """
        removed = 0
        for key in list(self._keys()):
            if removed == most:
                break
            with contextlib.suppress(OSError):  # of one that cannot be removed, the others are
                removed += self._retire(key, before_s)
        return removed

    def _retire(self, key: str, before_s: float) -> bool:
        status = os.path.join(self.of(key), protocol.STATUS_FILE)
        if self.has_scratch(key) or not stat.S_ISREG(os.lstat(status).st_mode):
            return False
        if os.lstat(status).st_mtime >= before_s:
            return False
        for file in os.listdir(self.of(key)):
            if file != protocol.STATUS_FILE:
                os.unlink(os.path.join(self.of(key), file))
        os.unlink(status)  # last: without it nobody would dare to remove the rest
        os.rmdir(self.of(key))
        return True

    def _give_up_if_unclaimed(self, key: str, claimant: Identity) -> None:
        path = os.path.join(self.of(key), protocol.SHIM_FILE)
        if not os.path.lexists(path):
            protocol.claim(path, {"given_up": True, **claimant._asdict()})


def _modified_s(path: str) -> float | None:
    try:
        return max(0.0, os.lstat(path).st_mtime)
    except OSError:
        return None
