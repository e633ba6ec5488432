"""What the supervisor's files know: output of jobs, and the attempts that run by its ledger.

A journal that was removed, or replaced by an older one, may not know of them. Ids are never used
twice: the output of an earlier job of that number would be written over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from iodaemon.core.job import Job, JobId
from iodaemon.errors import JournalError
from iodaemon.node.outcome import read_ledger
from iodaemon.supervisor.ledger import Key, parse_key

_LARGEST_ID: Final = 2**62
"""No journal ever counted so far, and all of them can; a file of such a name is nobody's."""


def find_running(runtime_dir: Path) -> list[tuple[Key, int]]:
    """Attempts that run, as far as this boot's ledger knows, with their first pids.

    It may have the beginning of one that was forgotten, and its end no more.

    Raises:
        PermissionError: it may not be read.
    """
    ledger = read_ledger(runtime_dir / "ledger")
    if ledger is None or not ledger.is_of_this_boot:
        return []
    running = ledger.running.items()
    return sorted((key, pid) for pid, key in running if os.path.exists(f"/proc/{pid}"))


def find_strangers(
    running: Iterable[tuple[Key, int]], jobs: Iterable[Job]
) -> list[tuple[Key, int]]:
    """Attempts that run now and that no job of the journal stands for, with their first pids.

    A job that waits takes up its next attempt where that runs already: it is not among them.

    Args:
        running: as of ``find_running``.
        jobs: all that have not ended, as the journal has them.
    """
    known = {(job.id, job.attempt if job.is_live else job.attempt + 1) for job in jobs}
    return [(key, pid) for key, pid in running if tuple(key) not in known]


def highest_job(outputs: Path, running: Iterable[tuple[Key, int]]) -> int:
    """The highest id that has output or runs; 0: there is none.

    An empty file may be that of a job whose start was prepared and never written down.

    Raises:
        PermissionError: it may not be looked at.
    """
    ids = [key.job for key, _ in running]
    for key, entry in _outputs_in(outputs):
        with suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_size:
                ids.append(key.job)
    return max((number for number in ids if number < _LARGEST_ID), default=0)


def find_old_outputs(
    outputs: Path, before_s: float, record_of: Callable[[JobId], Job | None]
) -> list[Key]:
    """Attempts whose output file, and report, were last written before this time, or seem so.

    The time of a file is the wall clock's, which may have been wrong. So an output stays for as
    long as the record of its job, where there is one.
    """
    old: dict[Key, bool] = {}
    try:
        for key, entry in _outputs_in(outputs):
            with suppress(OSError):  # of this one, which is gone or cannot be looked at
                modified_s = entry.stat(follow_symlinks=False).st_mtime
                old[key] = old.get(key, True) and modified_s < before_s
        return sorted(
            key
            for key, is_old in old.items()
            if is_old and not _is_kept(record_of(JobId(key.job)), before_s)
        )
    except (OSError, JournalError):
        return []


def _outputs_in(outputs: Path) -> Iterator[tuple[Key, os.DirEntry[str]]]:
    """Each file whose name is that of an attempt's output or report."""
    with suppress(FileNotFoundError), os.scandir(outputs) as entries:
        for entry in entries:
            with suppress(ValueError):
                yield parse_key(entry.name.removesuffix(".report")), entry


def _is_kept(job: Job | None, before_s: float) -> bool:
    """Whether the record is needed, as the journal says that prunes it."""
    if job is None:
        return False
    return job.ended_s is None or job.ended_s >= before_s or bool(job.shares)
