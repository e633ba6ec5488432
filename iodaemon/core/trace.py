"""One run of a program elsewhere, as its own record of it tells (a Darshan log)."""

from __future__ import annotations

import msgspec

from iodaemon.core.signature import Key, keys_elsewhere


class Trace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run moved.

    Attributes:
        uid: whose jobs it speaks of.
        command: program and words; empty where the log names none.
        name: of the jobs it speaks of, where somebody said so.
        log: tells it from all others.
        ended_s: when it ended, seconds since 1970.
        imported_s: when it was imported; it ages from then on.
        run_s: how long it ran, above 0.
        processes: how many it had, at least 1.
        read_bytes: by all of them.
        written_bytes: likewise.
        io_s: time in reading, writing and opening, as a mean over the processes.
        operations: read and write requests of all of them. None: not known.
    """

    uid: int
    command: tuple[str, ...]
    log: str
    ended_s: float
    imported_s: float
    run_s: float
    processes: int
    read_bytes: int
    written_bytes: int
    io_s: float
    operations: int | None = None
    name: str = ""

    @property
    def keys(self) -> tuple[Key, ...]:
        """By what jobs are like it."""
        return keys_elsewhere(self.uid, self.name, self.command)

    @property
    def moved_bytes_per_s(self) -> float:
        """Read and written, as a mean over its run."""
        return (self.read_bytes + self.written_bytes) / self.run_s

    @property
    def io_share(self) -> float:
        """The part of its run time in which a process of it did I/O, as a mean; 0 to 1."""
        return min(1.0, self.io_s / self.run_s)
