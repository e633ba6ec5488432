"""The jobs' directories: what they say of an attempt, and of whom it was.

Standard library only: the keeper and the signal freezer import this.
"""

from __future__ import annotations

import contextlib
import os

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.process import Identity, is_alive
from iodaemon.backend.linux.protocol import Message, parse_job_key, read_json
from iodaemon.fault import reach


class JobDirectories:
    """All ``<job>.<attempt>`` below one directory; remembers nothing."""

    def __init__(self, path: str) -> None:
        self.path = path

    def of(self, key: str) -> str:
        """The directory of an attempt."""
        return os.path.join(self.path, key)

    def make(self, key: str) -> bool:
        """Make it for this caller alone; False when there is one."""
        try:
            os.mkdir(self.of(key), 0o700)
        except FileExistsError:
            return False
        reach("keeper.directory_made")
        return True

    def unfinished(self) -> list[str]:
        """Attempts without a status, in the order of their names."""
        return sorted(
            name
            for name in os.listdir(self.path)
            if parse_job_key(name) is not None and not self.has_status(name)
        )

    def has_status(self, key: str) -> bool:
        """True once it has ended and its shim has said how."""
        return os.path.exists(os.path.join(self.of(key), protocol.STATUS_FILE))

    def has_scratch(self, key: str) -> bool:
        """True while directories on tier disks were made for it, or may have been."""
        return os.path.exists(os.path.join(self.of(key), protocol.SCRATCH_FILE))

    def with_scratch(self) -> list[str]:
        """Attempts of which that is true."""
        return sorted(
            name
            for name in os.listdir(self.path)
            if parse_job_key(name) is not None and self.has_scratch(name)
        )

    def shim_record(self, key: str) -> Message | None:
        """What the shim wrote of itself; None: no shim ever took the attempt up."""
        record = read_json(os.path.join(self.of(key), protocol.SHIM_FILE))
        return None if record is None or record.get("given_up") else record

    def find_shim(self, key: str) -> Identity | None:
        """Its shim, if it is alive and the job is not over: a shim goes on to other jobs."""
        if self.has_status(key):
            return None
        record = self.shim_record(key)
        if record is None:
            return None
        identity = Identity(record["pid"], record["start_ticks"], record["boot_id"])
        return identity if is_alive(identity) else None

    def find_main(self, key: str) -> Identity | None:
        """The job's first process, alive or not; None where it was not written down."""
        record = self.shim_record(key)
        if record is None or record["main_pid"] is None or record["main_start_ticks"] is None:
            return None
        return Identity(record["main_pid"], record["main_start_ticks"], record["boot_id"])

    def has_main(self, key: str) -> bool:
        """True while the job's first process lives."""
        main = self.find_main(key)
        return main is not None and is_alive(main)

    def describe(self, key: str, claimant: Identity) -> Message:
        """What the directory says; an attempt nobody took up is given up for good.

        Args:
            key: the attempt; not one that is just being started.
            claimant: who gives it up.

        Returns:
            ``absent``: no such attempt; ``status``: it ended so; ``never_ran``: its keeper died
            before it had a shim, and now it never will; else ``shim`` with ``alive``.
        """
        if not os.path.isdir(self.of(key)):
            return {"absent": True}
        status = read_json(os.path.join(self.of(key), protocol.STATUS_FILE))
        if status is not None:
            return {"status": status}
        self._give_up_if_unclaimed(key, claimant)
        shim = self.shim_record(key)
        if shim is None:
            return {"never_ran": True}
        if self.find_shim(key) is not None:
            return {"shim": shim, "alive": True}
        # It may have written its status and ended since that was looked for.
        status = read_json(os.path.join(self.of(key), protocol.STATUS_FILE))
        return {"shim": shim, "alive": False} if status is None else {"status": status}

    def note_told(self, key: str) -> None:
        """Note that the keeper is about to tell the job to end."""
        with contextlib.suppress(FileNotFoundError):
            path = os.path.join(self.of(key), protocol.TOLD_FILE)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def retire(self, before_s: float, most: int) -> int:
        """Remove up to so many directories of attempts that ended before; how many it were.

        What has no status is not known to have ended, and what has directories on tier disks is
        all that is known of them. Nobody but the keeper makes files here.
        """
        removed = 0
        for name in os.listdir(self.path):
            if removed == most:
                break
            status = os.path.join(self.of(name), protocol.STATUS_FILE)
            if parse_job_key(name) is None or not os.path.isfile(status):
                continue
            if self.has_scratch(name):
                continue
            if os.stat(status).st_mtime < before_s:
                for file in os.listdir(self.of(name)):
                    if file != protocol.STATUS_FILE:
                        os.unlink(os.path.join(self.of(name), file))
                os.unlink(status)  # last: without it nobody would dare to remove the rest
                os.rmdir(self.of(name))
                removed += 1
        return removed

    def _give_up_if_unclaimed(self, key: str, claimant: Identity) -> None:
        path = os.path.join(self.of(key), protocol.SHIM_FILE)
        if not os.path.exists(path):
            protocol.claim(path, {"given_up": True, **claimant._asdict()})
