"""Shims of an earlier keeper's that are still alive: nobody's children now, watched by pidfd.

Standard library only.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.grip import Grip
from iodaemon.backend.linux.process import Identity, has_ended, open_pidfd


class Adopted:
    """The attempts that they serve.

    Attributes:
        keys: of these.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        directories: JobDirectories,
        grip: Grip,
        on_over: Callable[[str], None],
        is_own: Callable[[str], bool],
    ) -> None:
        """None yet.

        Args:
            selector: the keeper's.
            directories: of the jobs.
            grip: the keeper's.
            on_over: the attempt is in no shim's hands any more.
            is_own: whether a shim of this keeper's own serves the attempt.
        """
        self._selector = selector
        self._directories = directories
        self._grip = grip
        self._on_over = on_over
        self._is_own = is_own
        self.keys: set[str] = set()
        self._shims: dict[Identity, int] = {}

    def take_over(self) -> None:
        """Learn of an earlier keeper's jobs, thaw those without a shim, drop cgroups nobody needs.

        The others' shims leave it to this keeper to thaw them.
        """
        for key in self._directories.unfinished():
            if not self._take_up(key):
                self._grip.lay_to_rest(key)
        self._grip.drop_empty(besides=self.keys)

    def _take_up(self, key: str) -> bool:
        """Watch the shim of this attempt, also one that only began after the take-over.

        Returns:
            True where its end will be told; False: no other keeper's shim serves it.
        """
        if key in self.keys:
            return True
        shim = None if self._is_own(key) else self._directories.last_shim(key)
        pidfd = None if shim is None else open_pidfd(shim)
        if shim is None or pidfd is None:
            return False
        self.keys.add(key)
        self._shims[shim] = pidfd
        self._grip.maybe_held.add(key)
        self._selector.register(pidfd, selectors.EVENT_READ, self._on_exit_of(key, shim))
        return True

    def has(self, shim: Identity) -> bool:
        """Whether it is one of these shims, and lives."""
        return shim in self._shims and not has_ended(self._shims[shim])

    def _on_exit_of(self, key: str, shim: Identity) -> Callable[[], None]:
        def on_exit() -> None:
            pidfd = self._shims.pop(shim)
            self._selector.unregister(pidfd)
            os.close(pidfd)
            self.keys.discard(key)
            self._on_over(key)

        return on_exit
