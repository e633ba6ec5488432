"""A power failure in the middle of a commit: the journal is as before the transaction, or after it.

The write-ahead log is cut within its last transaction, byte by byte, as a power failure may leave
it (the index beside it lives in memory and is gone then), and also damaged instead of cut.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from builders import job, reason
from journals import store
from write_ahead_log import FRAME, FRAME_HEADER, laid_out, places

from iodaemon.core.decision import Transition
from iodaemon.core.job import JobState
from iodaemon.daemon.journal.writer import Journal

EVERY = 61
"""Of a page every so many bytes are tried here, of headers and edges each; ``make campaign`` cuts
at each byte."""


def change(journal, *jobs):
    """One transaction in which these jobs change."""
    fields = {"at_s": 1.0, "before": None, "reason": reason()}
    steps = [Transition(job_id=made.id, after=made.state, **fields) for made in jobs]
    store(journal, jobs=jobs, transitions=tuple(steps))


def contents(path):
    """All that a daemon would go on from, and the history beside it."""
    with contextlib.closing(Journal.open(path)) as journal:
        restored = journal.restore()
        return restored, {made.id: len(journal.steps(made.id)) for made in restored.jobs}


@pytest.fixture
def folder():
    """In memory where there is such a place: thousands of journals are opened."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


def scene(folder):
    """A journal whose last transaction changes one job and adds one; copies without and with it."""
    journal = Journal.open(folder / "journal.db", seed=1)
    first = job(1, command=("true", "x" * 3000))
    change(journal, first, job(2))
    before_bytes = (folder / "journal.db-wal").stat().st_size
    change(journal, job(1, state=JobState.FAILED, at_s=3.0), job(3))
    database = (folder / "journal.db").read_bytes()
    log = (folder / "journal.db-wal").read_bytes()
    journal.close()
    return database, log, before_bytes


def cut(folder, every):
    """Cut the log at all these places and look at what is found; how many there were."""
    database, log, before_bytes = scene(folder)
    before = contents(laid_out(folder, database, log[:before_bytes]))
    after = contents(laid_out(folder, database, log))
    whole, cuts = len(log), 0
    for place in places(before_bytes, whole, every):
        found = contents(laid_out(folder, database, log[:place]))
        cuts += 1

        assert found == (after if place == whole else before), f"cut at byte {place} of {whole}"
    assert before != after
    assert [1, 2] == [made.id for made in before[0].jobs]
    assert [1, 2, 3] == [made.id for made in after[0].jobs]
    return cuts


def test_a_log_that_is_cut_is_as_before_its_last_transaction_or_after_it(folder):
    assert cut(folder, EVERY) > 4 * (FRAME_HEADER + 16)


def test_a_log_with_a_page_that_never_reached_the_disk_is_as_before(folder):
    database, log, before_bytes = scene(folder)
    before = contents(laid_out(folder, database, log[:before_bytes]))
    for frame in range(before_bytes, len(log), FRAME):
        zeros = log[:frame] + bytes(FRAME) + log[frame + FRAME :]

        assert before == contents(laid_out(folder, database, zeros)), f"frame at {frame}"
