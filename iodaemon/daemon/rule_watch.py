"""Limits the calls of rules, and remembers inside which one the daemon ended.

A rule that never comes back from compiled code, or crashes there, ends the daemon: by systemd's
watchdog, or at once. A byte in a mapped file then still says that a rule was being asked, and the
daemon that is started next counts. After two such ends in a row the policy is set aside.

The file is in memory (tmpfs), never beside the journal: the first write to a page since it was
written back may wait for the disk that the daemon is to relieve.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from iodaemon.config import Config
from iodaemon.core.rule import Rules
from iodaemon.core.rule_error import RuleFault, defined_at, name_of
from iodaemon.rule_limit import ASKED, RULE_LIMIT_S, RuleLimit

MOST_ENDS: Final = 2
"""Ends inside a rule, in a row. One may be chance: somebody kills the daemon just then."""
_METHODS: Final = {"admission": "decide", "regulation": "decide"}
_ASKED, _ENDS, _SIZE = 0, 1, 2
"""The bytes of the file: the kind of the rule that is being asked, and how many ends."""
_NAME: Final = "rule-asked"
_OF_SERVICE: Final = Path("/run/iodaemon-daemon")
"""RuntimeDirectory= of the daemon's unit, whose restarts it survives. The socket's is root's."""


def watch_path(config: Config) -> Path:
    """Where this daemon's file is."""
    return (_OF_SERVICE if config.is_system else Path(config.runtime_dir)) / _NAME


class RuleWatch:
    """The limit on each call of a rule (``core.rule.Limit``), and what the file remembers."""

    def __init__(self, path: Path, limit_s: float = RULE_LIMIT_S) -> None:
        """Take over from the daemon before; in the main thread. ``limit_s`` is for one call."""
        self._path = path
        self._bytes = _opened(path)
        kind = ASKED[self._bytes[_ASKED] % len(ASKED)]
        self._bytes[_ENDS] = min(255, self._bytes[_ENDS] + 1) if kind else 0
        self._ended_in = kind if self._bytes[_ENDS] >= MOST_ENDS else ""
        self._bytes[_ASKED] = 0
        self._limit = RuleLimit(limit_s, self._bytes)

    def __call__(self, kind: str) -> AbstractContextManager[object]:
        """The limit for a rule of this kind."""
        return self._limit(kind)

    def forgive(self) -> None:
        """Count from nothing: the policy was read again, or has done well for long."""
        self._bytes[_ENDS] = 0

    def close(self) -> None:
        """The daemon ends in order: nothing is left to remember."""
        self.forgive()
        self._limit.close()
        self._bytes.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def find_fault(self, rules: Rules) -> RuleFault | None:
        """That daemons ended inside one of these rules again and again; None: they did not."""
        if self._ended_in not in _METHODS:
            return None
        rule = getattr(rules, self._ended_in)
        return RuleFault(
            kind=self._ended_in,
            rule=name_of(rule),
            place=defined_at(getattr(rule, _METHODS[self._ended_in])),
            problem=f"the daemon ended inside it {self._bytes[_ENDS]} times in a row",
        )


def _opened(path: Path) -> mmap.mmap:
    """The file's bytes; of a file that cannot be had, or is another user's, bytes of no file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        handle = os.open(path, flags, 0o600)
        stack.callback(os.close, handle)
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            os.posix_fallocate(handle, 0, _SIZE)
            return mmap.mmap(handle, _SIZE)
    return mmap.mmap(-1, _SIZE)
