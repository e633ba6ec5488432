"""Learning that a job has ended: its status has come, or its shim was killed before.

The status counts and nothing else. A shim goes on to other jobs, so that it lives says nothing;
only its death says that no status will come any more. Directories that cannot be watched, and
those whose status cannot be read now, are looked at whenever ``look`` is called.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.allowance import is_exhausted
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.notice import Notices
from iodaemon.backend.linux.protocol import Message, job_key
from iodaemon.backend.linux.track import Track
from iodaemon.fault import reach

_RETRY_S: Final = 1.0
"""Between looks for a status while this process has no descriptor left."""


class Ends:
    """Calls back once a track: with its status, or when it has lost its shim."""

    def __init__(
        self,
        jobs_directory: str,
        *,
        on_status: Callable[[Track, Message], None],
        on_bereaved: Callable[[Track], None],
    ) -> None:
        """Nothing is expected yet. Use in one event loop; ``close`` at the end.

        Args:
            jobs_directory: has a directory an attempt.
            on_status: the job is over, so; calls ``forget``.
            on_bereaved: the shim is gone and has left no status.
        """
        self._directories = JobDirectories(jobs_directory)
        self._on_status = on_status
        self._on_bereaved = on_bereaved
        self._notices = Notices(protocol.STATUS_FILE)
        self._watches: dict[Track, int | None] = {}
        self._doubtful: set[Track] = set()

    def expect(self, track: Track) -> None:
        """Call back once it has ended; that may be at once."""
        self._watches[track] = None
        if track.shim_fd is None:
            self._on_shim_exit(track)
            return
        asyncio.get_running_loop().add_reader(track.shim_fd, self._on_shim_exit, track)
        directory = self._directories.of(_key_of(track))
        self._watches[track] = self._notices.add(directory, lambda: self._find(track))
        self._find(track)  # it may have come before it was looked out for

    def look(self) -> None:
        """Call back for all that has ended before this call."""
        self._notices.read()
        unwatched = {track for track, watch in self._watches.items() if watch is None}
        for track in sorted(unwatched | self._doubtful, key=lambda track: track.job_id):
            if not track.is_bereaved:
                self._find(track)

    def forget(self, track: Track) -> None:
        """Expect nothing of it any more."""
        self._notices.remove(self._watches.pop(track, None))
        self._doubtful.discard(track)
        if track.shim_fd is not None:
            asyncio.get_running_loop().remove_reader(track.shim_fd)

    def close(self) -> None:
        """Call back no more."""
        self._notices.close()
        for track in list(self._watches):
            self.forget(track)

    def _on_shim_exit(self, track: Track) -> None:
        if track not in self._watches:
            return
        loop = asyncio.get_running_loop()
        if track.shim_fd is not None:
            loop.remove_reader(track.shim_fd)
        is_found = self._find(track)
        if is_found is None:
            loop.call_later(_RETRY_S, self._on_shim_exit, track)
        elif not is_found:
            try:
                track.lose_shim(self._directories.stopped(_key_of(track)))
            except OSError as error:
                if not is_exhausted(error):
                    raise
                loop.call_later(_RETRY_S, self._on_shim_exit, track)
            else:
                self._on_bereaved(track)

    def _find(self, track: Track) -> bool | None:
        """Whether there is a status, which is told then; None: nobody can tell now."""
        key = _key_of(track)
        try:
            status = self._directories.status(key)
        except OSError:  # no descriptor is left
            self._doubtful.add(track)
            return None
        if status is not None:
            reach("node.end_found")
            self._on_status(track, status)
        elif os.path.lexists(os.path.join(self._directories.of(key), protocol.STATUS_FILE)):
            self._doubtful.add(track)
        return status is not None


def _key_of(track: Track) -> str:
    return job_key(track.job_id, track.attempt)
