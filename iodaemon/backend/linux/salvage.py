"""Copying out what an ended job has left, where its shim did not: as its user, beside the keeper.

What an earlier try has copied is not copied again. Standard library only.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from iodaemon.backend.linux import launch as launching
from iodaemon.backend.linux import scratch, stage
from iodaemon.backend.linux.aside import tell
from iodaemon.backend.linux.attempt_record import RecordError, read_scratch
from iodaemon.backend.linux.manifest import Manifest, open_manifest, try_lock
from iodaemon.backend.linux.process import is_readable
from iodaemon.backend.linux.protocol import Message

_SWEEP_S: Final = 60
"""For what only leaves no rubbish: a disk or a name service that does not answer is let be."""

_DYING_S: Final = 2.0
"""Who was killed is known to be gone before all that it had open is closed."""


class SalvageError(Exception):
    """It cannot be done now; one line that says why."""


def copy(directory: str, line: int) -> None:
    """Copy it out, and say ``copied``, or ``kept`` and why. Ends when the keeper hangs up."""
    record = _read(directory)

    def go_on(_word: Message) -> None:
        if is_readable(line):
            raise SalvageError("the keeper is gone")

    word = {"state": "copied"}
    books: list[Manifest] = []
    try:
        books = _become_the_user(directory, record)
        came, gone = books
        stage.copy_out(*_ends(record), came, gone, go_on)
    except (OSError, launching.LaunchError, stage.StageError, SalvageError) as error:
        path, where = record["output"]["path"], scratch.whereabouts(record)
        because = f"it was not copied to {path}: {error}; {where}"
        word = {"state": "kept", "because": because}
    for book in books:  # who hears the word finds nobody at work
        book.close()
    tell(line, word)


def sweep(directory: str, _line: int) -> None:
    """Remove what a try that was killed has left beside the names in the output."""
    signal.alarm(_SWEEP_S)
    record = _read(directory)
    try:
        _become_the_user(directory, record)
        stage.sweep(*_ends(record))
    except (OSError, launching.LaunchError, stage.StageError, SalvageError):
        return  # the directory is gone, or somebody is at work there


def _read(directory: str) -> dict[str, Any]:
    try:
        record = read_scratch(directory)
    except RecordError as error:
        raise SalvageError(str(error)) from error
    if record is None or record["output"] is None:
        raise SalvageError("nothing of it is to be copied")
    return record


def _become_the_user(directory: str, record: Message) -> list[Manifest]:
    """Be who submitted the job, with the manifests that only root may open.

    Raises:
        SalvageError: another process copies it out, or there never was a result.
        LaunchError, OSError: that user cannot be had.
    """
    output = record["output"]
    if not scratch.has_come(directory, output):
        raise SalvageError("its input had not all come")
    books = [open_manifest(directory, step) for step in ("in", "out")]
    if not try_lock(books[1], _DYING_S):
        raise SalvageError("it is being copied just now")
    os.setsid()
    os.umask(output["umask"])
    launch = {"uid": record["uid"], "min_uid": output["min_uid"]}
    account = launching.find_submitter(launch)
    if account is not None:
        launching.be_user(account)
    os.chdir("/")
    return [Manifest(book) for book in books]


def _ends(record: Message) -> tuple[list[str], stage.Output]:
    """From where, and where to."""
    output = stage.Output(record["output"]["path"], record["shares"][0]["name"])
    return scratch.paths_of(record["shares"]), output
